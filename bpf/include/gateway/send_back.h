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
	struct cursor cursor = cursor_at(ctx, 0);
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
	if (packet->ipv6) {
		if (!(node->flags & NODE_HAS_IPV6))
			return drop(packet->vni, DROP_no_vtep_address);
		if (!cursor_has(&cursor, TUNNEL6_BYTES))
			return drop(packet->vni, DROP_headroom);
		write_outer6(&cursor, &outer);
		write_vxlan(&cursor, &outer);
		if (store_udp6_checksum(ctx, &outer))
			return drop(packet->vni, DROP_headroom);
		return XDP_TX;
	}
	if (!(node->flags & NODE_HAS_IPV4))
		return drop(packet->vni, DROP_no_vtep_address);
	if (!cursor_has(&cursor, TUNNEL4_BYTES))
		return drop(packet->vni, DROP_headroom);
	write_outer4(&cursor, &outer);
	write_vxlan(&cursor, &outer);
	return XDP_TX;
}

#endif
