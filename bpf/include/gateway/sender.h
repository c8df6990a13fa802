/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "classify": whether the node that sent a VXLAN packet may send in its VNI. A host sends only
 * in the VPCs of its instances, and for a moment after the last one has left (cells.h, EXACT_INDEX).
 *
 * Contract: expects vni, ipv6 and outer_source. Returns DROP_none or the reason to drop: foreign_sender for a
 * known node, unknown_vtep for all others. One lookup for packets that are accepted. Reads only the map
 * `cells`.
 */
#ifndef SLUICE_SENDER_H
#define SLUICE_SENDER_H

#include "common/lookup.h"
#include "gateway/packet.h"

/* Why a packet was refused: whether its sender is a node in the tables. */
__attribute__((noinline)) enum drop_reason refused_sender(struct packet *packet)
{
	struct exact_hit hit = {};
	enum exact_answer answer;

	if (!packet)
		return DROP_stale_index;
	if (packet->ipv6)
		answer = find_ipv6(0, packet->outer_source[0], packet->outer_source[1], &hit);
	else
		answer = find_ipv4(0, packet->outer_source[1], &hit);
	if (answer == EXACT_BUSY)
		return DROP_table_busy;
	return answer == EXACT_HIT && next_hop_at(hit.next, NEXT_HOP_VTEP) ? DROP_foreign_sender
									   : DROP_unknown_vtep;
}

static __always_inline enum drop_reason check_sender(struct packet *packet)
{
	switch (find_sender(packet->vni, packet->ipv6, packet->outer_source[0], packet->outer_source[1],
			    NULL)) {
	case EXACT_HIT:
		return DROP_none;
	case EXACT_BUSY:
		return DROP_table_busy;
	default:
		return refused_sender(packet);
	}
}

#endif
