/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: answers of its own to tenants, in the tunnel that the question came from: ICMP errors, ARP
 * replies, neighbor advertisements.
 *
 * Contract: expects a packet that classify() (cgw.h) accepted, with the tenant's frame parsed. Each
 * function returns the program's verdict: the packet was turned into the answer and is sent back, or it
 * is dropped and counted. Uses the maps `cells`, `icmp_budget`,
 * `sum_chunks` and those of count.h.
 */
#ifndef SLUICE_ANSWER_TENANT_H
#define SLUICE_ANSWER_TENANT_H

#include "common/arp.h"
#include "common/icmp_error.h"
#include "common/neighbor_discovery.h"
#include "gateway/cgw.h"
#include "gateway/send_back.h"

/* Length of the outer headers: the offset of the tenant's frame. */
static __always_inline __u32 tunnel_bytes(const struct packet *packet)
{
	return packet->ipv6 ? TUNNEL6_BYTES : TUNNEL4_BYTES;
}

/* Cuts or extends the packet to `bytes`. 0, or negative if the kernel refused. */
static __always_inline int resize(struct xdp_md *ctx, __u32 bytes)
{
	int delta = (int)bytes - (int)context_bytes(ctx);

	return delta ? (int)bpf_xdp_adjust_tail(ctx, delta) : 0;
}

/* The error comes from the router of the VPC. */
static __always_inline void describe_router(const struct vrf *vrf, const struct node_config *node,
					    struct icmp_error *error)
{
	error->router4 = vrf->router4 ? bpf_ntohl(vrf->router4) : DUMMY_ROUTER4;
	load_halves(error->router6, vrf->router6);
	if (!error->router6[0] && !error->router6[1]) {
		error->router6[0] = ROUTER6_HIGH;
		error->router6[1] = ROUTER6_LOW;
	}
	error->router_mac = load_mac(node->router_mac);
}

/* Describes the error that packet->error_type asks for, but not from which router it comes. */
static __always_inline void describe_error(const struct packet *packet, struct icmp_error *error)
{
	error->quoted = icmp_quoted(&packet->frame);
	error->type = packet->error_type;
	if (error->type == ICMP4_UNREACHABLE && !(packet->frame.flags & FRAME_IPV6))
		error->code = ICMP4_NEEDS_FRAGMENTATION;
	error->mtu = packet->error_mtu;
}

/* Writes the error, with its checksum, `at` bytes into the packet. */
static __always_inline enum drop_reason write_error(struct xdp_md *ctx, const struct frame *about, __u32 at,
						    const struct icmp_error *error)
{
	int ipv6 = about->flags & FRAME_IPV6;
	__u32 icmp_at = at + ETH_HLEN + (ipv6 ? IPV6_BYTES : IPV4_BYTES);
	struct cursor cursor = cursor_at(ctx, at);
	struct icmp_header *icmp;
	__u64 sum;

	if (ipv6) {
		if (!cursor_has(&cursor, ETH_HLEN + ICMP6_ERROR_BYTES))
			return DROP_headroom;
		write_icmp6_error(&cursor, about, error);
	} else {
		if (!cursor_has(&cursor, ETH_HLEN + ICMP4_ERROR_BYTES))
			return DROP_headroom;
		write_icmp4_error(&cursor, about, error);
	}
	sum = packet_sum(ctx, icmp_at, ICMP_BYTES + error->quoted);
	cursor = cursor_at(ctx, icmp_at);
	icmp = take_header(&cursor, struct icmp_header);
	if (sum == SUM_FAILED || !icmp)
		return DROP_headroom;
	icmp->checksum = icmp_error_checksum(about, error, sum);
	return DROP_none;
}

/*
 * Turns the packet, whose frame is `at` bytes into it, into the error that error_type asks for, from the router in `error`.
 * Returns the length of its frame. 0: the kernel gave no room.
 */
static __always_inline __u32 turn_into_error(struct xdp_md *ctx, const struct packet *packet, __u32 at,
					     struct icmp_error *error)
{
	__u32 added = packet->frame.flags & FRAME_IPV6 ? ICMP6_ERROR_BYTES : ICMP4_ERROR_BYTES;

	describe_error(packet, error);
	/* The end is cut first: XDP allows more headroom to shorter packets. */
	if (resize(ctx, at + ETH_HLEN + error->quoted) || bpf_xdp_adjust_head(ctx, -(int)added) ||
	    write_error(ctx, &packet->frame, at, error))
		return 0;
	return ETH_HLEN + added + error->quoted;
}

/*
 * Counts the packet as dropped for `reason`, and turns it into the ICMP error that error_type asks for, if one is allowed. Returns
 * the length of the error's frame, in front of which is room for outer headers; 0: there is no error. An error beyond the rate
 * limit is counted as another drop.
 */
__attribute__((noinline)) __u32 drop_into_error(struct xdp_md *ctx, struct packet *packet, __u32 reason)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct icmp_error error = {};
	struct vrf *vrf;
	__u32 bytes;

	if (!packet)
		return 0;
	count_drop(packet->vni, reason);
	vrf = vrf_at(packet->vrf, packet->vni);
	if (!vrf || !node || !icmp_error_allowed(&packet->frame))
		return 0;
	if (!icmp_within_budget(&icmp_budget, packet->counters)) {
		count_drop(packet->vni, DROP_icmp_rate);
		return 0;
	}
	describe_router(vrf, node, &error);
	bytes = turn_into_error(ctx, packet, tunnel_bytes(packet), &error);
	if (!bytes)
		count_drop(packet->vni, DROP_headroom);
	return bytes;
}

