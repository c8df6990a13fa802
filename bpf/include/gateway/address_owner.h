/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Who an underlay address belongs to. */
#ifndef SLUICE_ADDRESS_OWNER_H
#define SLUICE_ADDRESS_OWNER_H

#include "common/lookup.h"
#include "gateway/underlay_port.h"

/* Who an underlay address belongs to. */
enum owner { OWNER_OTHER, OWNER_VTEP, OWNER_VIP, OWNER_VIP_OWNED, OWNER_BUSY };

/*
 * Whether a vIP's entry takes a frame sent to `mac`: its own vMAC, or the MAC of
 * the port it came in by. Others are what a switch floods; a second gateway
 * that sees them must not forward them too.
 */
static __always_inline enum owner vip_owner(__u32 cell, __u64 mac, __u32 ifindex)
{
	struct next_hop *hop = next_hop_at(cell, NEXT_HOP_VIP);
	struct underlay_port *port;

	if (!hop)
		return OWNER_OTHER;
	if (load_mac(hop->mac) != mac) {
		port = underlay_port_at(underlay_port_index(ifindex));
		if (!port || port->ifindex != ifindex || underlay_port_mac(port) != mac)
			return OWNER_OTHER;
	}
	return READ_ONCE(hop->flags) & NEXT_HOP_OWNED ? OWNER_VIP_OWNED : OWNER_VIP;
}

static __always_inline enum owner owner_of4(__u32 address, __u64 mac, __u32 ifindex)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct exact_hit hit = {};
	int answer;

	if (node && node->flags & NODE_HAS_IPV4 && bpf_ntohl(node->vtep4) == address)
		return OWNER_VTEP;
	answer = find_ipv4(0, address, &hit);
	if (answer == EXACT_BUSY)
		return OWNER_BUSY;
	return answer == EXACT_HIT ? vip_owner(hit.next, mac, ifindex) : OWNER_OTHER;
}

static __always_inline enum owner owner_of6(__u64 high, __u64 low, __u64 mac, __u32 ifindex)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct exact_hit hit = {};
	int answer;

	if (node && node->flags & NODE_HAS_IPV6 && load_half(node->vtep6) == high &&
	    load_half(node->vtep6 + 8) == low)
		return OWNER_VTEP;
	answer = find_ipv6(0, high, low, &hit);
	if (answer == EXACT_BUSY)
		return OWNER_BUSY;
	return answer == EXACT_HIT ? vip_owner(hit.next, mac, ifindex) : OWNER_OTHER;
}

#endif
