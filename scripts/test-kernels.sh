#!/bin/sh
# Runs the tests of the packet programs on Debian 12's own kernel (Linux 6.1),
# booted under qemu with nothing but an initial file system.
#
#   QEMU_ACCEL=kvm scripts/test-kernels.sh    faster where nested virtualisation works
set -eu

cd "$(dirname "$0")/.."
root=$(pwd)
suite=bookworm
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/kernels
seconds_max=1500
# What the tests' networks are made of, in the order in which they need each other.
modules="veth dummy udp_tunnel ip6_udp_tunnel vxlan sch_ingress cls_bpf llc stp bridge"
memory_mib=3072

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The newest cloud kernel of the suite, by apt with its own lists, so that the
# machine's sources stay as they are and signatures are checked.
fetch_kernel() {
	mkdir -p "$cache" "$work/apt/lists/partial" "$work/apt/archives/partial" "$work/apt/parts"
	keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	echo "deb [arch=amd64 signed-by=$keyring] http://deb.debian.org/debian $suite main" >"$work/apt/list"
	chmod -R a+rX "$work"
	set -- -q -o "Dir::Etc::sourcelist=$work/apt/list" -o "Dir::Etc::sourceparts=$work/apt/parts" \
		-o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt" -o APT::Sandbox::User=root
	apt-get "$@" update >/dev/null
	package=$(apt-cache "$@" depends linux-image-cloud-amd64 |
		sed -n 's/^ *Depends: \(linux-image-6.1[^ ]*\)$/\1/p' | head -n 1)
	if [ -z "$package" ]; then
		echo "test-kernels: apt names no 6.1 kernel in $suite" >&2
		exit 1
	fi
	if [ ! -e "$cache/$package/modules/bridge.ko" ]; then
		echo "test-kernels: fetching $package" >&2
		(cd "$work" && apt-get "$@" download "$package" >/dev/null)
		dpkg-deb -x "$work/$package"_*.deb "$work/kernel"
		rm -rf "$cache/$package"
		mkdir -p "$cache/$package/modules.new"
		mv "$work"/kernel/boot/vmlinuz-* "$cache/$package/vmlinuz"
		for module in $modules; do
			find "$work/kernel/lib/modules" -name "$module.ko" -exec cp {} "$cache/$package/modules.new/" \;
		done
		mv "$cache/$package/modules.new" "$cache/$package/modules"
	fi
	kernel=$cache/$package/vmlinuz
}

# Copies a program and the libraries it is linked with to their places in the new root.
pack_program() {
	mkdir -p "$initial$(dirname "$1")"
	cp "$1" "$initial$1"
	for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
		mkdir -p "$initial$(dirname "$library")"
		cp -L "$library" "$initial$library"
	done
}

build_tests() {
	# Of the whole workspace, as `make test` builds them: alone they would be built with other features, anew.
	cargo test --workspace --no-run --message-format=json | grep '/crates/datapath/Cargo.toml"' |
		sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | grep -v '/fuzz-' >"$work/tests"
	if [ ! -s "$work/tests" ]; then
		echo "test-kernels: no test was built" >&2
		exit 1
	fi
}

build_initial() {
	initial=$work/initial
	mkdir -p "$initial/bin" "$initial/proc" "$initial/sys" "$initial/dev" "$initial/tmp" "$initial/run"
	cp "$(command -v busybox)" "$initial/bin/busybox"
	cp -r "$cache/$package/modules" "$initial/modules"
	for tool in ip tc ethtool bpftool; do
		pack_program "$(command -v $tool)"
	done
	mkdir -p "$initial$root/crates/datapath" "$initial$root/bpf"
	cp -r crates/datapath/tests "$initial$root/crates/datapath/"
	cp -r bpf/include "$initial$root/bpf/"
	while read -r program; do
		strip -o "$work/stripped" "$program" && pack_program "$program" && cp "$work/stripped" "$initial$program"
	done <"$work/tests"
	{
		echo '#!/bin/busybox sh'
		echo '/bin/busybox --install -s /bin'
		# iproute2 lies in /sbin or /usr/sbin, and busybox has an ip of its own.
		echo 'rm -f /bin/ip; export PATH=/usr/sbin:/sbin:/usr/bin:/bin RUST_BACKTRACE=0 SLUICE_OPERATIONS=100000'
		echo "for module in $modules; do insmod /modules/\$module.ko; done"
		echo 'mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t bpf bpf /sys/fs/bpf'
		echo 'mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp; ip link set lo up'
		echo 'echo "kernel $(uname -r)"'
		echo "cd $root/crates/datapath"
		# An emulated processor does not win the race that the case is about.
		sed 's/$/ --skip table_that_never_rests \&\& echo "program passed" || echo "program failed"/' "$work/tests"
		echo 'echo "kernel done"; poweroff -f'
	} >"$initial/init"
	chmod +x "$initial/init"
	(cd "$initial" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initial.gz"
}

boot() {
	timeout $seconds_max qemu-system-x86_64 -accel "${QEMU_ACCEL:-tcg}" -cpu max -smp 2 -m $memory_mib \
		-display none -serial stdio -monitor none -no-reboot -kernel "$kernel" -initrd "$work/initial.gz" \
		-append "console=ttyS0 quiet panic=-1 edd=off" </dev/null | tr -d '\r' | tee "$work/log"
}

fetch_kernel
build_tests
build_initial
boot

passed=$(grep -c '^program passed$' "$work/log" || true)
wanted=$(grep -c . "$work/tests")
if ! grep -q '^kernel done$' "$work/log" || [ "$passed" -ne "$wanted" ]; then
	echo "test-kernels: $passed of $wanted test programs passed on $(sed -n 's/^kernel \(6.*\)/\1/p' "$work/log")"
	exit 1
fi
awk '/^test result: / { passed += $4; failed += $6 } END { print passed + 0 " passed, " failed + 0 " failed" }' "$work/log"
