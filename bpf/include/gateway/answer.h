/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: what it says to tenants itself, inside the tunnel that the question
 * came by: ICMP errors, ARP replies, neighbour advertisements.
 */
#ifndef SLUICE_ANSWER_H
#define SLUICE_ANSWER_H

#include "common/arp.h"
#include "common/icmp_error.h"
#include "common/neighbor_discovery.h"
#include "gateway/cgw.h"
#include "gateway/send_back.h"

static __always_inline __u32 tunnel_bytes(const struct packet *packet)
{
	return packet->ipv6 ? TUNNEL6_BYTES : TUNNEL4_BYTES;
}

/* Cuts or extends the packet to `bytes`. */
static __always_inline int resize(struct xdp_md *ctx, __u32 bytes)
{
	int delta = (int)bytes - (int)bpf_xdp_get_buff_len(ctx);

	return delta ? (int)bpf_xdp_adjust_tail(ctx, delta) : 0;
}

/* The error that packet->error_type asks for, without its checksum's value. */
static __always_inline void describe_error(const struct packet *packet, const struct vrf *vrf,
					   const struct node_config *node, struct icmp_error *error)
{
	error->router4 = vrf->router4 ? bpf_ntohl(vrf->router4) : DUMMY_ROUTER4;
	error->router6[0] = load_half(vrf->router6);
	error->router6[1] = load_half(vrf->router6 + 8);
	if (!error->router6[0] && !error->router6[1]) {
		error->router6[0] = ROUTER6_HIGH;
		error->router6[1] = ROUTER6_LOW;
	}
	error->router_mac = load_mac(node->router_mac);
	error->quoted = icmp_quoted(&packet->frame);
	error->type = packet->error_type;
	error->code = error->type == ICMP4_UNREACHABLE && !(packet->frame.flags & FRAME_IPV6)
			      ? ICMP4_NEEDS_FRAGMENTATION
			      : 0;
	error->mtu = packet->error_mtu;
}

/* Writes the error, with its checksum, `at` bytes into the packet. */
static __always_inline int write_error(struct xdp_md *ctx, const struct frame *about, __u32 at,
				       const struct icmp_error *error)
{
	int ipv6 = about->flags & FRAME_IPV6;
	__u32 headers = ETH_HLEN + (ipv6 ? IPV6_BYTES : IPV4_BYTES);
	void *start = (void *)(long)ctx->data + at, *end = (void *)(long)ctx->data_end;
	__u64 sum;

	if (start + headers + ICMP_BYTES > end)
		return DROP_headroom;
	if (ipv6) {
		if (start + ETH_HLEN + ICMP6_ERROR_BYTES > end)
			return DROP_headroom;
		write_icmp6_error(start, about, error);
	} else {
		write_icmp4_error(start, about, error);
	}
	sum = packet_sum(ctx, at + headers, ICMP_BYTES + error->quoted);
	if (sum == SUM_FAILED)
		return DROP_headroom;
	STORE16(start + headers + 2, icmp_error_checksum(about, error, sum));
	return DROP_none;
}

/*
 * Drops the packet for `reason` and tells its sender by ICMP, if it may be told.
 * An error that is over the rate is counted as a drop of its own.
 */
__attribute__((noinline)) int refuse(struct xdp_md *ctx, struct packet *packet, __u32 reason)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct icmp_error error = {};
	__u32 added, at;
	struct vrf *vrf;

	if (!packet)
		return XDP_DROP;
	count_drop(packet->vni, reason);
	vrf = vrf_at(packet->vrf, packet->vni);
	if (!vrf || !node || !icmp_error_allowed(&packet->frame))
		return XDP_DROP;
	if (!icmp_within_budget(packet->counters))
		return drop(packet->vni, DROP_icmp_rate);
	describe_error(packet, vrf, node, &error);
	added = packet->frame.flags & FRAME_IPV6 ? ICMP6_ERROR_BYTES : ICMP4_ERROR_BYTES;
	at = tunnel_bytes(packet);
	/* The tail first: the shorter the packet, the surer there is room in front. */
	if (resize(ctx, at + ETH_HLEN + error.quoted) || bpf_xdp_adjust_head(ctx, -(int)added))
		return drop(packet->vni, DROP_headroom);
	if (write_error(ctx, &packet->frame, at, &error))
		return drop(packet->vni, DROP_headroom);
	return reflect(ctx, packet, ETH_HLEN + added + error.quoted);
}

