#!/bin/sh
# Builds the release binary, and says how far it is: a first build compiles all
# dependencies and takes minutes.
#
#   scripts/build.sh CARGO_ARGUMENT...    for example -p sluice
set -eu

cd "$(dirname "$0")/.."
# A terminal shows cargo's own progress bar.
if [ -t 2 ]; then exec cargo build --release "$@"; fi

total=$(cargo tree --edges normal,build --prefix none "$@" 2>/dev/null | sort -u | grep -c . || true)
status=$(mktemp)
trap 'rm -f "$status"' EXIT
{
	ended=0
	cargo build --release --color never "$@" 2>&1 || ended=$?
	echo $ended >"$status"
} | awk -v total="$total" -v begin="$(date +%s)" '
	/^ *Compiling / {
		compiled++
		if (compiled == 1)
			print "build: compiling what has changed; a first build compiles about " total \
				" crates and takes 5 to 10 minutes on two processors"
		if (compiled % 25 == 0) {
			"date +%s" | getline now
			close("date +%s")
			printf "build: %d of at most %d crates begun after %d s\n", compiled, total, now - begin
		}
		fflush()
		next
	}
	/^ *(Downloading|Downloaded) / { next }
	{ print }
	{ fflush() }' >&2
exit "$(cat "$status")"
