/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "SW": the next hop's way through the underlay, the outer
 * headers, and out.
 */
#ifndef SLUICE_OUTPUT_H
#define SLUICE_OUTPUT_H

#include "cgw.h"
#include "count.h"

#define L2_PORT_SHIFT 48
#define L2_LIFETIME_NS 1000000000ull
#define L2_REFUSED (1ull << 63) /* resolve(): low bits are the reason to drop */
#define OUTER_TTL 64
#define AF_INET 2
#define AF_INET6 10
#define IPV4_DF 0x4000

/* A new outer header: who to whom. */
struct outer {
	const struct node_config *node;
	__u64 source_mac, destination_mac;
	__u64 destination[2]; /* as in struct frame */
	__u32 vni, hash;
	__u32 udp_bytes;
	__u8 traffic_class;
};

static __always_inline int drop(__u32 vni, __u32 reason)
{
	count_drop(vni, reason);
	return XDP_DROP;
}

static __always_inline int send_by(struct xdp_md *ctx, __u32 ifindex)
{
	return ifindex == ctx->ingress_ifindex ? XDP_TX : (int)bpf_redirect(ifindex, 0);
}

/* Asks the kernel's FIB for the way to a next hop; answers what `l2` of it shall be, or L2_REFUSED. */
__attribute__((noinline)) __u64 resolve(struct xdp_md *ctx, __u32 cell)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct next_hop *hop = cell_at(cell);
	struct bpf_fib_lookup fib = { .ifindex = ctx->ingress_ifindex };
	__u64 l2;
	__u32 port;
	int answer;

	if (!hop || !node)
		return L2_REFUSED | DROP_stale_index;
	if (hop->flags & NEXT_HOP_IPV6) {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, node->vtep6, 16);
		__builtin_memcpy(fib.ipv6_dst, hop->address, 16);
	} else {
		fib.family = AF_INET;
		fib.ipv4_src = node->vtep4;
		fib.ipv4_dst = LOAD32(hop->address);
	}
	answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	if (answer == BPF_FIB_LKUP_RET_NO_NEIGH)
		return L2_REFUSED | DROP_no_underlay_neighbour;
	port = port_of(fib.ifindex);
	if (answer != BPF_FIB_LKUP_RET_SUCCESS || port == UNDERLAY_PORTS_MAX)
		return L2_REFUSED | DROP_no_underlay_route;
	l2 = port;
	for (int i = 0; i < ETH_ALEN; i++)
		l2 = l2 << 8 | fib.dmac[i];
	/* Two CPUs may both be here: whichever comes last, each word is whole. */
	*(volatile __u64 *)&hop->l2 = l2;
	*(volatile __u64 *)&hop->l2_expires_ns = bpf_ktime_get_coarse_ns() + L2_LIFETIME_NS;
	return l2;
}

static __always_inline __u64 next_hop_l2(struct xdp_md *ctx, const struct next_hop *hop, __u32 cell,
					 __u64 now_ns)
{
	if (READ_ONCE(hop->l2_expires_ns) > now_ns)
		return READ_ONCE(hop->l2);
	return resolve(ctx, cell);
}

/* UDP and VXLAN headers, UDP's checksum zero. The source port spreads flows over the underlay's paths (RFC 7348 section 5). */
static __always_inline void write_vxlan(void *udp, const struct outer *outer)
{
	STORE32(udp, bpf_htonl((49152 | (outer->hash >> 18)) << 16 | VXLAN_PORT));
	STORE16(udp + 4, bpf_htons(outer->udp_bytes));
	STORE16(udp + 6, 0);
	STORE32(udp + 8, bpf_htonl(VXLAN_FLAGS));
	STORE32(udp + 12, bpf_htonl(outer->vni << 8));
}