/*
 * The MAC address at which a tenant's address is found: the router's or the
 * endpoint's. DROP_multicast if it is the asker's own: a probe for its own
 * address must stay without an answer.
 */
static __always_inline int find_neighbour(const struct packet *packet, const __u64 *address, __u64 *mac,
					  __u32 *router)
{
	const struct node_config *node = cell_at(CELL_NODE);
	const struct vrf *vrf = vrf_at(packet->vrf, packet->vni);
	struct exact_hit hit = {};
	int reason, ours;

	if (!node || !vrf)
		return DROP_stale_index;
	if (packet->frame.flags & FRAME_IPV6)
		ours = ((address[0] || address[1]) && load_half(vrf->router6) == address[0] &&
			load_half(vrf->router6 + 8) == address[1]) ||
		       (address[0] == ROUTER6_HIGH && address[1] == ROUTER6_LOW);
	else
		ours = vrf->router4 && bpf_ntohl(vrf->router4) == address[1];
	if (ours) {
		*mac = load_mac(node->router_mac);
		*router = ND_ROUTER;
		return DROP_none;
	}
	reason = find_endpoint(packet->vni, &packet->frame, address, &hit);
	if (reason)
		return reason;
	*mac = hit.mac;
	return hit.mac == packet->frame.source_mac ? DROP_multicast : DROP_none;
}

/* Answers an ARP request of a tenant. */
__attribute__((noinline)) int answer_arp(struct xdp_md *ctx, struct packet *packet)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct arp_question arp = {};
	__u64 target[2] = {}, mac = 0;
	__u32 router = 0;
	void *start;
	int reason;

	if (!packet)
		return XDP_DROP;
	start = data + tunnel_bytes(packet);
	if (start + ETH_HLEN + ARP_BYTES > end)
		return drop(packet->vni, DROP_inner_truncated);
	reason = parse_arp(start, &packet->frame, &arp);
	if (!reason && arp.operation != ARP_REQUEST)
		reason = DROP_multicast;
	target[1] = arp.target;
	if (!reason)
		reason = find_neighbour(packet, target, &mac, &router);
	if (reason)
		return drop(packet->vni, reason);
	write_arp_reply(start, &arp, mac);
	return reflect(ctx, packet, packet->frame_bytes);
}

/* Answers a tenant's neighbour solicitation; what else there is of ND goes no further. */
__attribute__((noinline)) int answer_nd(struct xdp_md *ctx, struct packet *packet)
{
	__u64 target[2] = {}, mac = 0;
	__u32 at, type, router = 0;
	void *start;
	int reason;

	if (!packet)
		return XDP_DROP;
	type = packet->frame.transport >> 24;
	if (type == ICMP6_ROUTER_ADVERT || type == ICMP6_REDIRECT)
		return drop(packet->vni, DROP_forged_control);
	if (type != ICMP6_SOLICIT)
		return drop(packet->vni, DROP_multicast);
	at = tunnel_bytes(packet);
	reason = parse_solicit(ctx, at, &packet->frame, target);
	if (!reason)
		reason = find_neighbour(packet, target, &mac, &router);
	if (reason)
		return drop(packet->vni, reason);
	if (resize(ctx, at + ND_ADVERT_FRAME))
		return drop(packet->vni, DROP_headroom);
	start = (void *)(long)ctx->data + at;
	if (start + ND_ADVERT_FRAME > (void *)(long)ctx->data_end)
		return drop(packet->vni, DROP_headroom);
	write_advert(start, &packet->frame, target, mac, router);
	return reflect(ctx, packet, ND_ADVERT_FRAME);
}

#endif
