#!/bin/sh
# Fuzzes all targets, guided by coverage: the packet programs, compiled as C for this
# machine, then the decoders (fuzz/decoders). Ends at the first input that shows a fault.
#
#   FUZZ_SECONDS=600 scripts/fuzz.sh                 all targets, the time split evenly
#   scripts/fuzz.sh southbound                       one target of the decoders
#   scripts/fuzz.sh southbound INPUT...              these inputs only, such as one that failed
#
# Corpora are kept in TARGET_DIRECTORY/tmp/fuzz/NAME/corpus, and failing inputs in found/ beside it.
set -eu

cd "$(dirname "$0")/.."
. scripts/common.sh

# In the order of TARGETS in fuzz/decoders/src/lib.rs.
decoders="southbound cluster rsp nat_sync meter_reports migration health_echo api"
packet_programs=2
bytes_max=4096
seconds=${FUZZ_SECONDS:-600}
built=${CARGO_TARGET_DIR:-target}

fail() {
	echo "fuzz: $*" >&2
	exit 1
}

fuzz_packet_programs() {
	lint_while_compiling
	# One after the other, so that each has a processor.
	FUZZ_SECONDS=$1 cargo test --workspace --test fuzz -- --nocapture --test-threads=1
}

# Dependencies are those of the tests. Only the crates of the workspace are compiled again, with counters.
build_decoders() {
	RUSTC_WORKSPACE_WRAPPER="$(pwd)/scripts/rustc-coverage.sh" \
		cargo build --workspace --example fuzz_decoders
	library=$built/debug/examples/libfuzz_decoders.a
	[ -f "$library" ] || fail "cargo did not make $library"
}

# fuzz_decoder NAME NUMBER SECONDS [INPUT...]
fuzz_decoder() {
	dir=$built/tmp/fuzz/$1
	mkdir -p "$dir/corpus" "$dir/found"
	clang -g -O1 -Wall -Werror -fsanitize=fuzzer -DTARGET="$2" -o "$dir/program" fuzz/decoders/driver.c \
		"$library" -lelf -lz -lm -ldl -lpthread
	name=$1 limit=$3
	shift 3
	if [ $# -gt 0 ]; then
		"$dir/program" "$@"
		return
	fi
	echo "fuzz: $name for $limit s"
	SLUICE_FUZZ_CORPUS=$dir/corpus "$dir/program" -max_total_time="$limit" -max_len=$bytes_max -timeout=5 \
		-verbosity=0 -print_final_stats=1 -artifact_prefix="$dir/found/" "$dir/corpus"
}

only=${1:-}
[ $# -eq 0 ] || shift
number=0
for name in $decoders; do
	number=$((number + 1))
done
each=$((seconds / (number + packet_programs)))
[ $each -gt 0 ] || each=1

if [ -z "$only" ]; then
	fuzz_packet_programs $each
else
	case " $decoders " in
	*" $only "*) each=$seconds ;;
	*) fail "no decoder is called '$only': expected one of $decoders" ;;
	esac
fi
build_decoders
number=0
for name in $decoders; do
	if [ -z "$only" ] || [ "$only" = "$name" ]; then fuzz_decoder "$name" $number $each "$@"; fi
	number=$((number + 1))
done
