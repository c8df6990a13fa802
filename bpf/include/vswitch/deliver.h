/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch, last stage: into the port of an instance on this host.
 *
 * Contract: the caller has checked that the port may get the frame. route_headers() changes MAC
 * addresses and TTL, deliver() changes no bytes. Reads the map `cells`.
 */
#ifndef SLUICE_DELIVER_H
#define SLUICE_DELIVER_H

#include "vswitch/port.h"

/* The port that an exact match in a VNI found. NULL: the packet is dropped for `reason`. */
static __always_inline const struct port *local_port(enum exact_answer found, const struct exact_hit *hit,
						     __u32 vni, enum drop_reason *reason)
{
	const struct port *port;

	*reason = found == EXACT_BUSY ? DROP_table_busy : DROP_not_local;
	if (found != EXACT_HIT)
		return NULL;
	port = vm_port_at(hit->next);
	*reason = DROP_stale_index;
	return port && port->vni == vni ? port : NULL;
}

static __always_inline int deliver(struct __sk_buff *skb, const struct port *port)
{
	if (!(port->flags & PORT_PEER_REDIRECT))
		return bpf_redirect(port->ifindex, 0);
	/*
	 * The frame enters the VM's stack without passing the driver that sets the packet type, and the VM would
	 * drop a frame whose type says that it is for another machine.
	 */
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(port->ifindex, 0);
}

/*
 * Changes what a router changes: TTL or hop limit, and the MAC addresses, to those of router and
 * instance. Stores bytes only, so that GSO packets and pending checksums stay as they are. The TTL is
 * at least 2. 0, or negative if the kernel refused.
 */
static __always_inline long route_headers(struct __sk_buff *skb, const struct frame *frame,
					  const struct node_config *node, __u64 mac)
{
	__u8 ttl = frame->ttl - 1;
	__u8 macs[2 * ETH_ALEN];
	long failed;

	store_mac(macs, mac);
	__builtin_memcpy(macs + ETH_ALEN, node->router_mac, ETH_ALEN);
	if (frame->flags & FRAME_IPV6) {
		/*
		 * The changed byte changes the sum of the packet: no checksum in IPv6's header balances it.
		 */
		failed =
			bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6_header, hop_limit),
					    &ttl, 1, BPF_F_RECOMPUTE_CSUM);
	} else {
		failed = bpf_l3_csum_replace(skb, ETH_HLEN + __builtin_offsetof(struct ipv4_header, checksum),
					     bpf_htons(frame->ttl << 8), bpf_htons(ttl << 8), 2);
		failed |= bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv4_header, ttl),
					      &ttl, 1, 0);
	}
	return failed | bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
}

#endif
