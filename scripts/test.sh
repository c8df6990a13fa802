#!/bin/sh
# Everything that must hold, from formatting to a cloud in namespaces. Goes on
# after a failed test, ends with one line that sums up, and fails if anything did.
set -eu

cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

cargo fmt --all --check
cargo clippy --workspace --all-targets --quiet -- -D warnings
# Built first, and once: the scenarios and the tests of the command line start the binary.
cargo test --workspace --no-run --quiet
SLUICE_BIN=$(realpath "${CARGO_TARGET_DIR:-target}")/debug/sluice
export SLUICE_BIN

status=0
cargo test --workspace --no-fail-fast 2>&1 | tee "$log" && failed=no || failed=yes
# `cargo test | tee` ends as tee does: the log says how the tests ended.
if [ $failed = yes ] || grep -q '^error:' "$log"; then status=1; fi

totals=$(awk '/^test result: / { passed += $4; failed += $6 } END { print passed + 0, failed + 0 }' "$log")
passed=${totals% *}
failed=${totals#* }
if [ "$failed" -gt 0 ] || [ "$passed" -eq 0 ]; then status=1; fi
if [ $status -ne 0 ] && [ "$failed" -eq 0 ]; then
	# A test program that crashed or did not compile has no result line of its own.
	failed=1
fi
echo
echo "$passed passed, $failed failed"
exit $status
