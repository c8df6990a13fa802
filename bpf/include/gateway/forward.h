/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: sends a tenant's frame to the host that route() (cgw.h) found, to the owner of a vIP (PACKET_TO_OWNER), or to the
 * next gateway of the ring with a record (PACKET_IN_RING).
 *
 * Contract: expects a packet that route() accepted, and now_ns. DROP_none: the packet was rewritten in
 * place and counted in `vni_traffic` unless `nat` is set, and `verdict` is what the program returns. Otherwise the reason
 * to drop, with error_type and error_mtu set if the sender gets an ICMP error; the packet is then
 * unchanged, except after DROP_headroom. Uses the maps `cells`, `meters`, `vni_traffic` and `sum_chunks`.
 */
#ifndef SLUICE_FORWARD_H
#define SLUICE_FORWARD_H

#include "common/icmp_error.h"
#include "common/encapsulate.h"
#include "gateway/output.h"
#include "gateway/packet.h"
#include "gateway/peering_meters.h"

/* What forwarding may change after the outer IP header: up to the tenant's IPv4 checksum, inclusive. */
#define CHANGED_BYTES (TUNNEL_BYTES + ETH_HLEN + 12)

static __always_inline __u64 changed_sum(const struct udp_header *udp)
{
	const void *at = udp;
	__u64 sum = words_sum(at, CHANGED_BYTES - 2) + LOAD16(at + CHANGED_BYTES - 2);

	/* The compiler adds here, instead of keeping all words on the stack until the sum is needed. */
	asm volatile("" : "+r"(sum));
	return sum;
}

/* Sum of source and destination in the IP header that was received. */
static __always_inline __u64 received_addresses_sum(const void *ip, int ipv6)
{
	const struct ipv4_header *ip4 = ip;
	const struct ipv6_header *ip6 = ip;

	return ipv6 ? words_sum(ip6->source, 32) : words_sum(&ip4->source, 8);
}

/* Sum of source and destination in the IPv6 header that will be sent. */
static __always_inline __u64 sent_addresses_sum(const struct outer *outer)
{
	return words_sum(outer->node->vtep6, 16) + halves_sum(outer->destination);
}

/* Changes what a router changes in the tenant's frame at the cursor: MAC addresses, TTL or hop limit. */
static __always_inline void rewrite_frame(struct cursor *cursor, const struct packet *packet,
					  __u64 router_mac)
{
	struct ethernet_header *ethernet = next_header(cursor, struct ethernet_header);
	struct ipv4_header *ip4 = cursor->at;
	struct ipv6_header *ip6 = cursor->at;

	store_mac(ethernet->destination, packet->endpoint_mac);
	store_mac(ethernet->source, router_mac);
	if (packet->frame.flags & FRAME_IPV6)
		ip6->hop_limit = packet->frame.ttl - 1;
	else
		ipv4_decrement_ttl(ip4);
}

/* The longest tenant IP packet that the path to the next hop carries, in bytes. */
static __always_inline __u32 path_mtu(const struct packet *packet, const struct underlay_port *port, int ipv6)
{
	__u32 overhead = ipv6 ? OVERHEAD6 : OVERHEAD4, mtu = packet->mtu ? packet->mtu : 0xffff;

	if (port->mtu > overhead && port->mtu - overhead < mtu)
		mtu = port->mtu - overhead;
	return mtu;
}

/*
 * Rewrites what follows the outer IP header. `carry`: the UDP checksum that was received is updated
 * by what changed (RFC 1624), so that an error in the received packet stays detectable.
 */
static __always_inline enum drop_reason rewrite_tunnel(struct xdp_md *ctx, const struct packet *packet,
						       const struct outer *outer, int carry)
{
	struct cursor start = cursor_at(ctx, 0), cursor = start, frame;
	struct udp_header *udp;
	__u64 before = 0, after;
	const void *ip;

	cursor_advance(&cursor, ETH_HLEN);
	ip = cursor_advance(&cursor, packet->ipv6 ? IPV6_BYTES : IPV4_BYTES);
	if (!cursor_has(&cursor, TUNNEL_BYTES + ETH_HLEN + IPV4_BYTES))
		return DROP_headroom;
	udp = cursor.at;
	if (carry) {
		udp->checksum = 0;
		before = changed_sum(udp) + received_addresses_sum(ip, packet->ipv6);
	}
	if (packet->routed) {
		frame = cursor;
		cursor_advance(&frame, TUNNEL_BYTES);
		rewrite_frame(&frame, packet, load_mac(outer->node->router_mac));
	}
	write_vxlan(&cursor, outer);
	if (carry) {
		after = changed_sum(udp) + sent_addresses_sum(outer);
		udp->checksum = checksum_fold_udp((__u16)~packet->udp_checksum +
						  (__u64)checksum_fold(before) + after);
	}
	return DROP_none;
}

