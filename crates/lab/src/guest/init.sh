#!/bin/sh
# The first process of a guest: loads the drivers, configures the interfaces as a plain VM does, and serves the channels
# by which the lab runs commands. The kernel's command line is in the environment. It has the number of channels, and
# nicN=FAMILIES,MODE for each interface ethN: FAMILIES is 4, 6 or 46, MODE how it gets its IPv6 address.
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod /modules/$module.ko; done </modules/order

configure() {
	interface=$1 families=${2%,*} mode=${2#*,}
	export interface
	echo $((1024 + ${interface#eth})) >/proc/sys/net/ipv6/conf/$interface/ra_defrtr_metric
	ip link set $interface up
	case $families in *4*)
		until udhcpc -i $interface -n -q -f -t 15 -T 1 -O mtu -s /guest/dhcp; do sleep 1; done
		;;
	esac
	if [ $mode = dhcp ]; then
		until ip -6 -o addr show dev $interface scope link -tentative | grep -q inet6; do sleep 0.1; done
		until dhclient -6 -1 --no-pid -cf /dev/null -lf /run/$interface.leases -sf /guest/dhcp6 $interface; do
			sleep 1
		done
	fi
	case $families in *6*)
		until ip -6 -o addr show dev $interface scope global -tentative | grep -q inet6 &&
			ip -6 -o route show default dev $interface | grep -q via; do sleep 0.2; done
		;;
	esac
	if [ $interface != eth0 ]; then . /guest/route-by-source; fi
	touch /run/$interface.ready
	echo "guest: $interface has its addresses"
}

# The driver makes them one by one, after its module was loaded. A guest that lacks some must not begin: commands in them
# would wait for ever.
tries=0
until set -- /dev/vport* && [ $# -ge $channels ]; do
	if [ $((tries += 1)) -gt 300 ]; then
		echo "guest: only $# of $channels channels within 30 s"
		poweroff -f
	fi
	sleep 0.1
done
for channel in "$@"; do /guest/serve $channel & done
ip link set lo up
for number in 0 1 2 3 4 5 6 7; do
	eval "nic=\${nic$number:-}"
	if [ -n "$nic" ]; then (configure eth$number "$nic") & fi
done
echo "guest: $(uname -r) is up after $(cut -d' ' -f1 /proc/uptime) s"
# The first process must not end, and waits for those whose parent ended before them.
while :; do
	wait
	sleep 1
done
