// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Drops every frame that a VM sends. `sluice vswitch --flush` puts it in the place of port_ingress
 * (vswitch.bpf.c), which needs the forwarding tables: without a program the frames would reach the host's own
 * stack.
 */
#include <linux/pkt_cls.h>

#include "vswitch/unknown_port.h"

SEC("tc")
int guard(struct __sk_buff *skb)
{
	count_unknown_port(skb->ifindex);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";
