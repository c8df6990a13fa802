#!/bin/sh
# Runs the tests of the packet programs on the oldest supported kernel, Linux
# 6.1, booted under qemu with only an initial file system. Then shows how much
# of the verifier's limits each packet program uses on that kernel.
#
#   KERNEL_IMAGE_DEB=FILE scripts/test-kernels.sh    use this linux-image package, not one from apt
#   QEMU_ACCEL=kvm scripts/test-kernels.sh           faster where nested virtualization works
#   KERNEL_TESTS="verifier" scripts/test-kernels.sh  only these test programs of crates/datapath, not all
set -eu

cd "$(dirname "$0")/.."
. scripts/common.sh
root=$(pwd)
seconds_max=2600
memory_mib=3072
# The tests' networks need these modules, loaded in this order.
modules="veth dummy udp_tunnel ip6_udp_tunnel vxlan sch_ingress cls_bpf llc stp bridge"

work=$(mktemp -d)
on_exit 'rm -rf "$work"'

fail() {
	echo "test-kernels: $*" >&2
	exit 1
}

# Copies a program and the libraries it is linked with to the same paths in the initial file system.
pack_program() {
	mkdir -p "$initial$(dirname "$1")"
	cp "$1" "$initial$1"
	for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
		mkdir -p "$initial$(dirname "$library")"
		cp -L "$library" "$initial$library"
	done
}

# Writes the paths of the test programs to $work/tests.
build_tests() {
	# The same command as in `make test`, so that nothing is compiled a second time.
	lint_while_compiling
	cargo test --workspace --tests --no-run --message-format=json-render-diagnostics >"$work/messages" ||
		fail "the tests do not compile"
	sed -n '/\/crates\/datapath\/Cargo.toml"/ s/.*"executable":"\([^"]*\)".*/\1/p' "$work/messages" |
		grep -v '/fuzz-' >"$work/built" || true
	wanted=
	for name in ${KERNEL_TESTS:-}; do
		grep -q "/$name-" "$work/built" || fail "there is no test program $name"
		wanted="$wanted -e /$name-"
	done
	# Each line has a slash.
	grep ${wanted:--e /} "$work/built" >"$work/tests" || fail "no test programs were built"
}

# The first process of the guest: prepares the file system and runs the test programs.
write_init() {
	cat <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
# busybox has an ip of its own; iproute2 is in /sbin or /usr/sbin.
rm -f /bin/ip
export PATH=/usr/sbin:/sbin:/usr/bin:/bin RUST_BACKTRACE=0 SLUICE_OPERATIONS=20000 PROPTEST_CASES=32 SLUICE_FIXTURES=resolved
for module in $modules; do insmod /modules/\$module.ko; done
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t bpf bpf /sys/fs/bpf
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
ip link set lo up
echo "kernel \$(uname -r)"
cd $root/crates/datapath
while read -r program; do
	begin=\$(cut -d. -f1 /proc/uptime)
	result=failed options=
	case \$program in */verifier-*) options=--nocapture ;; esac
	# An emulated processor does not win the race that the skipped cases need.
	\$program \$options --skip table_that_never_rests </dev/null && result=passed
	end=\$(cut -d. -f1 /proc/uptime)
	echo "program \$result: \${program##*/} in \$((end - begin)) s"
done </tests
echo "kernel done"
poweroff -f
END
}

build_initial() {
	initial=$work/initial
	for directory in bin proc sys dev tmp run modules; do mkdir -p "$initial/$directory"; done
	deb=$(fetch_kernel_package test-kernels) || exit 1
	echo "test-kernels: using $(basename "$deb")" >&2
	unpack_kernel_package "$deb" "$work/kernel" "$initial/modules" $modules
	cp "$(command -v busybox)" "$initial/bin/busybox"
	for tool in ip tc ethtool bpftool; do
		pack_program "$(command -v $tool)"
	done
	mkdir -p "$initial$root/crates/datapath" "$initial$root/bpf"
	cp -r crates/datapath/tests "$initial$root/crates/datapath/"
	cp -r bpf/include "$initial$root/bpf/"
	while read -r program; do
		strip -o "$work/stripped" "$program" && pack_program "$program" && cp "$work/stripped" "$initial$program"
	done <"$work/tests"
	cp "$work/tests" "$initial/tests"
	write_init >"$initial/init"
	chmod +x "$initial/init"
	(cd "$initial" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initial.gz"
}

# --foreground: qemu stays in the process group of this script, and ends with it.
boot() {
	timeout --foreground $seconds_max qemu-system-x86_64 -accel "${QEMU_ACCEL:-tcg}" -cpu max -smp 2 -m $memory_mib \
		-display none -serial stdio -monitor none -no-reboot -kernel "$kernel" -initrd "$work/initial.gz" \
		-append "console=ttyS0 quiet panic=-1 edd=off no_timer_check" </dev/null | tr -d '\r' | tee "$work/log"
}

build_tests
build_initial
boot

release=$(sed -n 's/^kernel \([0-9].*\)/\1/p' "$work/log")
passed=$(grep -c '^program passed: ' "$work/log" || true)
expected=$(grep -c . "$work/tests")
echo
echo "Use of the verifier's limits on Linux $release:"
sed -n 's/^verifier: //p' "$work/log" | grep . || fail "the test program of the limits printed no figures"
if ! grep -q '^kernel done$' "$work/log" || [ "$passed" -ne "$expected" ]; then
	fail "$passed of $expected test programs passed on Linux $release"
fi
totals=$(awk '/^test result: / { passed += $4; failed += $6 } END { print passed + 0, failed + 0 }' "$work/log")
if [ -n "${TOTALS:-}" ]; then echo "$totals" >>"$TOTALS"; fi
echo "${totals% *} passed, ${totals#* } failed"
