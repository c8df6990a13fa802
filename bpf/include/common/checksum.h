/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Internet checksums (RFC 1071) of headers: sums, pseudo headers, incremental updates. The sum of a
 * packet's payload is in packet_sum.h.
 *
 * Contract: a sum is over words as they are in memory, so that a folded sum is stored without a change
 * of byte order. It has 64 bits, which no packet overflows. The caller has checked the bounds. Calls
 * no helper and uses no map.
 */
#ifndef SLUICE_CHECKSUM_H
#define SLUICE_CHECKSUM_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "common/bytes.h"
#include "common/headers.h"

/* The checksum of what was summed. 0 if a correct checksum was part of it. */
static __always_inline __u16 checksum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/*
 * Whether a sum of words, a correct checksum included, is a multiple of 65535, as checksum_fold() == 0 says with more
 * instructions. It is if its product with the inverse of 65535 modulo 2^64 is a quotient of a number of 64 bits. The
 * sum of a header is not 0.
 */
static __always_inline int checksum_valid(__u64 sum)
{
	return sum * 0xfffefffefffeffffull <= 0x0001000100010001ull;
}

/* The UDP checksum. 0 means that the sender computed no checksum, so 0 is sent as all ones (RFC 768). */
static __always_inline __u16 checksum_fold_udp(__u64 sum)
{
	__u16 checksum = checksum_fold(sum);

	return checksum ? checksum : 0xffff;
}

/* Sum of `bytes`, a constant and a multiple of 4. */
static __always_inline __u64 words_sum(const void *at, __u32 bytes)
{
	__u64 sum = 0;

#pragma unroll
	for (__u32 i = 0; i < bytes; i += 4)
		sum += LOAD32(at + i);
	return sum;
}

/* Sum of an IPv4 header without options. */
static __always_inline __u64 ipv4_header_sum(const struct ipv4_header *ip)
{
	return words_sum(ip, sizeof(*ip));
}

/* Sum of half of an IPv6 address, given in host order. */
static __always_inline __u64 half_sum(__u64 half)
{
	half = bpf_cpu_to_be64(half);
	return (half & 0xffffffff) + (half >> 32);
}

/* Sum of an IPv6 address, given as halves in host order. */
static __always_inline __u64 halves_sum(const __u64 *halves)
{
	return half_sum(halves[0]) + half_sum(halves[1]);
}

/* Sum of IPv6's pseudo header (RFC 8200 section 8.1). */
static __always_inline __u64 ipv6_pseudo_sum(const __u64 *source, const __u64 *destination, __u32 bytes,
					     __u8 protocol)
{
	return halves_sum(source) + halves_sum(destination) + bpf_htonl(bytes) + bpf_htonl(protocol);
}

/* The new value of a checksum after the 16-bit word `before` became `after` (RFC 1624). */
static __always_inline __u16 checksum_update(__u16 checksum, __u16 before, __u16 after)
{
	__u32 sum = (__u16)~checksum + (__u16)~before + after;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Stores the TTL, and the checksum that follows from it. */
static __always_inline void ipv4_set_ttl(struct ipv4_header *ip, __u8 ttl)
{
	__u16 before = LOAD16(&ip->ttl); /* TTL and protocol are one word of the sum */
	__u16 after = (before & bpf_htons(0xff)) | bpf_htons(ttl << 8);

	ip->ttl = ttl;
	ip->checksum = checksum_update(ip->checksum, before, after);
}

/*
 * Decrements a TTL of at least 1, and changes the checksum accordingly (RFC 1624, RFC 1141): the sum of the header is 1
 * less in the high byte of a word, so the checksum is as much more. TTL, protocol and checksum are one word.
 */
static __always_inline void ipv4_decrement_ttl(void *ip)
{
	__u32 word = LOAD32(ip + __builtin_offsetof(struct ipv4_header, ttl));
	__u32 checksum = (word >> 16) + bpf_htons(0x0100);

	checksum += checksum >= 0xffff;
	word = ((word & 0xffff) - bpf_htons(0x0100)) | checksum << 16;
	STORE32(ip + __builtin_offsetof(struct ipv4_header, ttl), word);
}

#endif
