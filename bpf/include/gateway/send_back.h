/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Sends a packet back where it came from. */
#ifndef SLUICE_SEND_BACK_H
#define SLUICE_SEND_BACK_H

#include "gateway/encapsulate.h"
#include "gateway/output.h"
#include "gateway/packet.h"

/*
 * Sends the packet, which has room for the outer headers of its own family in
 * front, back where it came from, with this node as sender.
 */
static __always_inline int reflect(struct xdp_md *ctx, const struct packet *packet, __u32 frame_bytes)
{
	const struct node_config *node = cell_at(CELL_NODE);
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct underlay_port *port = underlay_port_at(underlay_port_index(ctx->ingress_ifindex));
	struct outer outer = {
		.node = node,
		.destination_mac = packet->outer_source_mac,
		.destination = { packet->outer_source[0], packet->outer_source[1] },
		.vni = packet->vni,
		.hash = frame_hash(&packet->frame),
		.udp_bytes = UDP_BYTES + VXLAN_BYTES + frame_bytes,
	};

	if (!node || !port)
		return drop(packet->vni, DROP_stale_index);
	outer.source_mac = underlay_port_mac(port);
	if (packet->ipv6) {
		if (!(node->flags & NODE_HAS_IPV6))
			return drop(packet->vni, DROP_no_vtep_address);
		if (data + TUNNEL6_BYTES > end)
			return drop(packet->vni, DROP_headroom);
		write_outer6(data, &outer);
		write_vxlan(data + ETH_HLEN + IPV6_BYTES, &outer);
		if (seal_udp6(ctx, &outer))
			return drop(packet->vni, DROP_headroom);
		return XDP_TX;
	}
	if (!(node->flags & NODE_HAS_IPV4))
		return drop(packet->vni, DROP_no_vtep_address);
	if (data + TUNNEL4_BYTES > end)
		return drop(packet->vni, DROP_headroom);
	write_outer4(data, &outer);
	write_vxlan(data + ETH_HLEN + IPV4_BYTES, &outer);
	return XDP_TX;
}

#endif
