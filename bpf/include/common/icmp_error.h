/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * ICMP and ICMPv6 errors about a tenant's packet (RFC 792, 1122, 1812, 4443): whether one may be sent,
 * the rate limit, and the headers in front of the packet that the error quotes.
 *
 * Contract: the includer satisfies context.h; struct frame is the packet that the error is about.
 * write_icmp4_error() and write_icmp6_error() overwrite the bytes in front of the quoted packet, whose
 * bounds the caller has checked. The caller then computes the sum from the ICMP header on and stores
 * icmp_error_checksum(). Uses the map that icmp_within_budget() gets.
 */
#ifndef SLUICE_ICMP_ERROR_H
#define SLUICE_ICMP_ERROR_H

#include "common/checksum.h"
#include "common/cursor.h"
#include "common/frame.h"
#include "common/ip_write.h"
#include "common/maps.h"
#include "common/token_bucket.h"

/* Headers in front of the quoted packet, without Ethernet. */
#define ICMP4_ERROR_BYTES (IPV4_BYTES + ICMP_BYTES)
#define ICMP6_ERROR_BYTES (IPV6_BYTES + ICMP_BYTES)
/* The longest error, from its IP header on (RFC 1812 section 4.3.2.3, RFC 4443 section 3.1). */
#define ICMP4_ERROR_MAX 576
#define ICMP6_ERROR_MAX 1280
/* Precedence 6, which RFC 1812 section 4.3.2.5 recommends for errors. */
#define ICMP_ERROR_CLASS 0xc0u
#define ICMP_ERROR_TTL 64

#define ICMP_ERRORS_PER_SECOND 1000 /* for each VNI and CPU */
#define ICMP_ERRORS_BURST 100
#define ICMP_TOKEN_NS (1000000000ull / ICMP_ERRORS_PER_SECOND)

/*
 * The source of errors in a VRF that has no router address of the family: 192.0.0.8 (RFC 7600), and
 * fe80::1, the link-local address of all routers.
 */
#define DUMMY_ROUTER4 0xc0000008u
#define ROUTER6_HIGH 0xfe80000000000000ull
#define ROUTER6_LOW 1ull

struct icmp_error {
	__u64 router6[2]; /* the source of the error; halves in host order */
	__u32 router4;	  /* the same for IPv4; host order */
	__u32 mtu;	  /* of "too big", in bytes of IP packet; 0 in other errors */
	__u64 router_mac;
	__u32 quoted; /* bytes of the packet that are quoted */
	__u8 type;
	__u8 code;
};

/* Whether an error may be sent about the packet (RFC 1122 section 3.2.2, RFC 4443 section 2.4 e). */
static __always_inline int icmp_error_allowed(const struct frame *frame)
{
	__u32 type = frame->transport >> 24;

	if (frame->flags & FRAME_LATER || frame_multicast(frame) || !source_valid(frame))
		return 0;
	if (frame->flags & FRAME_IPV6)
		return frame->protocol != IPPROTO_ICMPV6 ||
		       (type >= ICMP6_INFORMATION && type != ICMP6_REDIRECT);
	return frame->protocol != IPPROTO_ICMP ||
	       !(type == ICMP4_UNREACHABLE || type == ICMP4_SOURCE_QUENCH || type == ICMP4_REDIRECT ||
		 type == ICMP4_TIME_EXCEEDED || type == ICMP4_PARAMETER_PROBLEM);
}

/*
 * Takes a token of the VNI that has the counters with this index. `budget` is the map of the buckets. False: the rate
 * is exceeded. Each VNI has its own bucket, so that no tenant uses up another's. VNIs without counters of their own share
 * one.
 */
static __always_inline int icmp_within_budget(void *budget, __u32 counters)
{
	struct token_bucket *bucket = bpf_map_lookup_elem(budget, &counters);

	return bucket && take_token(bucket, bpf_ktime_get_ns(), ICMP_TOKEN_NS, ICMP_ERRORS_BURST);
}

/* Number of bytes of the packet that an error quotes. */
static __always_inline __u32 icmp_quoted(const struct frame *frame)
{
	__u32 most = frame->flags & FRAME_IPV6 ? ICMP6_ERROR_MAX - ICMP6_ERROR_BYTES
					       : ICMP4_ERROR_MAX - ICMP4_ERROR_BYTES;

	return frame->ip_bytes < most ? frame->ip_bytes : most;
}

/* Writes Ethernet: from the router to the packet's sender. */
static __always_inline void write_error_ethernet(struct ethernet_header *ethernet, const struct frame *about,
						 const struct icmp_error *error, __u16 ethertype)
{
	store_mac(ethernet->destination, about->source_mac);
	store_mac(ethernet->source, error->router_mac);
	ethernet->type = bpf_htons(ethertype);
}

/* Writes the ICMP header with a checksum of zero. */
static __always_inline void write_error_icmp(struct icmp_header *icmp, const struct icmp_error *error)
{
	icmp->type = error->type;
	icmp->code = error->code;
	icmp->checksum = 0;
	icmp->rest = bpf_htonl(error->mtu);
}

/* Writes Ethernet, IPv4 and ICMP. The cursor has ETH_HLEN + ICMP4_ERROR_BYTES. */
static __always_inline void write_icmp4_error(struct cursor *cursor, const struct frame *about,
					      const struct icmp_error *error)
{
	struct ethernet_header *ethernet = next_header(cursor, struct ethernet_header);
	struct ipv4_header *ip = next_header(cursor, struct ipv4_header);

	write_error_ethernet(ethernet, about, error, ETH_P_IP);
	write_ipv4(ip, &(struct ipv4_fields){
			       .traffic_class = ICMP_ERROR_CLASS,
			       .bytes = ICMP4_ERROR_BYTES + error->quoted,
			       .ttl = ICMP_ERROR_TTL,
			       .protocol = IPPROTO_ICMP,
			       .source = bpf_htonl(error->router4),
			       .destination = bpf_htonl((__u32)about->source[1]),
		       });
	write_error_icmp(next_header(cursor, struct icmp_header), error);
}

/* Writes Ethernet, IPv6 and ICMPv6. The cursor has ETH_HLEN + ICMP6_ERROR_BYTES. */
static __always_inline void write_icmp6_error(struct cursor *cursor, const struct frame *about,
					      const struct icmp_error *error)
{
	struct ethernet_header *ethernet = next_header(cursor, struct ethernet_header);
	struct ipv6_header *ip = next_header(cursor, struct ipv6_header);

	write_error_ethernet(ethernet, about, error, ETH_P_IPV6);
	write_ipv6(ip, &(struct ipv6_fields){
			       .traffic_class = ICMP_ERROR_CLASS,
			       .bytes = ICMP_BYTES + error->quoted,
			       .next = IPPROTO_ICMPV6,
			       .hop_limit = ICMP_ERROR_TTL,
		       });
	store_halves(ip->source, error->router6);
	store_halves(ip->destination, about->source);
	write_error_icmp(next_header(cursor, struct icmp_header), error);
}

/* The checksum of the error. `sum` is over its ICMP header and the quoted packet. */
static __always_inline __u16 icmp_error_checksum(const struct frame *about, const struct icmp_error *error,
						 __u64 sum)
{
	if (about->flags & FRAME_IPV6)
		sum += ipv6_pseudo_sum(error->router6, about->source, ICMP_BYTES + error->quoted,
				       IPPROTO_ICMPV6);
	return checksum_fold(sum);
}

#endif
