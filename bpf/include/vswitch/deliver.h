/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The last step: into a VM's port on this host. */
#ifndef SLUICE_DELIVER_H
#define SLUICE_DELIVER_H

#include "vswitch/port.h"

/* The port that the exact match `found` and `hit` of a VNI lead to; NULL with the reason why not. */
static __always_inline const struct port *local_port(int found, const struct exact_hit *hit,
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
	 * The frame enters the VM's stack without passing its interface, which
	 * would have seen that the frame is its own.
	 */
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(port->ifindex, 0);
}

/*
 * What a router does to a frame: one hop less, from the router's MAC to the
 * instance's. Only bytes are stored, so that packets of any size and state of
 * offload stay what they are. TTL is at least 2.
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
		/* Nothing in the packet makes up for the changed byte, as IPv4's checksum does. */
		failed = bpf_skb_store_bytes(skb, ETH_HLEN + 7, &ttl, 1, BPF_F_RECOMPUTE_CSUM);
	} else {
		failed = bpf_l3_csum_replace(skb, ETH_HLEN + 10, bpf_htons(frame->ttl << 8),
					     bpf_htons(ttl << 8), 2);
		failed |= bpf_skb_store_bytes(skb, ETH_HLEN + 8, &ttl, 1, 0);
	}
	return failed | bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
}

#endif
