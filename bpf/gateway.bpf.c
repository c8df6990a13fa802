/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The gateway: `gateway` is XDP on the underlay interfaces, `internet` on those that lead to the Internet. In the
 * first, most packets take the fast path (fast_path.h). All others take
 * the general path, which does the same with the packets of the fast path, in more time. Its stages are
 *
 *   parse (parse_underlay.h, parse.h) -> classify, route (cgw.h, sender.h) -> forward (forward.h, output.h)
 *                                                                          -> count (flow_accounting.h)
 *                                                                       -> to the Internet (internet_out.h, nat_stage.h, nat_ring.h)
 *
 * Tenants are answered by answer_tenant.h, the underlay by answer_underlay.h. What comes from the Internet is
 * described in internet_in.h.
 *
 * Verdicts: XDP_TX or XDP_REDIRECT for packets that are forwarded or answered, XDP_PASS for packets
 * that belong to the kernel, XDP_DROP for packets that the map `drops` counts.
 */
#define PROGRAM_XDP

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "common/nat_maps.h"
#include "common/parse.h"
#include "gateway/answer_tenant.h"
#include "gateway/cgw.h"
#include "gateway/fast_path.h"
#include "gateway/flow_accounting.h"
#include "gateway/forward.h"
#include "gateway/internet_in.h"
#include "gateway/internet_out.h"
#include "gateway/answer_underlay.h"
#include "gateway/nat_copy.h"
#include "gateway/nat_ring.h"
#include "gateway/nat_stage.h"
#include "gateway/parse_underlay.h"
#include "gateway/sender.h"

/* A packet of another gateway, which passes on to this one only what its VPC sends to the Internet. */
static __always_inline int passed_on(struct packet *packet)
{
	if (packet->frame.ethertype == ETH_P_ARP || is_nd(&packet->frame) || route(packet) ||
	    !packet->to_internet)
		return drop(packet->vni, DROP_foreign_sender);
	return FOR_INTERNET;
}

/* A function, so that the fast path does not save and restore its registers. */
__attribute__((noinline)) int forward_generally(struct xdp_md *ctx)
{
	struct packet *packet = packet_begin();
	enum drop_reason reason;

	if (!packet)
		return drop(0, DROP_stale_index);
	reason = parse_underlay(ctx, packet);
	if (reason)
		return drop(0, reason);
	if (!packet->is_tunnel)
		return FOR_UNDERLAY;
	if (!packet->vni)
		return FOR_PASSED_ON;
	reason = classify(packet);
	if (reason)
		return drop(0, reason);
	reason = check_sender(packet);
	if (reason)
		return drop(reason == DROP_unknown_vtep ? 0 : packet->vni, reason);
	/* Hosts have no records of the ring. */
	if (packet->ring && !(packet->nat & PACKET_FROM_GATEWAY))
		return drop(0, DROP_vxlan_flags);
	reason = parse_frame(ctx, tunnel_bytes(packet), packet->frame_bytes, &packet->frame);
	if (reason)
		return drop(packet->vni, reason);
	if (packet->nat & PACKET_FROM_GATEWAY)
		return passed_on(packet);
	if (packet->frame.ethertype == ETH_P_ARP)
		return answer_arp(ctx, packet);
	if (is_nd(&packet->frame))
		return answer_nd(ctx, packet);
	reason = route(packet);
	if (!reason) {
		if (packet->to_internet)
			return FOR_INTERNET;
		coarse_now(packet);
		reason = forward_to_host(ctx, packet);
	}
	if (reason)
		return packet->error_type ? drop_with_error(ctx, packet, reason) : drop(packet->vni, reason);
	if (packet->verdict == XDP_TX || packet->verdict == XDP_REDIRECT)
		count_flow(packet);
	return packet->verdict;
}

/* Finds the new source of a packet: by its session, which may be new, or by the record with which another gateway sent it. */
static __always_inline int find_new_source(struct xdp_md *ctx, struct packet *packet)
{
	int verdict;

	if (packet->ring)
		return take_nat_copy(ctx, packet, tunnel_bytes(packet));
	verdict = nat_source(ctx, packet, tunnel_bytes(packet));
	if (!verdict && packet->nat & PACKET_NAT_SOURCE)
		enter_nat_ring(packet);
	return verdict;
}

