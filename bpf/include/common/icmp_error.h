/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * ICMP and ICMPv6 errors about a tenant's packet (RFC 792, 1122, 1812, 4443):
 * whether one may be sent, the rate limit, and how it is written in front of
 * the packet that it quotes.
 */
#ifndef SLUICE_ICMP_ERROR_H
#define SLUICE_ICMP_ERROR_H

#include "common/checksum.h"
#include "common/frame.h"
#include "common/maps.h"
#include "common/token_bucket.h"

/* Headers put in front of the quoted packet, Ethernet not counted. */
#define ICMP4_ERROR_BYTES (IPV4_BYTES + ICMP_BYTES)
#define ICMP6_ERROR_BYTES (IPV6_BYTES + ICMP_BYTES)
/* The longest error, from its IP header on (RFC 1812 section 4.3.2.3, RFC 4443 section 3.1). */
#define ICMP4_ERROR_MAX 576
#define ICMP6_ERROR_MAX 1280

#define ICMP_ERRORS_PER_SECOND 1000 /* for each VNI and CPU */
#define ICMP_ERRORS_BURST 100
#define ICMP_TOKEN_NS (1000000000ull / ICMP_ERRORS_PER_SECOND)

/* Source of errors in a VRF that has no router address of the family: RFC 7600, and the routers' link-local. */
#define DUMMY_ROUTER4 0xc0000008u
#define ROUTER6_HIGH 0xfe80000000000000ull
#define ROUTER6_LOW 1ull

struct icmp_error {
	__u64 router6[2]; /* source of the error, host order */
	__u32 router4;
	__u32 mtu; /* of "too big"; else 0 */
	__u64 router_mac;
	__u32 quoted; /* bytes of the packet quoted */
	__u8 type;
	__u8 code;
};

/* False for packets about which no error may be sent (RFC 1122 3.2.2, RFC 4443 2.4 e). */
static __always_inline int icmp_error_allowed(const struct frame *frame)
{
	__u32 type = frame->transport >> 24;

	if (frame->flags & FRAME_LATER || frame_multicast(frame) || !source_valid(frame))
		return 0;
	if (frame->flags & FRAME_IPV6)
		return frame->protocol != IPPROTO_ICMPV6 || (type >= 128 && type != ICMP6_REDIRECT);
	return frame->protocol != IPPROTO_ICMP ||
	       !(type == 3 || type == 4 || type == 5 || type == 11 || type == 12);
}

/*
 * Takes a token of the VNI's with these counters. False: over the rate. Each has
 * its own, so that no tenant can spend another's; VNIs beyond the counters share one.
 */
static __always_inline int icmp_within_budget(__u32 counters)
{
	struct token_bucket *bucket = bpf_map_lookup_elem(&icmp_budget, &counters);

	return bucket && take_token(bucket, bpf_ktime_get_ns(), ICMP_TOKEN_NS, ICMP_ERRORS_BURST);
}

/* How much of a packet an error quotes. */
static __always_inline __u32 icmp_quoted(const struct frame *frame)
{
	__u32 most = frame->flags & FRAME_IPV6 ? ICMP6_ERROR_MAX - ICMP6_ERROR_BYTES
					       : ICMP4_ERROR_MAX - ICMP4_ERROR_BYTES;

	return frame->ip_bytes < most ? frame->ip_bytes : most;
}

/*
 * Writes ETH_HLEN + ICMP4_ERROR_BYTES at `start`, which the caller has checked.
 * The ICMP checksum is left zero: see icmp_error_checksum().
 */
static __always_inline void write_icmp4_error(void *start, const struct frame *about,
					      const struct icmp_error *error)
{
	void *ip = start + ETH_HLEN, *icmp = ip + IPV4_BYTES;

	store_mac(start, about->source_mac);
	store_mac(start + ETH_ALEN, error->router_mac);
	STORE16(start + 2 * ETH_ALEN, bpf_htons(ETH_P_IP));
	/* Precedence 6, as RFC 1812 section 4.3.2.5 has it for errors. */
	STORE32(ip, bpf_htonl(0x45c00000 | (ICMP4_ERROR_BYTES + error->quoted)));
	STORE32(ip + 4, 0);
	STORE32(ip + 8, bpf_htonl(64u << 24 | IPPROTO_ICMP << 16));
	STORE32(ip + 12, bpf_htonl(error->router4));
	STORE32(ip + 16, bpf_htonl((__u32)about->source[1]));
	STORE16(ip + 10, checksum_fold(ipv4_header_sum(ip)));
	STORE32(icmp, bpf_htonl((__u32)error->type << 24 | (__u32)error->code << 16));
	STORE32(icmp + 4, bpf_htonl(error->mtu));
}

/* The same with ETH_HLEN + ICMP6_ERROR_BYTES. */
static __always_inline void write_icmp6_error(void *start, const struct frame *about,
					      const struct icmp_error *error)
{
	void *ip = start + ETH_HLEN, *icmp = ip + IPV6_BYTES;

	store_mac(start, about->source_mac);
	store_mac(start + ETH_ALEN, error->router_mac);
	STORE16(start + 2 * ETH_ALEN, bpf_htons(ETH_P_IPV6));
	STORE32(ip, bpf_htonl(0x6c000000));
	STORE32(ip + 4, bpf_htonl((ICMP_BYTES + error->quoted) << 16 | IPPROTO_ICMPV6 << 8 | 64));
	store_half(ip + 8, error->router6[0]);
	store_half(ip + 16, error->router6[1]);
	store_half(ip + 24, about->source[0]);
	store_half(ip + 32, about->source[1]);
	STORE32(icmp, bpf_htonl((__u32)error->type << 24 | (__u32)error->code << 16));
	STORE32(icmp + 4, bpf_htonl(error->mtu));
}

/* The error's checksum, from the sum of its ICMP header and what it quotes. */
static __always_inline __u16 icmp_error_checksum(const struct frame *about,
						 const struct icmp_error *error, __u64 sum)
{
	if (about->flags & FRAME_IPV6)
		sum += ipv6_pseudo_sum(error->router6, about->source, ICMP_BYTES + error->quoted,
				       IPPROTO_ICMPV6);
	return checksum_fold(sum);
}

#endif