/* Writes the new outer IP header where the old one was, which may have been of the other family. */
static __always_inline enum drop_reason rewrite_outer(struct xdp_md *ctx, const struct packet *packet,
						      const struct outer *outer, int ipv6, int carry)
{
	int grow = (ipv6 ? IPV6_BYTES : IPV4_BYTES) - (packet->ipv6 ? IPV6_BYTES : IPV4_BYTES);
	struct cursor cursor;

	if (grow && bpf_xdp_adjust_head(ctx, -grow))
		return DROP_headroom;
	cursor = cursor_at(ctx, 0);
	if (!ipv6) {
		if (!cursor_has(&cursor, TUNNEL4_BYTES))
			return DROP_headroom;
		write_outer4(&cursor, outer);
		return DROP_none;
	}
	if (!cursor_has(&cursor, TUNNEL6_BYTES))
		return DROP_headroom;
	write_outer6(&cursor, outer);
	return carry ? DROP_none : store_udp6_checksum(ctx, outer);
}

/*
 * The sender gets an ICMP error even where IPv4 would let a router fragment the packet. This router
 * does not fragment: it is better that the sender learns the MTU.
 */
static __always_inline enum drop_reason too_big(struct packet *packet, __u32 mtu)
{
	packet->error_type = packet->frame.flags & FRAME_IPV6 ? ICMP6_TOO_BIG : ICMP4_UNREACHABLE;
	packet->error_mtu = mtu;
	return DROP_too_big;
}

/* The way to a host. */
struct path {
	struct next_hop *hop;
	struct underlay_port *port;
	__u64 l2;
	int ipv6;
	__u32 mtu; /* longest IP packet of a tenant, in bytes */
};

/* Finds the way to the packet's next hop. The packet must fit in its MTU. */
static __always_inline enum drop_reason find_path(struct xdp_md *ctx, struct packet *packet,
						  const struct node_config *node, struct path *path)
{
	enum drop_reason reason;

	path->hop =
		next_hop_at(packet->next_hop, packet->nat & PACKET_TO_OWNER ? NEXT_HOP_VIP : NEXT_HOP_VTEP);
	if (!path->hop || !node)
		return DROP_stale_index;
	path->ipv6 = READ_ONCE(path->hop->flags) & NEXT_HOP_IPV6;
	if (!(node->flags & (path->ipv6 ? NODE_HAS_IPV6 : NODE_HAS_IPV4)))
		return DROP_no_vtep_address;
	reason = refresh_l2(ctx, path->hop, packet->next_hop, packet->now_ns);
	if (reason)
		return reason;
	path->l2 = READ_ONCE(path->hop->l2);
	path->port = underlay_port_at(path->l2 >> L2_PORT_SHIFT);
	/* The interface may have been removed, or its slot given to an Internet port, since the path was looked up. */
	if (!path->port || !tunnel_ifindex(path->port))
		return DROP_stale_index;
	path->mtu = path_mtu(packet, path->port, path->ipv6);
	if (packet->frame_bytes - ETH_HLEN > path->mtu)
		return too_big(packet, path->mtu);
	return DROP_none;
}

/* Fills in the outer headers of a packet that goes this way, except its identity. */
static __always_inline void describe_outer(const struct packet *packet, const struct node_config *node,
					   const struct path *path, struct outer *outer)
{
	const struct next_hop *hop = path->hop;

	outer->node = node;
	outer->source_mac = underlay_port_mac(path->port);
	outer->destination_mac = load_mac(&path->l2);
	outer->vni = packet->final_vni;
	outer->hash = frame_hash(&packet->frame); /* spreads flows over the paths of the underlay */
	outer->udp_bytes = TUNNEL_BYTES + packet->frame_bytes;
	outer->traffic_class = packet->traffic_class;
	outer->destination[0] = path->ipv6 ? load_half(hop->address) : 0;
	outer->destination[1] = path->ipv6 ? load_half(hop->address + 8) : bpf_ntohl(LOAD32(hop->address));
}

__attribute__((noinline)) enum drop_reason forward_to_host(struct xdp_md *ctx, struct packet *packet)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct path path = {};
	struct outer outer = {};
	enum drop_reason reason;
	int carry;

	if (!packet)
		return DROP_stale_index;
	reason = find_path(ctx, packet, node, &path);
	/* A packet with one of these flags has followed no peerings. */
	if (!reason && !packet->nat)
		reason = meter_peerings(packet);
	if (reason)
		return reason;
	describe_outer(packet, node, &path, &outer);
	if (packet->nat & PACKET_IN_RING) {
		outer.identity = packet->new_source_port;
		outer.reserved = packet->ring;
		outer.hash = packet->ring_path << VXLAN_SOURCE_SHIFT;
	} else if (packet->final_vni == packet->vni && !(READ_ONCE(path.hop->flags) & NEXT_HOP_FOREIGN)) {
		/*
		 * An identity means something in its own VPC only, and a host without a vSwitch does not know the
		 * flag.
		 */
		outer.identity = packet->frame.identity;
	}
	carry = path.ipv6 && packet->udp_checksum;
	reason = rewrite_tunnel(ctx, packet, &outer, carry);
	if (!reason)
		reason = rewrite_outer(ctx, packet, &outer, path.ipv6, carry);
	if (reason)
		return reason;
	/* With one of these flags, the owner counts the packet, or it is an error of this gateway. */
	if (!packet->nat)
		count_traffic(packet->counters, packet->frame_bytes);
	packet->verdict = send_by(ctx, path.port->ifindex);
	return DROP_none;
}

#endif
