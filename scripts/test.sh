#!/bin/sh
# Runs the tests. Goes on after a failed test, prints how long each stage took,
# ends with one line of totals, and fails if any test failed.
#
#   scripts/test.sh check    format, lints, unit tests, fixtures: run this after a change
#   scripts/test.sh all      these, and the benches' own tests, a short fuzz, the scenarios
#   scripts/test.sh soak     the long tests: many seeds, many kills, long streams
#
# BESIDE_TESTS names a command that runs beside the benches and scenarios of `all`, with the
# processor time that they leave, which is about half. If it fails, the tests have failed.
set -eu

cd "$(dirname "$0")/.."
. scripts/common.sh

scope=${1:-all}
case $scope in
check | all | soak) ;;
*)
	echo "test.sh: unknown scope '$scope': expected check, all or soak" >&2
	exit 2
	;;
esac
beside=
work=$(mktemp -d)
clean_up() {
	if [ -n "$beside" ]; then kill -TERM -"$beside" || true; fi
	rm -rf "$work"
}
on_exit clean_up
log=$work/log
: >"$log"
# A caller of several scripts collects the times and totals of all of them.
if [ -z "${STAGES:-}" ]; then
	STAGES=$work/stages
	own_stages=yes
	: >"$STAGES"
fi

lint_while_compiling
SLUICE_BIN=$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug/sluice
export SLUICE_BIN

failed_stages=0

# Runs a command that tests. Its output also goes to the log, from which results are counted.
run_tests() {
	# The pipe ends as tee does, so the command's own status is kept in a file.
	{
		status=0
		"$@" 2>&1 || status=$?
		echo $status >"$work/status"
	} | tee -a "$log"
	read -r status <"$work/status"
	if [ "$status" -ne 0 ]; then failed_stages=$((failed_stages + 1)); fi
}

# Runs tests of the whole workspace, selected by the arguments. With `-p` instead, cargo would choose other
# features of the dependencies and compile them again.
tests() { run_tests cargo test --workspace --no-fail-fast "$@"; }

# The long tests, each with more repetitions than the other scopes have.
soak() {
	stage "cluster simulation, 100,000 seeds" tests_with SLUICE_CLUSTER_SEEDS=100000 --test simulation
	stage "copies of sessions, 20,000 seeds" tests_with SLUICE_NAT_SYNC_SEEDS=20000 --test simulation
	stage "writer killed 2,400 times" tests_with SLUICE_KILLS=2400 --test kill
	stage "property tests, 20 times the cases" tests_with PROPTEST_CASES=5000 --tests
	stage "three readers, 10 million operations" tests_with SLUICE_OPERATIONS=10000000 --test three_readers
	stage "fuzz, 5 minutes a target" run_tests env FUZZ_SECONDS=3000 sh scripts/fuzz.sh
	stage "all programs on Linux 6.1" run_tests sh scripts/test-kernels.sh
	stage "scenarios, streams of 5 minutes" tests_with SLUICE_SOAK_SECONDS=300 --test scenarios
}

tests_with() {
	export "$1"
	name=${1%%=*}
	shift
	tests "$@"
	unset "$name"
}

# SCHED_IDLE: whatever the tests run takes the processor from it at once, so it does not delay what they measure. It is
# a process group of its own, which `clean_up` can end. It does not hold the lock of the cache (.ci/run). The nice value
# tells the health checks of the agents under test that its processor time is left for others.
begin_beside() {
	if [ -z "${BESIDE_TESTS:-}" ]; then return; fi
	setsid nice -n 19 chrt --idle 0 sh -c "$BESIDE_TESTS" >"$work/beside" 2>&1 9>&- &
	beside=$!
}

end_beside() {
	wait "$beside" || failed_stages=$((failed_stages + 1))
	beside=
	cat "$work/beside"
}

check_format() { cargo fmt --all --check && sh scripts/check-format.sh; }
stage "format" check_format
compile() {
	# The second command builds what `--tests` leaves out, because it has stages of its own.
	cargo test --workspace --tests --no-run &&
		cargo test --workspace --test scenarios --test smoke --no-run
}

stage "compile and lint" compile
case $scope in
check)
	# The fuzzers replay their seeds and continue for a second each.
	stage "unit tests and fixtures" tests_with FUZZ_SECONDS=1 --tests
	;;
all)
	stage "unit tests, fixtures, short fuzz" tests --tests
	begin_beside
	stage "benches at a small size" tests --test smoke
	stage "scenarios" tests --test scenarios
	;;
soak)
	soak
	;;
esac

if [ -n "$beside" ]; then stage "rest of $BESIDE_TESTS" end_beside; fi
if [ -n "${own_stages:-}" ]; then print_stages; fi
totals=$(awk '/^test result: / { passed += $4; failed += $6 } END { print passed + 0, failed + 0 }' "$log")
passed=${totals% *}
failed=${totals#* }
# A test program that crashed has no result line of its own.
if [ $failed_stages -gt 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
if [ -n "${TOTALS:-}" ]; then echo "$passed $failed" >>"$TOTALS"; fi
echo
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
