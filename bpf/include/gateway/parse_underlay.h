/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "parse" of the underlay: Ethernet, IPv4 or IPv6, UDP, VXLAN;
 * who sent it and whether it is for this node. The tenant's frame follows by
 * parse.h.
 *
 * Contract: DROP_none, a reason to drop, or NOT_TUNNEL for what is no plain
 * VXLAN packet to this node (local.h decides about that). Nothing is changed.
 */
#ifndef SLUICE_PARSE_UNDERLAY_H
#define SLUICE_PARSE_UNDERLAY_H

#include "common/checksum.h"
#include "gateway/address_owner.h"
#include "gateway/packet.h"
#include "gateway/vxlan.h"

#define NOT_TUNNEL 255
/* True if the packet has less than `bytes`, by the frame's or all fragments' length. */
static __always_inline int shorter_than(struct xdp_md *ctx, const void *data, const void *end,
					__u32 bytes)
{
	return end - data < bytes && bpf_xdp_get_buff_len(ctx) < bytes;
}

/* UDP and VXLAN at `udp`, whose room the caller has checked; `bytes` by the IP header. */
static __always_inline int parse_vxlan(const void *udp, __u32 bytes, struct packet *packet)
{
	__u32 length = bpf_ntohs(LOAD16(udp + 4)), vni = bpf_ntohl(LOAD32(udp + 12));

	if (length != bytes || length < UDP_BYTES + VXLAN_BYTES)
		return DROP_outer_truncated;
	if (bpf_ntohl(LOAD32(udp + 8)) != VXLAN_FLAGS || vni & 0xff || !vni)
		return DROP_vxlan_flags;
	packet->udp_checksum = LOAD16(udp + 6);
	packet->frame_bytes = length - UDP_BYTES - VXLAN_BYTES;
	packet->vni = vni >> 8;
	return DROP_none;
}

/* The sender must be a node in the tables. */
static __always_inline int check_sender(const struct packet *packet)
{
	struct exact_hit hit = {};
	struct next_hop *hop;
	int answer;

	if (packet->ipv6)
		answer = find_ipv6(0, packet->outer_source[0], packet->outer_source[1], &hit);
	else
		answer = find_ipv4(0, packet->outer_source[1], &hit);
	if (answer == EXACT_BUSY)
		return DROP_table_busy;
	if (answer != EXACT_HIT)
		return DROP_unknown_vtep;
	hop = cell_at(hit.next);
	if (!hop)
		return DROP_stale_index;
	if (hop->kind == NEXT_HOP_VTEP)
		return DROP_none;
	return hop->kind == NEXT_HOP_VIP ? DROP_unknown_vtep : DROP_stale_index;
}

static __always_inline int parse_underlay4(struct xdp_md *ctx, const void *data, const void *end,
					   struct packet *packet)
{
	const void *ip = data + ETH_HLEN, *udp = ip + IPV4_BYTES;
	__u32 total;
	enum owner owner;

	if (data + TUNNEL4_BYTES > end)
		return NOT_TUNNEL;
	/* Options, fragments: not here. */
	if (LOAD8(ip) != 0x45 || LOAD8(ip + 9) != IPPROTO_UDP ||
	    LOAD16(ip + 6) & bpf_htons(0x3fff) || LOAD16(udp + 2) != bpf_htons(VXLAN_PORT))
		return NOT_TUNNEL;
	owner = owner_of4(bpf_ntohl(LOAD32(ip + 16)), load_mac(data), ctx->ingress_ifindex);
	if (owner == OWNER_OTHER)
		return NOT_TUNNEL;
	if (owner == OWNER_BUSY)
		return DROP_table_busy;
	total = bpf_ntohs(LOAD16(ip + 2));
	if (total < TUNNEL4_BYTES - ETH_HLEN || shorter_than(ctx, data, end, ETH_HLEN + total))
		return DROP_outer_truncated;
	if (checksum_fold(ipv4_header_sum(ip)))
		return DROP_outer_checksum;
	packet->ipv6 = 0;
	packet->traffic_class = LOAD8(ip + 1);
	packet->outer_source[0] = 0;
	packet->outer_source[1] = bpf_ntohl(LOAD32(ip + 12));
	return parse_vxlan(udp, total - IPV4_BYTES, packet);
}

static __always_inline int parse_underlay6(struct xdp_md *ctx, const void *data, const void *end,
					   struct packet *packet)
{
	const void *ip = data + ETH_HLEN, *udp = ip + IPV6_BYTES;
	__u32 payload;
	enum owner owner;

	if (data + TUNNEL6_BYTES > end)
		return NOT_TUNNEL;
	if (LOAD8(ip) >> 4 != 6 || LOAD8(ip + 6) != IPPROTO_UDP ||
	    LOAD16(udp + 2) != bpf_htons(VXLAN_PORT))
		return NOT_TUNNEL;
	owner = owner_of6(load_half(ip + 24), load_half(ip + 32), load_mac(data),
			  ctx->ingress_ifindex);
	if (owner == OWNER_OTHER)
		return NOT_TUNNEL;
	if (owner == OWNER_BUSY)
		return DROP_table_busy;
	payload = bpf_ntohs(LOAD16(ip + 4));
	if (shorter_than(ctx, data, end, ETH_HLEN + IPV6_BYTES + payload))
		return DROP_outer_truncated;
	packet->ipv6 = 1;
	packet->traffic_class = bpf_ntohl(LOAD32(ip)) >> 20;
	packet->outer_source[0] = load_half(ip + 8);
	packet->outer_source[1] = load_half(ip + 16);
	return parse_vxlan(udp, payload, packet);
}

/* Parses the underlay's headers. */
__attribute__((noinline)) int parse_underlay(struct xdp_md *ctx, struct packet *packet)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	__u16 ethertype;
	int reason;

	if (!packet || data + ETH_HLEN > end)
		return NOT_TUNNEL;
	packet->outer_source_mac = load_mac(data + ETH_ALEN);
	ethertype = LOAD16(data + 2 * ETH_ALEN);
	if (ethertype == bpf_htons(ETH_P_IP))
		reason = parse_underlay4(ctx, data, end, packet);
	else if (ethertype == bpf_htons(ETH_P_IPV6))
		reason = parse_underlay6(ctx, data, end, packet);
	else
		return NOT_TUNNEL;
	return reason ? reason : check_sender(packet);
}

#endif
