/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "parse" of the underlay: Ethernet, IPv4 or IPv6, UDP, VXLAN;
 * who sent it and whether it is for this node. The tenant's frame follows by
 * parse.h.
 *
 * Contract: DROP_none, a reason to drop, or NOT_TUNNEL for what is no plain
 * VXLAN packet to this node (local.h decides about that). Nothing is changed.
 */
#ifndef SLUICE_UNDERLAY_H
#define SLUICE_UNDERLAY_H

#include "lookup.h"
#include "parse.h"

#define NOT_TUNNEL 255
#define VXLAN_PORT 4789
#define VXLAN_FLAGS 0x08000000u /* a valid VNI, nothing else */
#define UDP_BYTES 8
#define VXLAN_BYTES 8
#define TUNNEL4_BYTES (ETH_HLEN + IPV4_BYTES + UDP_BYTES + VXLAN_BYTES)
#define TUNNEL6_BYTES (ETH_HLEN + IPV6_BYTES + UDP_BYTES + VXLAN_BYTES)
/* What an underlay interface's MTU must hold beside the tenant's IP packet. */
#define OVERHEAD4 (TUNNEL4_BYTES)
#define OVERHEAD6 (TUNNEL6_BYTES)

/* What is known of a packet: outer headers, the tenant's frame, and by and by where it goes. */
struct packet {
	struct frame frame;
	__u64 outer_source[2]; /* as in struct frame */
	__u64 outer_source_mac;
	__u64 endpoint_mac;
	__u64 now_ns;	   /* CLOCK_MONOTONIC, coarse: once for all stages */
	__u32 vni;	   /* it came with */
	__u32 vrf;	   /* its cell */
	__u32 frame_bytes; /* of the tenant's frame, padding included */
	__u32 final_vni;   /* of the endpoint, after peers */
	__u32 next_hop;	   /* cell */
	__u32 counters;
	__u32 elephant_bytes; /* of the VPC that it came with, as in struct vrf */
	__u16 mtu;	   /* of the endpoint's VPC; 0: any */
	__u16 error_mtu;   /* to name in an ICMP error */
	__u16 udp_checksum; /* as received */
	__u8 ipv6;	   /* the underlay it came over */
	__u8 traffic_class;
	__u8 routed;	   /* else bridged */
	__u8 error_type;   /* of the ICMP error to send */
};

/* Who an underlay address belongs to. */
enum owner { OWNER_OTHER, OWNER_VTEP, OWNER_VIP, OWNER_VIP_OWNED, OWNER_BUSY };

/* The cell if it is a next hop of that kind. */
static __always_inline struct next_hop *next_hop_at(__u32 cell, __u8 kind)
{
	struct next_hop *hop = cell_at(cell);

	return hop && READ_ONCE(hop->kind) == kind ? hop : NULL;
}

/* Underlay port number `index` of the node; indices of port_of() beyond the last are the first. */
static __always_inline struct underlay_port *port_at(__u32 index)
{
	struct underlay_port *ports = cell_at(CELL_NODE + 1 + ((index & 7) >> 2));

	return ports ? &ports[index & 3] : NULL;
}

/* Index of the underlay port with this ifindex; UNDERLAY_PORTS_MAX: none. */
__attribute__((noinline)) __u32 port_of(__u32 ifindex)
{
	for (__u32 i = 0; i < UNDERLAY_PORTS_MAX; i++) {
		struct underlay_port *port = port_at(i);

		if (port && port->ifindex == ifindex)
			return i;
	}
	return UNDERLAY_PORTS_MAX;
}

static __always_inline __u64 port_mac(const struct underlay_port *port)
{
	return load_mac(port->mac);
}

/*
 * Whether a vIP's entry takes a frame sent to `mac`: its own vMAC, or the MAC of
 * the port it came in by. Others are what a switch floods; a second gateway
 * that sees them must not forward them too.
 */
static __always_inline enum owner vip_owner(__u32 cell, __u64 mac, __u32 ifindex)
{
	struct next_hop *hop = next_hop_at(cell, NEXT_HOP_VIP);
	struct underlay_port *port;

	if (!hop)
		return OWNER_OTHER;
	if (load_mac(hop->mac) != mac) {
		port = port_at(port_of(ifindex));
		if (!port || port->ifindex != ifindex || port_mac(port) != mac)
			return OWNER_OTHER;
	}
	return READ_ONCE(hop->flags) & NEXT_HOP_OWNED ? OWNER_VIP_OWNED : OWNER_VIP;
}

static __always_inline enum owner owner_of4(__u32 address, __u64 mac, __u32 ifindex)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct exact_hit hit = {};
	int answer;

	if (node && node->flags & NODE_HAS_IPV4 && bpf_ntohl(node->vtep4) == address)
		return OWNER_VTEP;
	answer = find_ipv4(0, address, &hit);
	if (answer == EXACT_BUSY)
		return OWNER_BUSY;
	return answer == EXACT_HIT ? vip_owner(hit.next, mac, ifindex) : OWNER_OTHER;
}

static __always_inline enum owner owner_of6(__u64 high, __u64 low, __u64 mac, __u32 ifindex)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct exact_hit hit = {};
	int answer;

	if (node && node->flags & NODE_HAS_IPV6 && load_half(node->vtep6) == high &&
	    load_half(node->vtep6 + 8) == low)
		return OWNER_VTEP;
	answer = find_ipv6(0, high, low, &hit);
	if (answer == EXACT_BUSY)
		return OWNER_BUSY;
	return answer == EXACT_HIT ? vip_owner(hit.next, mac, ifindex) : OWNER_OTHER;
}

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
