/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: sends a packet to a public address to the host of the instance behind it, or with PACKET_TO_OWNER to
 * the owner of the vIP in next_hop. That one gets the frame as it is but for a new source and a smaller MSS, and translates the
 * destination.
 *
 * Contract: expects a packet for which find_inside() (public.h) returned DROP_none, or with PACKET_TO_OWNER one
 * of pass_on() (internet_in.h), which fills in next_hop, final_vni, mtu and new_destination itself. The frame begins `at` bytes into
 * the packet: 0 for a packet from the Internet, the length of the outer headers for one of a VM. Fields as for
 * translate() (translate.h); `longest` is further reduced to what the way to the host carries. DROP_none: the packet was
 * translated and encapsulated, and counted in `vni_traffic` unless its owner counts it, and `verdict` is what the program
 * returns. Otherwise the reason to drop, with error_type and error_mtu set if the sender gets an ICMP error; the packet is then
 * unchanged. Where there is no error, translate() or DROP_headroom may have left it half changed. With PACKET_NAT64, prepare_nat64() and
 * nat64_in() (nat64.h) come before: the program calls them, because the functions need the stack. Uses the maps `cells`,
 * `meters`, `vni_traffic` and `sum_chunks`.
 */
#ifndef SLUICE_DELIVER_INSIDE_H
#define SLUICE_DELIVER_INSIDE_H

#include "gateway/forward.h"
#include "gateway/meter_stage.h"
#include "gateway/nat64.h"

/* Writes the outer headers in front of the frame, where there were `at` bytes of others. */
static __always_inline enum drop_reason encapsulate(struct xdp_md *ctx, const struct outer *outer, int ipv6,
						    __u32 at)
{
	int grow = (ipv6 ? TUNNEL6_BYTES : TUNNEL4_BYTES) - (int)at;

	if (grow && bpf_xdp_adjust_head(ctx, -grow))
		return DROP_headroom;
	return write_tunnel(ctx, outer, ipv6);
}

/*
 * Checks that the packet fits the way to its host when it has become one of IPv6, of which frame_bytes and longest say the length then.
 * Results as those of deliver_inside(); with DROP_none, the verdict is FOR_NAT64_IN.
 */
__attribute__((noinline)) enum drop_reason prepare_nat64(struct xdp_md *ctx, struct packet *packet)
{
	struct path path = {};
	enum drop_reason reason;
	__u32 growth;

	if (!packet)
		return DROP_stale_index;
	growth = nat64_growth(&packet->frame);
	packet->frame_bytes += growth;
	packet->longest += NAT64_BYTES;
	packet->verdict = FOR_NAT64_IN;
	reason = find_path(ctx, packet, cell_at(CELL_NODE), &path);
	/* What the sender may send is shorter. */
	if (reason && packet->error_mtu)
		packet->error_mtu -= growth;
	return reason;
}

__attribute__((noinline)) enum drop_reason deliver_inside(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct path path = {};
	struct outer outer = {};
	enum drop_reason reason;
	struct cursor cursor;

	if (!packet || at > TUNNEL6_BYTES)
		return DROP_stale_index;
	reason = find_path(ctx, packet, node, &path);
	if (reason)
		return reason;
	if (path.mtu < packet->longest)
		packet->longest = path.mtu;
	reason = translate(ctx, packet, at);
	/* A packet of a VM is also an outgoing one. The owner has metered one of the ring. */
	if (!reason && at && !packet->ring)
		reason = meter_packet(packet, METER_OUT);
	if (!reason && !(packet->nat & PACKET_TO_OWNER))
		reason = meter_packet(packet, METER_IN);
	if (reason)
		return reason;
	cursor = cursor_at(ctx, at);
	if (!cursor_has(&cursor, ETH_HLEN + IPV4_BYTES))
		return DROP_headroom;
	if (!(packet->nat & PACKET_TO_OWNER))
		rewrite_frame(&cursor, packet, load_mac(node->router_mac));
	describe_outer(packet, node, &path, &outer);
	reason = encapsulate(ctx, &outer, path.ipv6, at);
	if (reason)
		return reason;
	if (!(packet->nat & PACKET_TO_OWNER))
		count_traffic(packet->counters, packet->frame_bytes);
	packet->verdict = send_by(ctx, path.port->ifindex);
	return DROP_none;
}

#endif
