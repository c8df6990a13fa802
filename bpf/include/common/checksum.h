/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Internet checksums (RFC 1071). Sums are of words as they lie in memory, so
 * that a folded sum is stored as it is; they are kept in 64 bits, which hold
 * more words than any packet has.
 *
 * The includer of packet_sum() says by SLUICE_CONTEXT what a packet is (struct
 * xdp_md or struct __sk_buff) and by packet_load() how to read it.
 */
#ifndef SLUICE_CHECKSUM_H
#define SLUICE_CHECKSUM_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "common/bytes.h"

/* The checksum of what was summed up: 0 if a right checksum was among it. */
static __always_inline __u16 checksum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* An IPv4 header without options. */
static __always_inline __u64 ipv4_header_sum(const void *ip)
{
	return (__u64)LOAD32(ip) + LOAD32(ip + 4) + LOAD32(ip + 8) + LOAD32(ip + 12) +
	       LOAD32(ip + 16);
}

/* An address's half in host order, as it counts in a sum. */
static __always_inline __u64 half_sum(__u64 half)
{
	half = bpf_cpu_to_be64(half);
	return (half & 0xffffffff) + (half >> 32);
}

/* Pseudo header of IPv6 (RFC 8200 section 8.1). */
static __always_inline __u64 ipv6_pseudo_sum(const __u64 *source, const __u64 *destination,
					     __u32 bytes, __u8 protocol)
{
	return half_sum(source[0]) + half_sum(source[1]) + half_sum(destination[0]) +
	       half_sum(destination[1]) + bpf_htonl(bytes) + bpf_htonl(protocol);
}

/* A checksum's new value when the 16-bit word `before` at an even place became `after` (RFC 1624). */
static __always_inline __u16 checksum_update(__u16 checksum, __u16 before, __u16 after)
{
	__u32 sum = (__u16)~checksum + (__u16)~before + after;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

#ifdef SLUICE_CONTEXT

/* Linux 6.1 rounds each frame of a call chain up to 32 bytes: a longer chunk has no room. */
#define SUM_CHUNK 64
#define SUM_FAILED 0xffffffffffffffffull

/* Sums up `length` bytes from `offset` of the packet, linear or not. */
__attribute__((noinline)) __u64 packet_sum(SLUICE_CONTEXT *ctx, __u32 offset, __u32 length)
{
	__u64 chunk[SUM_CHUNK / 8] = {};
	__u32 sum = 0;

	for (int i = 0; i < 65536 / SUM_CHUNK; i++) {
		if (length < SUM_CHUNK)
			break;
		if (packet_load(ctx, offset, chunk, SUM_CHUNK))
			return SUM_FAILED;
		sum = bpf_csum_diff(0, 0, (__be32 *)chunk, SUM_CHUNK, sum);
		offset += SUM_CHUNK;
		length -= SUM_CHUNK;
	}
	if (!length || length >= SUM_CHUNK)
		return length ? SUM_FAILED : sum;
	__builtin_memset(chunk, 0, sizeof(chunk));
	/* Linux 6.1 does not learn from a comparison with zero that it is none. */
	length -= 1;
	asm volatile("" : "+r"(length));
	if (packet_load(ctx, offset, chunk, (length & (SUM_CHUNK - 1)) + 1))
		return SUM_FAILED;
	return (__u32)bpf_csum_diff(0, 0, (__be32 *)chunk, SUM_CHUNK, sum);
}

#endif
#endif
