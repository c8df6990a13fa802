/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Writes the outer headers of packets that a program sends: Ethernet, IPv4 or IPv6, UDP and VXLAN.
 *
 * Contract: the cursor is at the first byte that is written, and the caller has checked the bounds.
 * UDP's checksum is left zero, which receivers over IPv6 may refuse (RFC 8200 section 8.1):
 * store_udp6_checksum() computes it, which uses the map `sum_chunks`.
 */
#ifndef SLUICE_ENCAPSULATE_H
#define SLUICE_ENCAPSULATE_H

#include "common/cursor.h"
#include "common/ip_write.h"
#include "common/packet_sum.h"
#include "common/vxlan.h"
#include "layout/cells.h"
#include "layout/drops.h"

#define OUTER_TTL 64
/* Source ports of VXLAN are dynamic ports (RFC 7348 section 5): 14 bits are of the flow's hash. */
#define VXLAN_SOURCE_MIN 49152
#define VXLAN_SOURCE_SHIFT 18
/* The flow label has 20 bits. */
#define FLOW_LABEL_SHIFT 12

/* The outer headers of a packet. Its source address is the node's. */
struct outer {
	const struct node_config *node;
	__u64 source_mac;
	__u64 destination_mac;
	__u64 destination[2]; /* as in struct frame */
	__u32 vni;
	__u32 hash;	 /* of the flow: the underlay uses it to spread flows over paths */
	__u32 udp_bytes; /* UDP header included */
	__u8 traffic_class;
	__u8 reserved;	/* the last byte of the VXLAN header: of a record (nat_ring.h), otherwise 0 */
	__u16 identity; /* of the tenant's sender, or the outside port of a record; 0: none */
};

static __always_inline void write_vxlan(struct cursor *cursor, const struct outer *outer)
{
	struct udp_header *udp = next_header(cursor, struct udp_header);
	struct vxlan_header *vxlan = next_header(cursor, struct vxlan_header);

	/* Both ports by one store, as in write_ipv4() (ip_write.h). */
	STORE32(&udp->source,
		bpf_htonl((VXLAN_SOURCE_MIN | outer->hash >> VXLAN_SOURCE_SHIFT) << 16 | VXLAN_PORT));
	udp->bytes = bpf_htons(outer->udp_bytes);
	udp->checksum = 0;
	vxlan->flags = bpf_htonl(vxlan_flags(outer->identity));
	vxlan->vni = bpf_htonl(outer->vni << 8 | outer->reserved);
}

static __always_inline void write_outer_ethernet(struct cursor *cursor, const struct outer *outer,
						 __u16 ethertype)
{
	struct ethernet_header *ethernet = next_header(cursor, struct ethernet_header);

	store_mac(ethernet->destination, outer->destination_mac);
	store_mac(ethernet->source, outer->source_mac);
	ethernet->type = bpf_htons(ethertype);
}

/* Writes Ethernet and IPv4. */
static __always_inline void write_outer4(struct cursor *cursor, const struct outer *outer)
{
	write_outer_ethernet(cursor, outer, ETH_P_IP);
	write_ipv4(next_header(cursor, struct ipv4_header),
		   &(struct ipv4_fields){
			   .traffic_class = outer->traffic_class,
			   .bytes = IPV4_BYTES + outer->udp_bytes,
			   .fragment = IPV4_DF,
			   .ttl = OUTER_TTL,
			   .protocol = IPPROTO_UDP,
			   .source = outer->node->vtep4,
			   .destination = bpf_htonl((__u32)outer->destination[1]),
		   });
}

/* Writes Ethernet and IPv6. The underlay also uses the flow label to spread flows (RFC 6438). */
static __always_inline void write_outer6(struct cursor *cursor, const struct outer *outer)
{
	struct ipv6_header *ip;

	write_outer_ethernet(cursor, outer, ETH_P_IPV6);
	ip = next_header(cursor, struct ipv6_header);
	write_ipv6(ip, &(struct ipv6_fields){
			       .traffic_class = outer->traffic_class,
			       .bytes = outer->udp_bytes,
			       .next = IPPROTO_UDP,
			       .hop_limit = OUTER_TTL,
			       .flow_label = outer->hash >> FLOW_LABEL_SHIFT,
		       });
	STORE64(ip->source, LOAD64(outer->node->vtep6));
	STORE64(ip->source + 1, LOAD64(outer->node->vtep6 + 8));
	store_halves(ip->destination, outer->destination);
}

/* Computes the UDP checksum of a packet over IPv6 from all its bytes. UDP's checksum is zero before. */
static __always_inline enum drop_reason store_udp6_checksum(program_context *ctx, const struct outer *outer)
{
	__u64 sum = packet_sum(ctx, ETH_HLEN + IPV6_BYTES, outer->udp_bytes), source[2];
	struct cursor cursor = cursor_at(ctx, ETH_HLEN + IPV6_BYTES);
	struct udp_header *udp = take_header(&cursor, struct udp_header);

	if (sum == SUM_FAILED || !udp)
		return DROP_headroom;
	load_halves(source, outer->node->vtep6);
	sum += ipv6_pseudo_sum(source, outer->destination, outer->udp_bytes, IPPROTO_UDP);
	udp->checksum = checksum_fold_udp(sum);
	return DROP_none;
}

/* Writes all outer headers into the first bytes of the packet. DROP_headroom: it has less. */
static __always_inline enum drop_reason write_tunnel(program_context *ctx, const struct outer *outer,
						     int ipv6)
{
	struct cursor cursor = cursor_at(ctx, 0);

	if (!ipv6) {
		if (!cursor_has(&cursor, TUNNEL4_BYTES))
			return DROP_headroom;
		write_outer4(&cursor, outer);
		write_vxlan(&cursor, outer);
		return DROP_none;
	}
	if (!cursor_has(&cursor, TUNNEL6_BYTES))
		return DROP_headroom;
	write_outer6(&cursor, outer);
	write_vxlan(&cursor, outer);
	return store_udp6_checksum(ctx, outer);
}

#endif
