#!/bin/sh
# Checks the format of all C files against .clang-format.
#
#   scripts/check-format.sh          fails and shows what differs
#   scripts/check-format.sh --fix    formats the files
#
# Versions of clang-format differ in details, so the check needs the one of Debian 12.
set -eu

cd "$(dirname "$0")/.."
version=14

formatter=
for name in clang-format-$version clang-format; do
	if [ -z "$formatter" ] && "$name" --version 2>/dev/null | grep -q "version $version\."; then formatter=$name; fi
done
if [ -z "$formatter" ]; then
	echo "check-format: clang-format $version is not installed: the format of C files is NOT checked" >&2
	# Where the distribution has no such version, the other checks still run.
	if [ "${1:-}" = --fix ]; then exit 1; else exit 0; fi
fi

# The C files that the repository has, also those not committed yet. Without git or outside of a repository, such as
# in an unpacked archive, all C files.
files=$(git ls-files --cached --others --exclude-standard -- \
	'bpf/*.c' 'bpf/*.h' 'fuzz/*.c' 'fuzz/*.h' 'crates/*.c' 'crates/*.h' 'bench/*.c' 'bench/*.h' 2>/dev/null) ||
	files=$(find bpf fuzz crates bench -name '*.[ch]')
if [ -z "$files" ]; then
	echo "check-format: no C files were found in $(pwd)" >&2
	exit 1
fi

if [ "${1:-}" = --fix ]; then
	echo "$files" | xargs "$formatter" -i
	exit 0
fi
if ! echo "$files" | xargs "$formatter" --dry-run --Werror --ferror-limit=3; then
	echo "check-format: run scripts/check-format.sh --fix" >&2
	exit 1
fi
