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
#include "vswitch/qos.h"

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

static __always_inline int deliver(struct __sk_buff *skb, const struct frame *frame, const struct port *port)
{
	/* A VM must not choose the queue of another one's interface. */
	skb->queue_mapping = 0;
	if (!(port->flags & PORT_PEER_REDIRECT)) {
		set_priority(skb, frame);
		return bpf_redirect(port->ifindex, 0);
	}
	/*
	 * The frame enters the VM's stack without passing the driver that sets the packet type, and the VM would
	 * drop a frame whose type says that it is for another machine.
	 */
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(port->ifindex, 0);
}

/*
 * Changes what a router changes: TTL or hop limit, and the MAC addresses, to those of router and instance. Only
 * bytes change, so that GSO packets and pending checksums stay as they are. The TTL is at least 2, and the
 * headers are linear. 0, or negative if the kernel refused.
 */
static __always_inline long route_headers(struct __sk_buff *skb, const struct frame *frame,
					  const struct node_config *node, __u64 mac)
{
	__u8 ttl = frame->ttl - 1;
	struct cursor cursor;

	/*
	 * The kernel may know the sum of the whole IP packet. It changes with the hop limit, because no checksum
	 * in IPv6's header balances that. The sum of an IPv4 header is always the same.
	 */
	if (frame->flags & FRAME_IPV6 &&
	    bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6_header, hop_limit), &ttl, 1,
				BPF_F_RECOMPUTE_CSUM))
		return -1;
	cursor = cursor_at(skb, 0);
	if (!cursor_has(&cursor, ETH_HLEN + IPV4_BYTES))
		return -1;
	if (!(frame->flags & FRAME_IPV6))
		ipv4_decrement_ttl(cursor.at + ETH_HLEN);
	store_macs(cursor.at, mac_in_packet_order(mac), node->router_mac);
	return 0;
}

#endif