/* Forwards a packet to an inside address of IPv6, which has passed prepare_nat64(). */
static __always_inline int into_vpc64(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	enum drop_reason reason;

	if (!packet)
		return drop(0, DROP_stale_index);
	reason = nat64_in(ctx, packet, at);
	if (!reason)
		reason = deliver_inside(ctx, packet, at);
	return reason ? drop(packet->vni, reason) : (int)packet->verdict;
}

/* Sends a packet of NAT64 that has passed all checks as one of IPv4. */
static __always_inline int out_of_vpc64(struct xdp_md *ctx, struct packet *packet)
{
	enum drop_reason reason = nat64_out(ctx, packet, tunnel_bytes(packet));

	return reason ? drop(packet->vni, reason) : leave_as_ipv4(ctx, packet);
}

/* Forwards a packet to a public address, which was admitted with this result. */
static __always_inline int into_vpc(struct xdp_md *ctx, struct packet *packet, int verdict)
{
	if (verdict == FOR_NAT_DESTINATION) {
		verdict = nat_destination(ctx, packet, 0);
		if (!verdict)
			verdict = FOR_VPC;
	}
	if (verdict == FOR_VPC)
		verdict = enter_vpc(ctx, packet);
	return verdict == FOR_NAT64_IN ? into_vpc64(ctx, packet, 0) : verdict;
}

/* The same for a packet that has no tunnel, which may have to go to another gateway. */
static __always_inline int from_outside(struct xdp_md *ctx, struct packet *packet, int verdict)
{
	return verdict == FOR_OWNER ? pass_on(ctx, packet, 0) : into_vpc(ctx, packet, verdict);
}

/* Each translation of source NAT is followed by another attempt to send the packet. */
static __always_inline int to_internet(struct xdp_md *ctx, struct packet *packet)
{
	int verdict;

	if (!packet)
		return drop(0, DROP_stale_index);
	verdict = send_to_internet(ctx, packet);
	if (verdict == FOR_NAT_SOURCE) {
		verdict = find_new_source(ctx, packet);
		if (!verdict)
			verdict = send_to_internet(ctx, packet);
	}
	if (verdict == FOR_NAT_DESTINATION) {
		verdict = nat_destination(ctx, packet, tunnel_bytes(packet));
		if (!verdict)
			verdict = send_to_internet(ctx, packet);
	}
	if (verdict == FOR_RING)
		return pass_around(ctx, packet);
	if (verdict == FOR_NAT64_IN)
		return into_vpc64(ctx, packet, tunnel_bytes(packet));
	if (verdict == FOR_NAT64_OUT)
		verdict = out_of_vpc64(ctx, packet);
	if (verdict == FOR_TURNED)
		return from_outside(ctx, packet, turn_over(ctx, packet));
	if (verdict == FOR_OWNER)
		return pass_on(ctx, packet, tunnel_bytes(packet));
	/* Tables that changed between two attempts may ask for one more translation. */
	return verdict > XDP_REDIRECT ? drop(packet->vni, DROP_stale_index) : verdict;
}

static __always_inline int general_path(struct xdp_md *ctx)
{
	int verdict = forward_generally(ctx);

	if (verdict == FOR_INTERNET)
		return to_internet(ctx, packet_memory());
	if (verdict == FOR_PASSED_ON)
		return into_vpc(ctx, packet_memory(), take_over(ctx, packet_memory()));
	return verdict == FOR_UNDERLAY ? answer_underlay(ctx, packet_memory()) : verdict;
}

/* gateway_general.bpf.c and the stages of bench/spine are compiled without one of the paths. */
SEC("xdp.frags")
int gateway(struct xdp_md *ctx)
{
#ifndef WITHOUT_FAST_PATH
	int verdict = forward_fast(ctx);

	if (verdict & FAST_UNSKIPPED)
		count_unskipped(packet_memory());
	if (verdict != FAST_NONE)
		return verdict & ~FAST_UNSKIPPED;
#endif
#ifdef WITHOUT_GENERAL_PATH
	return XDP_DROP;
#else
	return general_path(ctx);
#endif
}

/* On the Internet ports. */
SEC("xdp.frags")
int internet(struct xdp_md *ctx)
{
	struct packet *packet = packet_begin();
	return from_outside(ctx, packet, internet_in(ctx, packet));
}

char LICENSE[] SEC("license") = "GPL";
