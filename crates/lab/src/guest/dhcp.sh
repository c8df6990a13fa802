#!/bin/sh
# What the DHCP client of a guest calls.
case $1 in bound | renew) ;; *) exit 0 ;; esac
set -e
ip link set dev $interface mtu ${mtu:-1500}
ip addr replace $ip/$mask dev $interface
if [ -n "$router" ]; then
	ip route replace default via ${router%% *} dev $interface metric ${interface#eth}
fi
