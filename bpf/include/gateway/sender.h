/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "classify": whether the node that sent a VXLAN packet may send in its VNI. A host sends only
 * in the VPCs of its instances, and for a moment after the last one has left (cells.h, EXACT_INDEX). Another gateway sends
 * only what it passes on to the owner of a NAT gateway's vIP, in all VPCs.
 *
 * Contract: expects vni, ipv6, outer_source and the frame's identity, which is removed if no vSwitch vouches for it. Returns
 * DROP_none or the reason to drop: foreign_sender for a known node, unknown_vtep for all others. PACKET_FROM_GATEWAY is set in
 * `nat` of a packet of a gateway: the caller drops it as foreign_sender unless it goes to the Internet. One lookup for packets
 * of hosts that are accepted. Reads only the map `cells`.
 */
#ifndef SLUICE_SENDER_H
#define SLUICE_SENDER_H

#include "common/lookup.h"
#include "gateway/packet.h"

/* Whether the node has this IPv4 address. */
static __always_inline int is_node4(const struct next_hop *node, __be32 address)
{
	return !(READ_ONCE(node->flags) & NEXT_HOP_IPV6) && LOAD32(node->address) == address;
}

/* Whether the node has sent the packet. */
static __always_inline int is_from(const struct packet *packet, const struct next_hop *node)
{
	if (!packet->ipv6)
		return is_node4(node, bpf_htonl(packet->outer_source[1]));
	return READ_ONCE(node->flags) & NEXT_HOP_IPV6 &&
	       load_half(node->address) == packet->outer_source[0] &&
	       load_half(node->address + 8) == packet->outer_source[1];
}

/* The cell of the node that sent the packet. 0: the tables have no such node; INDEX_BUSY: as EXACT_BUSY. */
__attribute__((noinline)) __u32 find_node(struct packet *packet)
{
	struct exact_hit hit = {};
	enum exact_answer answer;

	if (!packet)
		return 0;
	if (packet->ipv6)
		answer = find_ipv6(0, packet->outer_source[0], packet->outer_source[1], &hit);
	else
		answer = find_ipv4(0, packet->outer_source[1], &hit);
	if (answer == EXACT_BUSY)
		return INDEX_BUSY;
	return answer == EXACT_HIT && next_hop_at(hit.next, NEXT_HOP_VTEP) ? hit.next : 0;
}

/* Judges the sender of a packet that has no instance of the VNI: it may be another gateway. */
static __always_inline enum drop_reason check_gateway(struct packet *packet)
{
	__u32 cell = find_node(packet);
	const struct next_hop *node;

	if (cell == INDEX_BUSY)
		return DROP_table_busy;
	node = cell ? next_hop_at(cell, NEXT_HOP_VTEP) : NULL;
	if (!node)
		return DROP_unknown_vtep;
	if (READ_ONCE(node->flags) & NEXT_HOP_HOST)
		return DROP_foreign_sender;
	packet->frame.identity = 0;
	packet->nat |= PACKET_FROM_GATEWAY;
	return DROP_none;
}

/*
 * Removes the identity unless the sender's host, which is probably in the cell, runs a vSwitch, which vouches for it.
 * DROP_table_busy if it is unknown who has sent the packet: without its identity, the packet would be judged as of another
 * sender.
 */
static __always_inline enum drop_reason check_identity(struct packet *packet, __u32 cell)
{
	const struct next_hop *node = next_hop_at(cell, NEXT_HOP_VTEP);

	if (!node || !is_from(packet, node)) {
		cell = find_node(packet);
		if (cell == INDEX_BUSY)
			return DROP_table_busy;
		node = next_hop_at(cell, NEXT_HOP_VTEP);
	}
	if (!node || READ_ONCE(node->flags) & NEXT_HOP_FOREIGN)
		packet->frame.identity = 0;
	return DROP_none;
}

static __always_inline enum drop_reason check_sender(struct packet *packet)
{
	struct exact_sender sender = {};

	switch (find_sender(packet->vni, packet->ipv6, packet->outer_source[0], packet->outer_source[1],
			    &sender)) {
	case EXACT_HIT:
		return packet->frame.identity ? check_identity(packet, sender.hop) : DROP_none;
	case EXACT_BUSY:
		return DROP_table_busy;
	default:
		return check_gateway(packet);
	}
}

#endif
