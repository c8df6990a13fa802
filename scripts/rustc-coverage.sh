#!/bin/sh
# Compiles a crate with the counters by which libFuzzer sees what an input reached. Cargo calls it in place of
# rustc for the crates of the workspace (RUSTC_WORKSPACE_WRAPPER, scripts/fuzz.sh).
set -eu

# A build script is a program of its own, which libFuzzer is not linked to.
case " $* " in
*" --crate-name build_script_"*) exec "$@" ;;
esac
exec "$@" -C passes=sancov-module \
	-C llvm-args=-sanitizer-coverage-level=4 \
	-C llvm-args=-sanitizer-coverage-inline-8bit-counters \
	-C llvm-args=-sanitizer-coverage-pc-table \
	-C llvm-args=-sanitizer-coverage-trace-compares \
	-C opt-level=1
