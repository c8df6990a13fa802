#!/bin/sh
# Makes this machine able to build, run, test or measure Sluice: installs what
# is missing and says what it cannot install. Quick when nothing is missing.
#
#   scripts/setup.sh STAGE...    stages: build run test fuzz bench kernels
set -eu

cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

# Packages by stage, named as on Debian 12, Debian 13 and Ubuntu 24.04.
# `a|b`: the first that the distribution has.
packages_build="build-essential pkg-config clang llvm libclang-dev libelf-dev zlib1g-dev linux-libc-dev
	clang-format-14|clang-format protobuf-compiler curl ca-certificates"
packages_run="iproute2 nftables ethtool busybox-static dnsmasq-base isc-dhcp-client iputils-ping procps kmod util-linux
	mount curl"
packages_test="iperf3 tcpdump conntrack postgresql bpftool|linux-tools-common qemu-system-x86
	keepalived bind9-dnsutils debian-archive-keyring nfdump libfixbuf-tools"
packages_fuzz="libclang-rt-dev|libclang-rt-14-dev"
packages_bench="iperf3 conntrack conntrackd keepalived openvswitch-switch libdpdk-dev"
packages_kernels="qemu-system-x86 busybox-static cpio binutils iproute2 ethtool debian-archive-keyring
	bpftool|linux-tools-common"

rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
oldest_kernel=6.1
problems=0

say() { echo "setup: $*" >&2; }

problem() {
	say "$*"
	problems=$((problems + 1))
}

