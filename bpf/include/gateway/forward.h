/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Gateway: sending a tenant's frame to the host that route() found. */
#ifndef SLUICE_FORWARD_H
#define SLUICE_FORWARD_H

#include "common/icmp_error.h"
#include "gateway/encapsulate.h"
#include "gateway/output.h"
#include "gateway/packet.h"

/* From the UDP header to the last byte of the tenant's packet that forwarding may change. */
#define TUNNEL_CHANGES (UDP_BYTES + VXLAN_BYTES + ETH_HLEN + 12)

static __always_inline __u64 tunnel_sum(const void *udp)
{
	__u64 sum = LOAD16(udp + TUNNEL_CHANGES - 2);

#pragma unroll
	for (int i = 0; i < TUNNEL_CHANGES - 2; i += 4)
		sum += LOAD32(udp + i);
	return sum;
}

/* Source and destination in the packet's own IP header. */
static __always_inline __u64 addresses_sum(const void *ip, int ipv6)
{
	const void *at = ipv6 ? ip + 8 : ip + 12;
	__u64 sum = (__u64)LOAD32(at) + LOAD32(at + 4);

	if (!ipv6)
		return sum;
#pragma unroll
	for (int i = 8; i < 32; i += 4)
		sum += LOAD32(at + i);
	return sum;
}

/* What routing changes in the tenant's frame: MAC addresses, TTL or hop limit. */
static __always_inline void rewrite_frame(void *start, const struct packet *packet, __u64 router_mac)
{
	void *ip = start + ETH_HLEN;

	store_mac(start, packet->endpoint_mac);
	store_mac(start + ETH_ALEN, router_mac);
	if (packet->frame.flags & FRAME_IPV6) {
		STORE8(ip + 7, packet->frame.ttl - 1);
		return;
	}
	STORE16(ip + 10, checksum_update(LOAD16(ip + 10), LOAD16(ip + 8),
					 LOAD16(ip + 8) - bpf_htons(1 << 8)));
	STORE8(ip + 8, packet->frame.ttl - 1);
}

/* The longest tenant IP packet that the way to the next hop takes. */
static __always_inline __u32 way_mtu(const struct packet *packet, const struct underlay_port *port,
				     int ipv6)
{
	__u32 overhead = ipv6 ? OVERHEAD6 : OVERHEAD4, mtu = packet->mtu ? packet->mtu : 0xffff;

	if (port->mtu > overhead && port->mtu - overhead < mtu)
		mtu = port->mtu - overhead;
	return mtu;
}

/* The same of the addresses that the packet will have. */
static __always_inline __u64 outer_addresses_sum(const struct outer *outer)
{
	const void *source = outer->node->vtep6;

	return (__u64)LOAD32(source) + LOAD32(source + 4) + LOAD32(source + 8) +
	       LOAD32(source + 12) + half_sum(outer->destination[0]) +
	       half_sum(outer->destination[1]);
}

/*
 * Rewrites what lies behind the outer IP header. `checksum`: UDP's, as
 * received, is carried on by what changed (RFC 1624), so that an error that the
 * packet brought along stays detectable.
 */
static __always_inline int rewrite_tunnel(struct xdp_md *ctx, const struct packet *packet,
					  const struct outer *outer, int carry)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *udp = data + ETH_HLEN + (packet->ipv6 ? IPV6_BYTES : IPV4_BYTES);
	__u64 before = 0, after;
	__u16 checksum;

	if (udp + UDP_BYTES + VXLAN_BYTES + ETH_HLEN + IPV4_BYTES > end)
		return DROP_headroom;
	if (carry) {
		STORE16(udp + 6, 0);
		before = tunnel_sum(udp) + addresses_sum(data + ETH_HLEN, packet->ipv6);
	}
	if (packet->routed)
		rewrite_frame(udp + UDP_BYTES + VXLAN_BYTES, packet,
			      load_mac(outer->node->router_mac));
	write_vxlan(udp, outer);
	if (carry) {
		after = tunnel_sum(udp) + outer_addresses_sum(outer);
		checksum = checksum_fold((__u16)~packet->udp_checksum +
					 (__u64)checksum_fold(before) + after);
		STORE16(udp + 6, checksum ? checksum : 0xffff);
	}
	return DROP_none;
}

