/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: whether an underlay address is this node's VTEP, a vIP of its cluster, or neither.
 *
 * Contract: the caller gives the destination addresses, IP and MAC, of a packet. The packet is neither
 * read nor changed. Reads only the map `cells`.
 */
#ifndef SLUICE_ADDRESS_OWNER_H
#define SLUICE_ADDRESS_OWNER_H

#include "common/lookup.h"
#include "common/underlay_port.h"

enum owner {
	OWNER_OTHER,	 /* not an address of this cluster, or not a frame for this node */
	OWNER_VTEP,	 /* this node's own address */
	OWNER_VIP,	 /* a vIP that another gateway owns */
	OWNER_VIP_OWNED, /* a vIP that this node owns */
	OWNER_BUSY,	 /* the table was being changed */
};

/*
 * Whether the underlay port with this ifindex has this MAC address. A function, so that callers have less
 * stack.
 */
__attribute__((noinline)) int is_port_mac(__u32 ifindex, __u64 mac)
{
	const struct underlay_port *port = underlay_port_at(underlay_port_index(ifindex));

	return port && port->ifindex == ifindex && underlay_port_mac(port) == mac;
}

/*
 * The owner of the vIP whose next hop is in this cell. A frame is for this node if it was sent to the
 * vMAC, or to the MAC address of the port that received it. Others reach this node because a switch
 * floods them: if a second gateway forwarded them too, packets would be doubled.
 */
static __always_inline enum owner vip_owner(struct xdp_md *ctx, __u32 cell, __u64 mac)
{
	struct next_hop *hop = next_hop_at(cell, NEXT_HOP_VIP);

	if (!hop || (load_mac(hop->mac) != mac && !is_port_mac(ctx->ingress_ifindex, mac)))
		return OWNER_OTHER;
	return READ_ONCE(hop->flags) & NEXT_HOP_OWNED ? OWNER_VIP_OWNED : OWNER_VIP;
}

/* `address` is in host order. */
static __always_inline enum owner owner_of4(struct xdp_md *ctx, __u32 address, __u64 mac)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct exact_hit hit = {};
	enum exact_answer answer;

	if (node && node->flags & NODE_HAS_IPV4 && bpf_ntohl(node->vtep4) == address)
		return OWNER_VTEP;
	answer = find_ipv4(0, address, &hit);
	if (answer == EXACT_BUSY)
		return OWNER_BUSY;
	return answer == EXACT_HIT ? vip_owner(ctx, hit.next, mac) : OWNER_OTHER;
}

/* `address` is halves in host order. */
static __always_inline enum owner owner_of6(struct xdp_md *ctx, const __u64 *address, __u64 mac)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct exact_hit hit = {};
	enum exact_answer answer;

	if (node && node->flags & NODE_HAS_IPV6 && load_half(node->vtep6) == address[0] &&
	    load_half(node->vtep6 + 8) == address[1])
		return OWNER_VTEP;
	answer = find_ipv6(0, address[0], address[1], &hit);
	if (answer == EXACT_BUSY)
		return OWNER_BUSY;
	return answer == EXACT_HIT ? vip_owner(ctx, hit.next, mac) : OWNER_OTHER;
}

#endif
