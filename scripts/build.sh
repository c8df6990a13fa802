#!/bin/sh
# Builds the release binary and reports progress: a first build compiles all
# dependencies and takes minutes.
#
#   scripts/build.sh CARGO_ARGUMENT...    for example -p sluice
set -eu

cd "$(dirname "$0")/.."
. scripts/common.sh
# A terminal shows cargo's own progress bar.
if [ -t 2 ]; then exec cargo build --release "$@"; fi

total=$(cargo tree --edges normal,build --prefix none "$@" 2>/dev/null | sort -u | grep -c . || true)
status=$(mktemp)
on_exit 'rm -f "$status"'
begin=$(date +%s)

# Prints cargo's output with a line of progress in place of each 25 compiled crates. (A loop and not awk, because awk
# may read its input in blocks, and would print late.)
show_progress() {
	compiled=0
	while IFS= read -r line; do
		case $line in
		*" Compiling "*) compiled=$((compiled + 1)) ;;
		*" Downloading "* | *" Downloaded "*) continue ;;
		*)
			echo "$line"
			continue
			;;
		esac
		if [ $compiled -eq 1 ]; then
			echo "build: compiling what has changed; a first build compiles about $total crates and takes 5 to 10" \
				"minutes on two processors"
		elif [ $((compiled % 25)) -eq 0 ]; then
			echo "build: $compiled of at most $total crates started after $(($(date +%s) - begin)) s"
		fi
	done
}

{
	ended=0
	cargo build --release --color never "$@" 2>&1 || ended=$?
	echo $ended >"$status"
} | show_progress >&2
exit "$(cat "$status")"
