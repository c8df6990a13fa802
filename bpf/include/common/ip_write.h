/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Writes IP headers of packets that a program itself composes.
 *
 * Contract: the caller has checked the bounds. All bytes of the header are overwritten, except the
 * addresses of write_ipv6(), which the caller stores. Calls no helper and uses no map.
 */
#ifndef SLUICE_IP_WRITE_H
#define SLUICE_IP_WRITE_H

#include "common/checksum.h"
#include "common/headers.h"

/* Numbers are in host order, addresses in network order. */
struct ipv4_fields {
	__u8 traffic_class;
	__u8 ttl;
	__u8 protocol;
	__u16 bytes; /* of the packet, this header included */
	__u16 id;
	__u16 fragment;
	__be32 source;
	__be32 destination;
};

/* Writes a header without options, with its checksum. */
static __always_inline void write_ipv4(struct ipv4_header *ip, const struct ipv4_fields *fields)
{
	/* Not read back from the packet: the processor would wait for the stores of parts of a word. */
	__u64 sum = bpf_htons(IPV4_VERSION << 8 | fields->traffic_class);

	sum += bpf_htons(fields->bytes);
	sum += bpf_htons(fields->id);
	sum += bpf_htons(fields->fragment);
	sum += bpf_htons(fields->ttl << 8 | fields->protocol);
	sum += fields->source;
	sum += fields->destination;
	/* Fields that share a word are stored together: separate stores take 2% of the gateway's time. */
	STORE32(&ip->version,
		bpf_htonl((__u32)(IPV4_VERSION << 8 | fields->traffic_class) << 16 | fields->bytes));
	STORE32(&ip->id, bpf_htonl((__u32)fields->id << 16 | fields->fragment));
	STORE32(&ip->ttl, bpf_htons(fields->ttl << 8 | fields->protocol) | (__u32)checksum_fold(sum) << 16);
	ip->source = fields->source;
	ip->destination = fields->destination;
}

/* In host order. */
struct ipv6_fields {
	__u8 traffic_class;
	__u8 next;
	__u8 hop_limit;
	__u16 bytes; /* behind this header */
	__u32 flow_label;
};

/* Writes everything but the addresses. */
static __always_inline void write_ipv6(struct ipv6_header *ip, const struct ipv6_fields *fields)
{
	ip->version = bpf_htonl(IPV6_VERSION | (__u32)fields->traffic_class << IPV6_CLASS_SHIFT |
				fields->flow_label);
	STORE32(&ip->bytes, bpf_htonl((__u32)fields->bytes << 16 | fields->next << 8 | fields->hop_limit));
}

#endif
