/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The outer headers of what the gateway sends. */
#ifndef SLUICE_ENCAPSULATE_H
#define SLUICE_ENCAPSULATE_H

#include "common/checksum.h"
#include "layout/cells.h"
#include "layout/drops.h"
#include "gateway/vxlan.h"

#define OUTER_TTL 64
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

#endif