/* Puts the new outer IP header in place of the old one, of whichever family. */
static __always_inline int rewrite_outer(struct xdp_md *ctx, const struct packet *packet,
					 const struct outer *outer, int ipv6, int carry)
{
	int grow = (ipv6 ? IPV6_BYTES : IPV4_BYTES) - (packet->ipv6 ? IPV6_BYTES : IPV4_BYTES);
	void *data, *end;

	if (grow && bpf_xdp_adjust_head(ctx, -grow))
		return DROP_headroom;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (!ipv6) {
		if (data + TUNNEL4_BYTES > end)
			return DROP_headroom;
		write_outer4(data, outer);
		return DROP_none;
	}
	if (data + TUNNEL6_BYTES > end)
		return DROP_headroom;
	write_outer6(data, outer);
	return carry ? DROP_none : seal_udp6(ctx, outer);
}

/*
 * The tenant is told so also where IPv4 would let a router fragment: this one
 * does not, and a host that learns the MTU does it better.
 */
static __always_inline int too_big(struct packet *packet, __u32 mtu)
{
	packet->error_type = packet->frame.flags & FRAME_IPV6 ? ICMP6_TOO_BIG : ICMP4_UNREACHABLE;
	packet->error_mtu = mtu;
	return DROP_too_big;
}

/*
 * What the underlay spreads flows over its paths by. Hosts spread them over
 * gateways by frame_hash(), of which a gateway sees only a part of all values:
 * a multiplication makes these parts of the whole range again.
 */
static __always_inline __u32 spread_hash(const struct frame *frame)
{
	return (__u64)frame_hash(frame) * 0x9e3779b97f4a7c15ull >> 32;
}

/*
 * Sends the frame on. Positive: the reason to drop it, with error_type set if
 * the tenant is to be told; else a negated XDP verdict.
 */
__attribute__((noinline)) int forward_to_host(struct xdp_md *ctx, struct packet *packet)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct underlay_port *port;
	struct next_hop *hop;
	struct outer outer = {};
	int ipv6, carry, reason;
	__u32 mtu;
	__u64 l2;

	if (!packet)
		return DROP_stale_index;
	hop = next_hop_at(packet->next_hop, NEXT_HOP_VTEP);
	if (!hop || !node)
		return DROP_stale_index;
	ipv6 = READ_ONCE(hop->flags) & NEXT_HOP_IPV6;
	if (!(node->flags & (ipv6 ? NODE_HAS_IPV6 : NODE_HAS_IPV4)))
		return DROP_no_vtep_address;
	l2 = next_hop_l2(ctx, hop, packet->next_hop, packet->now_ns);
	port = underlay_port_at(l2 >> L2_PORT_SHIFT);
	if (l2 & L2_REFUSED || !port)
		return port ? (__u8)l2 : DROP_stale_index;
	/* The interface has gone since the way was looked up. */
	if (!port->ifindex)
		return DROP_stale_index;
	mtu = way_mtu(packet, port, ipv6);
	if (packet->frame_bytes - ETH_HLEN > mtu)
		return too_big(packet, mtu);
	outer.node = node;
	outer.source_mac = underlay_port_mac(port);
	outer.destination_mac = l2 & EXACT_MAC_MASK;
	outer.vni = packet->final_vni;
	outer.hash = spread_hash(&packet->frame);
	outer.udp_bytes = UDP_BYTES + VXLAN_BYTES + packet->frame_bytes;
	outer.traffic_class = packet->traffic_class;
	outer.destination[0] = ipv6 ? load_half(hop->address) : 0;
	outer.destination[1] = ipv6 ? load_half(hop->address + 8) : bpf_ntohl(LOAD32(hop->address));
	carry = ipv6 && packet->udp_checksum;
	reason = rewrite_tunnel(ctx, packet, &outer, carry);
	if (!reason)
		reason = rewrite_outer(ctx, packet, &outer, ipv6, carry);
	if (reason)
		return reason;
	count_traffic(packet->counters, packet->frame_bytes);
	return -send_by(ctx, port->ifindex);
}

#endif
