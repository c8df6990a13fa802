/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: ICMP errors to the sender of a packet to the Internet. If another gateway has passed the packet on, the way back to the
 * sender is not the tunnel that it came by, but that to the sender's host.
 *
 * Contract: expects what answer_tenant.h does, and now_ns. drop_to_sender() counts the packet as dropped for `reason`, sends the
 * error that error_type asks for, if there is one, and returns the program's verdict. Uses the maps `cells`, `icmp_budget`,
 * `sum_chunks` and those of count.h.
 */
#ifndef SLUICE_ANSWER_SENDER_H
#define SLUICE_ANSWER_SENDER_H

#include "gateway/answer_tenant.h"
#include "gateway/forward.h"

/*
 * The cell of the host of the instance that sent the packet, also if a prefix with its source is delegated to that. 0: none. It may be
 * any member of a service that has the source: none then.
 */
__attribute__((noinline)) __u32 find_sender_host(struct packet *packet)
{
	struct exact_hit hit = {};
	enum drop_reason reason;
	const struct vrf *vrf;

	if (!packet)
		return 0;
	vrf = vrf_at(packet->vrf, packet->vni);
	if (!vrf)
		return 0;
	reason = find_endpoint(packet->vni, packet->frame.flags & FRAME_IPV6, packet->frame.source, &hit);
	if (reason == DROP_no_endpoint)
		reason = find_delegate(packet, vrf, packet->frame.source, &hit);
	return reason || service_at(hit.next) ? 0 : hit.next;
}

/* As drop_with_error(), for a packet that another gateway has passed on: the error goes to the sender's host. */
__attribute__((noinline)) int drop_passed_on(struct xdp_md *ctx, struct packet *packet, __u32 reason)
{
	__u32 bytes;

	if (!packet)
		return XDP_DROP;
	packet->next_hop = find_sender_host(packet);
	if (!packet->next_hop)
		return drop(packet->vni, reason);
	bytes = drop_into_error(ctx, packet, reason);
	if (!bytes)
		return XDP_DROP;
	packet->frame_bytes = bytes;
	packet->final_vni = packet->vni;
	packet->traffic_class = 0;
	packet->udp_checksum = 0;
	packet->nat = PACKET_FROM_GATEWAY;
	packet->routed = 0;
	reason = forward_to_host(ctx, packet);
	return reason ? drop(packet->vni, reason) : packet->verdict;
}

static __always_inline int drop_to_sender(struct xdp_md *ctx, struct packet *packet, enum drop_reason reason)
{
	if (!packet->error_type)
		return drop(packet->vni, reason);
	return packet->nat & PACKET_FROM_GATEWAY ? drop_passed_on(ctx, packet, reason)
						 : drop_with_error(ctx, packet, reason);
}

#endif