# older A B: true when version A comes before version B.
older() {
	[ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

is_root() { [ "$(id -u)" -eq 0 ]; }

installed() {
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Prints what of the given packages is missing, alternatives left in.
missing_packages() {
	for package in "$@"; do
		found=no
		for name in $(echo "$package" | tr '|' ' '); do
			if installed "$name"; then found=yes; fi
		done
		if [ $found = no ]; then echo "$package"; fi
	done
}

# Prints the first alternative of each that apt knows.
chosen_packages() {
	for package in "$@"; do
		chosen=
		for name in $(echo "$package" | tr '|' ' '); do
			if [ -z "$chosen" ] && apt-cache show "$name" >/dev/null 2>&1; then chosen=$name; fi
		done
		echo "${chosen:-${package%%|*}}"
	done
}

install_packages() {
	missing=$(missing_packages "$@")
	if [ -z "$missing" ]; then return; fi
	if ! command -v apt-get >/dev/null; then
		problem "this is not Debian or Ubuntu; install the equivalents of these packages: $(echo $missing)"
		return
	fi
	if ! is_root; then
		problem "not root, cannot install packages; run: sudo apt-get install $(echo $missing)"
		return
	fi
	keep_postgresql_quiet "$missing"
	keep_daemon_quiet conntrackd "$missing"
	keep_daemon_quiet nfdump "$missing"
	say "installing $(echo $missing)"
	export DEBIAN_FRONTEND=noninteractive
	if ! apt-get update -q >&2; then say "apt-get update failed; trying with the lists that are here"; fi
	if ! apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 $(chosen_packages $missing) >&2; then
		problem "apt-get could not install $(echo $missing): is there a network, and do the sources have them?"
	fi
}

# The tests start a server of their own. Installing the package must not start another one.
keep_postgresql_quiet() {
	case " $(echo "$1" | tr '\n' ' ') " in
	*" postgresql "*)
		if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
			mkdir -p /etc/postgresql-common
			echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
		fi
		;;
	esac
}

# Benches and scenarios start daemons of their own. Installing the package must not start another one.
keep_daemon_quiet() {
	case " $(echo "$2" | tr '\n' ' ') " in
	*" $1 "*)
		if [ -d /run/systemd/system ] && [ ! -e "/etc/systemd/system/$1.service" ]; then
			ln -s /dev/null "/etc/systemd/system/$1.service"
		fi
		;;
	esac
}

install_guest_kernel() {
	sh scripts/guest-kernel.sh >&2 || say "no kernel for guests of the lab: the scenario guests will fail." \
		"On another system than Debian 12, give its package as KERNEL_IMAGE_DEB"
}

rust_version() {
	# Run outside the tree, so that a toolchain file cannot select another version.
	(cd / && rustc --version 2>/dev/null) | sed -n 's/^rustc \([0-9.]*\).*/\1/p'
}

rust_is_enough() {
	have=$(rust_version)
	[ -n "$have" ] && ! older "$have" "$rust_wanted" && command -v cargo >/dev/null
}

has_components() { cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1; }

# Downloads the installer to a file first: in a pipe, the shell would succeed without any input.
install_rustup() {
	installer=$(mktemp)
	outcome=0
	curl --proto '=https' --tlsv1.2 -sSf -o "$installer" https://sh.rustup.rs &&
		sh "$installer" -y -q --no-modify-path --profile minimal --default-toolchain stable >&2 || outcome=$?
	rm -f "$installer"
	return $outcome
}

install_rust() {
	if rust_is_enough && has_components; then return; fi
	if ! command -v rustup >/dev/null; then
		say "installing Rust for this user, by rustup"
		if ! install_rustup; then
			problem "rustup could not be installed: is there a network? Rust $rust_wanted or newer is needed"
			return
		fi
	elif ! rust_is_enough; then
		say "updating Rust $(rust_version) to $rust_wanted or newer"
		rustup toolchain install stable --profile minimal >&2 && rustup default stable >&2 || true
	fi
	rustup component add rustfmt clippy >&2 || true
	if ! rust_is_enough; then
		problem "Rust is ${have:-not installed}, $rust_wanted or newer is needed; try: rustup update stable"
	elif ! has_components; then
		problem "rustfmt or clippy is not installed; try: rustup component add rustfmt clippy"
	fi
}

check_kernel() {
	release=$(uname -r)
	if older "$(echo "$release" | sed 's/^\([0-9]*\.[0-9]*\).*/\1/')" $oldest_kernel; then
		problem "Linux $release is too old: $oldest_kernel or newer is needed"
	fi
	if [ "$(uname -m)" != x86_64 ]; then
		problem "$(uname -m): the tables' readers rely on the memory order of x86_64"
	fi
	isolated=$(cat /sys/devices/system/cpu/nohz_full 2>/dev/null | tr -d ' \n' | sed 's/(null)//')
	if [ -n "$isolated" ] || grep -q 'nohz_full=' /proc/cmdline; then
		problem "nohz_full is set: membarrier does not work, and tables need it before they reuse memory; boot without it"
	fi
	if [ ! -e /sys/kernel/btf/vmlinux ]; then
		problem "no /sys/kernel/btf/vmlinux: the kernel needs CONFIG_DEBUG_INFO_BTF"
	fi
	if [ ! -d /sys/fs/bpf ]; then
		problem "no /sys/fs/bpf: the kernel needs CONFIG_BPF_SYSCALL"
	fi
}

check_rights() {
	if ! is_root; then
		problem "not root: network namespaces and eBPF need it; run: sudo make ..."
		return
	fi
	links='ip link add name one type veth peer name two && ip link add name bridge0 type bridge &&
		ip link add name vxlan0 type vxlan external dstport 4789'
	if ! reason=$(unshare -n sh -c "$links" 2>&1); then
		problem "cannot make network devices ($(echo "$reason" | head -n 1)):" \
			"a container needs --privileged, a kernel veth, bridge and vxlan"
	fi
}

[ $# -gt 0 ] || set -- build
for stage in "$@"; do
	case $stage in
	build) install_packages $packages_build && install_rust ;;
	run) install_packages $packages_run && check_kernel && check_rights ;;
	test) install_packages $packages_test && install_guest_kernel ;;
	fuzz) install_packages $packages_fuzz ;;
	bench) install_packages $packages_bench ;;
	kernels) install_packages $packages_kernels ;;
	*)
		say "no stage is called $stage"
		exit 2
		;;
	esac
done
if [ $problems -gt 0 ]; then
	say "fix the $problems problem(s) above first"
	exit 1
fi