/* Ethernet and IPv4. */
static __always_inline void write_outer4(void *data, const struct outer *outer)
{
	void *ip = data + ETH_HLEN;

	store_mac(data, outer->destination_mac);
	store_mac(data + ETH_ALEN, outer->source_mac);
	STORE16(data + 2 * ETH_ALEN, bpf_htons(ETH_P_IP));
	STORE32(ip, bpf_htonl(0x45000000 | (__u32)outer->traffic_class << 16 |
			      ((IPV4_BYTES + outer->udp_bytes) & 0xffff)));
	STORE32(ip + 4, bpf_htonl(IPV4_DF));
	STORE32(ip + 8, bpf_htonl(OUTER_TTL << 24 | IPPROTO_UDP << 16));
	STORE32(ip + 12, outer->node->vtep4);
	STORE32(ip + 16, bpf_htonl((__u32)outer->destination[1]));
	STORE16(ip + 10, checksum_fold(ipv4_header_sum(ip)));
}

/* Ethernet and IPv6. The flow label is for the underlay's paths too (RFC 6438). */
static __always_inline void write_outer6(void *data, const struct outer *outer)
{
	void *ip = data + ETH_HLEN;

	store_mac(data, outer->destination_mac);
	store_mac(data + ETH_ALEN, outer->source_mac);
	STORE16(data + 2 * ETH_ALEN, bpf_htons(ETH_P_IPV6));
	STORE32(ip, bpf_htonl(6u << 28 | (__u32)outer->traffic_class << 20 | outer->hash >> 12));
	STORE32(ip + 4, bpf_htonl(outer->udp_bytes << 16 | IPPROTO_UDP << 8 | OUTER_TTL));
	STORE64(ip + 8, LOAD64(outer->node->vtep6));
	STORE64(ip + 16, LOAD64(outer->node->vtep6 + 8));
	store_half(ip + 24, outer->destination[0]);
	store_half(ip + 32, outer->destination[1]);
}

/* Computes the UDP checksum of a packet with a new IPv6 header from all its bytes. */
static __always_inline int seal_udp6(struct xdp_md *ctx, const struct outer *outer)
{
	__u64 source[2] = { load_half(outer->node->vtep6), load_half(outer->node->vtep6 + 8) };
	__u64 sum = packet_sum(ctx, ETH_HLEN + IPV6_BYTES, outer->udp_bytes);
	void *data = (void *)(long)ctx->data;
	__u16 checksum;

	if (sum == SUM_FAILED || data + TUNNEL6_BYTES > (void *)(long)ctx->data_end)
		return DROP_headroom;
	sum += ipv6_pseudo_sum(source, outer->destination, outer->udp_bytes, IPPROTO_UDP);
	checksum = checksum_fold(sum);
	STORE16(data + ETH_HLEN + IPV6_BYTES + 6, checksum ? checksum : 0xffff);
	return DROP_none;
}

/*
 * Sends the packet, which has room for the outer headers of its own family in
 * front, back where it came from, with this node as sender.
 */
static __always_inline int reflect(struct xdp_md *ctx, const struct packet *packet, __u32 frame_bytes)
{
	const struct node_config *node = cell_at(CELL_NODE);
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct underlay_port *port = port_at(port_of(ctx->ingress_ifindex));
	struct outer outer = {
		.node = node,
		.destination_mac = packet->outer_source_mac,
		.destination = { packet->outer_source[0], packet->outer_source[1] },
		.vni = packet->vni,
		.hash = frame_hash(&packet->frame),
		.udp_bytes = UDP_BYTES + VXLAN_BYTES + frame_bytes,
	};

	if (!node || !port)
		return drop(packet->vni, DROP_stale_index);
	outer.source_mac = port_mac(port);
	if (packet->ipv6) {
		if (!(node->flags & NODE_HAS_IPV6))
			return drop(packet->vni, DROP_no_vtep_address);
		if (data + TUNNEL6_BYTES > end)
			return drop(packet->vni, DROP_headroom);
		write_outer6(data, &outer);
		write_vxlan(data + ETH_HLEN + IPV6_BYTES, &outer);
		if (seal_udp6(ctx, &outer))
			return drop(packet->vni, DROP_headroom);
		return XDP_TX;
	}
	if (!(node->flags & NODE_HAS_IPV4))
		return drop(packet->vni, DROP_no_vtep_address);
	if (data + TUNNEL4_BYTES > end)
		return drop(packet->vni, DROP_headroom);
	write_outer4(data, &outer);
	write_vxlan(data + ETH_HLEN + IPV4_BYTES, &outer);
	return XDP_TX;
}

#endif
