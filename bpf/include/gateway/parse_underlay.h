/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "parse": the outer headers, Ethernet, IPv4 or IPv6, UDP and VXLAN; whether the packet
 * is for this node. parse_frame() (parse.h) then parses the tenant's frame.
 *
 * Contract: DROP_none with is_tunnel set for a VXLAN packet to this node, with
 * outer_source, outer_source_mac, vni (0: what a gateway passes on to the owner of a NAT gateway's vIP), frame_bytes, udp_checksum, ipv6, traffic_class and the frame's identity filled
 * in. `ring` is not 0 for a packet with a record (nat_ring.h); ring_path and new_source_port are then its other parts.
 * DROP_none without is_tunnel for any other packet, which answer_underlay.h handles. Otherwise the reason to
 * drop. The packet is not changed. Reads only the map `cells`.
 */
#ifndef SLUICE_PARSE_UNDERLAY_H
#define SLUICE_PARSE_UNDERLAY_H

#include "common/checksum.h"
#include "common/cursor.h"
#include "gateway/address_owner.h"
#include "gateway/packet.h"
#include "common/vxlan.h"

/* True if the whole packet, fragments included, is shorter than `bytes`. The cursor is at its first byte. */
static __always_inline int is_truncated(struct xdp_md *ctx, const struct cursor *start, __u32 bytes)
{
	return start->end - start->at < bytes && context_bytes(ctx) < bytes;
}

/* UDP and VXLAN, which end within the linear part. `bytes` is their length according to the IP header. */
static __always_inline enum drop_reason parse_vxlan(const struct udp_header *udp,
						    const struct vxlan_header *vxlan, __u32 bytes,
						    struct packet *packet)
{
	__u32 length = bpf_ntohs(udp->bytes), vni = bpf_ntohl(vxlan->vni), flags = bpf_ntohl(vxlan->flags);

	if (length != bytes || length < TUNNEL_BYTES)
		return DROP_outer_truncated;
	/* Only a record of the ring has a reserved byte that is not 0. */
	packet->ring = vni;
	if (!vxlan_flags_valid(flags) || (packet->ring && (!(flags & VXLAN_GROUP) || !(vni >> 8))))
		return DROP_vxlan_flags;
	packet->ring_path = bpf_ntohs(udp->source) - VXLAN_SOURCE_MIN;
	packet->new_source_port = flags & VXLAN_GROUP_ID;
	packet->frame.identity = flags & VXLAN_GROUP_ID;
	packet->udp_checksum = udp->checksum;
	packet->frame_bytes = length - TUNNEL_BYTES;
	packet->vni = vni >> 8;
	return DROP_none;
}

/* `start` and `mac` are the packet's first byte and its destination MAC address. */
static __always_inline enum drop_reason parse_underlay4(struct xdp_md *ctx, struct cursor start, __u64 mac,
							struct packet *packet)
{
	struct cursor cursor = start;
	const struct vxlan_header *vxlan;
	const struct ipv4_header *ip;
	const struct udp_header *udp;
	enum owner owner;
	__u32 total;

	if (!cursor_has(&start, TUNNEL4_BYTES))
		return DROP_none;
	cursor_advance(&cursor, ETH_HLEN);
	ip = next_header(&cursor, struct ipv4_header);
	udp = next_header(&cursor, struct udp_header);
	vxlan = next_header(&cursor, struct vxlan_header);
	/* Packets with options and fragments are handled by answer_underlay.h. */
	if (ip->version != IPV4_VERSION || ip->protocol != IPPROTO_UDP ||
	    ip->fragment & bpf_htons(IPV4_MORE | IPV4_OFFSET) || udp->destination != bpf_htons(VXLAN_PORT))
		return DROP_none;
	owner = owner_of4(ctx, bpf_ntohl(ip->destination), mac);
	if (owner == OWNER_OTHER)
		return DROP_none;
	if (owner == OWNER_BUSY)
		return DROP_table_busy;
	total = bpf_ntohs(ip->bytes);
	if (total < TUNNEL4_BYTES - ETH_HLEN || is_truncated(ctx, &start, ETH_HLEN + total))
		return DROP_outer_truncated;
	if (!checksum_valid(ipv4_header_sum(ip)))
		return DROP_outer_checksum;
	packet->is_tunnel = 1;
	packet->ipv6 = 0;
	packet->traffic_class = ip->traffic_class;
	packet->outer_source[0] = 0;
	packet->outer_source[1] = bpf_ntohl(ip->source);
	return parse_vxlan(udp, vxlan, total - IPV4_BYTES, packet);
}

static __always_inline enum drop_reason parse_underlay6(struct xdp_md *ctx, struct cursor start, __u64 mac,
							struct packet *packet)
{
	struct cursor cursor = start;
	const struct vxlan_header *vxlan;
	const struct ipv6_header *ip;
	const struct udp_header *udp;
	__u64 destination[2];
	enum owner owner;
	__u32 payload;

	if (!cursor_has(&start, TUNNEL6_BYTES))
		return DROP_none;
	cursor_advance(&cursor, ETH_HLEN);
	ip = next_header(&cursor, struct ipv6_header);
	udp = next_header(&cursor, struct udp_header);
	vxlan = next_header(&cursor, struct vxlan_header);
	if ((bpf_ntohl(ip->version) & 0xf0000000) != IPV6_VERSION || ip->next != IPPROTO_UDP ||
	    udp->destination != bpf_htons(VXLAN_PORT))
		return DROP_none;
	load_halves(destination, ip->destination);
	owner = owner_of6(ctx, destination, mac);
	if (owner == OWNER_OTHER)
		return DROP_none;
	if (owner == OWNER_BUSY)
		return DROP_table_busy;
	payload = bpf_ntohs(ip->bytes);
	if (is_truncated(ctx, &start, ETH_HLEN + IPV6_BYTES + payload))
		return DROP_outer_truncated;
	packet->is_tunnel = 1;
	packet->ipv6 = 1;
	packet->traffic_class = bpf_ntohl(ip->version) >> IPV6_CLASS_SHIFT;
	load_halves(packet->outer_source, ip->source);
	return parse_vxlan(udp, vxlan, payload, packet);
}

__attribute__((noinline)) enum drop_reason parse_underlay(struct xdp_md *ctx, struct packet *packet)
{
	struct cursor cursor = cursor_at(ctx, 0);
	const struct ethernet_header *ethernet;
	enum drop_reason reason = DROP_none;
	__u64 mac;

	if (!packet || !cursor_has(&cursor, ETH_HLEN))
		return DROP_none;
	ethernet = cursor.at;
	packet->outer_source_mac = load_mac(ethernet->source);
	mac = load_mac(ethernet->destination);
	if (ethernet->type == bpf_htons(ETH_P_IP))
		reason = parse_underlay4(ctx, cursor, mac, packet);
	else if (ethernet->type == bpf_htons(ETH_P_IPV6))
		reason = parse_underlay6(ctx, cursor, mac, packet);
	return reason;
}

#endif