/* Drops the packet for `reason`, and sends the error of drop_into_error() back. */
__attribute__((noinline)) int drop_with_error(struct xdp_md *ctx, struct packet *packet, __u32 reason)
{
	__u32 bytes = drop_into_error(ctx, packet, reason);

	return packet && bytes ? send_back(ctx, packet, bytes) : XDP_DROP;
}

/* The instance to which a prefix with the address is delegated. */
static __always_inline enum drop_reason find_delegate(const struct packet *packet, const struct vrf *vrf,
						      const __u64 *address, struct exact_hit *hit)
{
	__u32 leaf = find_leaf(vrf, packet->frame.flags, address);
	enum drop_reason reason;
	__u64 next_hop[2];
	__u8 ipv6;

	if (leaf >> LEAF_SCOPE_SHIFT != SCOPE_NEXT_HOP)
		return DROP_no_endpoint;
	reason = read_next_hop(leaf, packet->vni, next_hop, &ipv6);
	return reason ? reason : find_endpoint(packet->vni, ipv6, next_hop, hit);
}

/*
 * The MAC address at which an address of the VPC is found: the router's or the instance's. The router answers for
 * prefixes of the subnet that are delegated to instances, to which it then routes (proxy ARP, RFC 1027). `flags` is
 * set to ND_ROUTER for the router. DROP_multicast if the address is the asker's own: a probe of its own
 * address must not be answered.
 */
static __always_inline enum drop_reason find_neighbor(const struct packet *packet, const __u64 *address,
						      __u64 *mac, __u32 *flags)
{
	const struct node_config *node = cell_at(CELL_NODE);
	const struct vrf *vrf = vrf_at(packet->vrf, packet->vni);
	struct exact_hit hit = {};
	enum drop_reason reason;
	int is_router;

	if (!node || !vrf)
		return DROP_stale_index;
	if (packet->frame.flags & FRAME_IPV6)
		is_router = ((address[0] || address[1]) && load_half(vrf->router6) == address[0] &&
			     load_half(vrf->router6 + 8) == address[1]) ||
			    (address[0] == ROUTER6_HIGH && address[1] == ROUTER6_LOW);
	else
		is_router = vrf->router4 && bpf_ntohl(vrf->router4) == address[1];
	if (is_router) {
		*mac = load_mac(node->router_mac);
		*flags = ND_ROUTER;
		return DROP_none;
	}
	*mac = 0;
	reason = find_endpoint(packet->vni, packet->frame.flags & FRAME_IPV6, address, &hit);
	if (reason == DROP_no_endpoint) {
		*mac = load_mac(node->router_mac);
		reason = find_delegate(packet, vrf, address, &hit);
	}
	if (reason)
		return reason;
	if (hit.mac == packet->frame.source_mac)
		return DROP_multicast;
	if (!*mac)
		*mac = hit.mac;
	return DROP_none;
}

/* Answers a tenant's ARP request. */
__attribute__((noinline)) int answer_arp(struct xdp_md *ctx, struct packet *packet)
{
	struct ethernet_header *ethernet;
	struct arp_message question = {};
	struct arp_header *arp;
	__u64 target[2] = {}, mac = 0;
	enum drop_reason reason;
	struct cursor cursor;
	__u32 flags = 0;

	if (!packet)
		return XDP_DROP;
	cursor = cursor_at(ctx, tunnel_bytes(packet));
	if (!cursor_has(&cursor, ETH_HLEN + ARP_BYTES))
		return drop(packet->vni, DROP_inner_truncated);
	ethernet = next_header(&cursor, struct ethernet_header);
	arp = next_header(&cursor, struct arp_header);
	reason = parse_arp(arp, &packet->frame, &question);
	if (!reason && question.operation != ARP_REQUEST)
		reason = DROP_multicast;
	target[1] = question.target;
	if (!reason)
		reason = find_neighbor(packet, target, &mac, &flags);
	if (reason)
		return drop(packet->vni, reason);
	write_arp_reply(ethernet, arp, &question, mac);
	return send_back(ctx, packet, packet->frame_bytes);
}

/* Answers a tenant's neighbor solicitation. Other messages of neighbor discovery are dropped. */
__attribute__((noinline)) int answer_nd(struct xdp_md *ctx, struct packet *packet)
{
	__u64 target[2] = {}, mac = 0;
	enum drop_reason reason;
	struct cursor cursor;
	__u32 at, type, flags = 0;

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
		reason = find_neighbor(packet, target, &mac, &flags);
	if (reason)
		return drop(packet->vni, reason);
	if (resize(ctx, at + ND_ADVERT_FRAME))
		return drop(packet->vni, DROP_headroom);
	cursor = cursor_at(ctx, at);
	if (!cursor_has(&cursor, ND_ADVERT_FRAME))
		return drop(packet->vni, DROP_headroom);
	write_advert(&cursor, &packet->frame, target, mac, flags);
	return send_back(ctx, packet, ND_ADVERT_FRAME);
}

#endif
