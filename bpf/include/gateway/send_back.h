/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: sends an answer to the node that the question came from.
 *
 * Contract: the packet is a tenant's frame of `frame_bytes`, with room for outer headers of its own
 * family in front, which are overwritten; outer_source, outer_source_mac, vni, ipv6 and frame are
 * filled in. Returns the program's verdict: XDP_TX, or a counted drop. Uses the maps `cells`,
 * `sum_chunks` and those of count.h.
 */
#ifndef SLUICE_SEND_BACK_H
#define SLUICE_SEND_BACK_H

#include "common/encapsulate.h"
#include "gateway/output.h"
#include "gateway/packet.h"

static __always_inline int send_back(struct xdp_md *ctx, const struct packet *packet, __u32 frame_bytes)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct underlay_port *port = ingress_port(ctx);
	struct outer outer = {
		.node = node,
		.destination_mac = packet->outer_source_mac,
		.destination = { packet->outer_source[0], packet->outer_source[1] },
		.vni = packet->vni,
		.hash = frame_hash(&packet->frame),
		.udp_bytes = TUNNEL_BYTES + frame_bytes,
	};

	if (!node || !port)
		return drop(packet->vni, DROP_stale_index);
	outer.source_mac = underlay_port_mac(port);
	if (!(node->flags & (packet->ipv6 ? NODE_HAS_IPV6 : NODE_HAS_IPV4)))
		return drop(packet->vni, DROP_no_vtep_address);
	return write_tunnel(ctx, &outer, packet->ipv6) ? drop(packet->vni, DROP_headroom) : XDP_TX;
}

#endif
