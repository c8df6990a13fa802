#!/bin/sh
# What the DHCPv6 client of a guest calls.
if [ -n "$new_ip6_address" ]; then ip -6 addr replace $new_ip6_address/128 dev $interface; fi
