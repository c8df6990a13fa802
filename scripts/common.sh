# Shell functions that the scripts of this directory share. Sourced, not run.

# Compiles with clippy-driver in place of rustc: one compilation then gives the lints and the code.
# Otherwise `cargo clippy` would check all dependencies a second time.
lint_while_compiling() {
	driver=$(rustup which clippy-driver 2>/dev/null || command -v clippy-driver) || {
		echo "clippy is not installed; try: rustup component add clippy" >&2
		exit 1
	}
	export RUSTC_WORKSPACE_WRAPPER="$driver"
	# The form in which `cargo clippy -- -D warnings` passes its arguments on.
	export CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"
}

# on_exit COMMAND: runs the command when the script ends, also at a signal, at which dash runs no EXIT trap.
on_exit() {
	trap "$1" EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
}

# stage NAME COMMAND...: runs the command and records how long it took. The exit
# status is the command's.
stage() {
	stage_name=$1
	shift
	stage_begin=$(date +%s)
	echo
	echo "=== $stage_name"
	stage_status=0
	"$@" || stage_status=$?
	echo "$(($(date +%s) - stage_begin)) $stage_name" >>"$STAGES"
	return $stage_status
}

# Prints the recorded time of every stage, and their sum.
print_stages() {
	echo
	echo "time of each stage:"
	awk '{ seconds = $1; total += seconds; $1 = ""; printf "%6d s %s\n", seconds, $0 }
		END { printf "%6d s  together (%d min %d s)\n", total, total / 60, total % 60 }' "$STAGES"
}

# The oldest supported kernel, which boot tests and the guests of the lab use.
kernel_version=6.1
kernel_cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/kernels

# Prints the name of the newest package with this kernel. The variant for virtual machines is the smallest.
find_kernel_package() {
	for variant in cloud-amd64 amd64; do
		package=$(apt-cache pkgnames "linux-image-$kernel_version." 2>/dev/null |
			grep -E "^linux-image-$kernel_version\.[0-9.+-]+-$variant\$" | sort -V | tail -n 1)
		if [ -n "$package" ]; then
			echo "$package"
			return
		fi
	done
}

# fetch_kernel_package CALLER: prints the path of a kernel package: the one that KERNEL_IMAGE_DEB names, or one from
# the apt sources of this machine. CALLER is the name for messages.
fetch_kernel_package() {
	if [ -n "${KERNEL_IMAGE_DEB:-}" ]; then
		realpath -e "$KERNEL_IMAGE_DEB" || {
			echo "$1: cannot read KERNEL_IMAGE_DEB=$KERNEL_IMAGE_DEB" >&2
			return 1
		}
		return
	fi
	package=$(find_kernel_package)
	if [ -z "$package" ] && [ "$(id -u)" -eq 0 ]; then
		apt-get -q update >&2 || true
		package=$(find_kernel_package)
	fi
	if [ -z "$package" ]; then
		echo "$1: the apt sources of this machine have no linux-image-$kernel_version.*-amd64 package" \
			"(Debian 12 has it). Download this package from Debian 12 and name the file:" \
			"KERNEL_IMAGE_DEB=linux-image-$kernel_version..._amd64.deb" >&2
		return 1
	fi
	# apt checks the signature, and downloads nothing if the file is here.
	mkdir -p "$kernel_cache"
	(cd "$kernel_cache" && apt-get -q -o APT::Sandbox::User=root download "$package" >&2) || {
		echo "$1: cannot download $package" >&2
		return 1
	}
	ls -t "$kernel_cache/$package"_*.deb | head -n 1
}

# unpack_kernel_package DEB DIRECTORY MODULES NAME...: unpacks a kernel package into a directory, sets $kernel to the path
# of its image, and copies the named modules to the directory MODULES.
unpack_kernel_package() {
	deb=$1 unpacked=$2 to=$3
	shift 3
	mkdir -p "$unpacked" "$to"
	dpkg-deb -x "$deb" "$unpacked" || {
		echo "$deb is not a Debian package" >&2
		exit 1
	}
	kernel=$(find "$unpacked/boot" -name 'vmlinuz-*' 2>/dev/null | head -n 1)
	if [ -z "$kernel" ]; then
		echo "$deb contains no kernel image" >&2
		exit 1
	fi
	for module in "$@"; do
		found=$(find "$unpacked" -name "$module.ko" | head -n 1)
		if [ -z "$found" ]; then
			echo "$deb does not contain the module $module.ko" >&2
			exit 1
		fi
		cp "$found" "$to/"
	done
}
