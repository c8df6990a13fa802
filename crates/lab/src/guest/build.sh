# Builds the initial file system of guests: DIRECTORY IMAGE KERNEL PROGRAM... KERNEL is what scripts/guest-kernel.sh made,
# and DIRECTORY contains the scripts of guests.
directory=$1 image=$2 kernel=$3
shift 3

# Copies a program, and the libraries that it is linked with, to the same paths.
pack() {
	for file in "$1" $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
		mkdir -p "$directory$(dirname "$file")"
		cp -L "$file" "$directory$file"
	done
}

for name in bin proc sys dev tmp run etc modules; do mkdir -p "$directory/$name"; done
cp "$kernel"/modules/* "$directory/modules/"
cp "$(command -v busybox)" "$directory/bin/busybox"
# The shell of busybox would run the programs of busybox, not those that are packed.
pack "$(command -v sh)"
cp -L "$(command -v sh)" "$directory/bin/sh"
for program in "$@"; do pack "$program"; done
chmod +x "$directory"/init "$directory"/guest/*
cd "$directory"
find . | busybox cpio -o -H newc | gzip -1 >"$image"
