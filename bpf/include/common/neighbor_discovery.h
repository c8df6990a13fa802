/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Address resolution: ARP (RFC 826, 5227) and IPv6 neighbour discovery (RFC
 * 4861). Questions are checked and answered in place; who is asked for, and by
 * which MAC it goes, is the caller's affair. The same for tenants' frames and
 * for the underlay's own.
 */
#ifndef SLUICE_NEIGHBOR_DISCOVERY_H
#define SLUICE_NEIGHBOR_DISCOVERY_H

#include "common/checksum.h"
#include "common/frame.h"
#include "layout/drops.h"

#define ND_SOLICIT_BYTES 24
#define ND_ADVERT_BYTES 32 /* with the target's MAC */
#define ND_ADVERT_FRAME (ETH_HLEN + IPV6_BYTES + ND_ADVERT_BYTES)
#define ND_OPTIONS_MAX 8
#define ND_SOURCE_MAC 1
#define ND_TARGET_MAC 2
#define ND_ROUTER 0x80000000u
#define ND_SOLICITED 0x40000000u
#define ND_OVERRIDE 0x20000000u

static __always_inline int is_nd(const struct frame *frame)
{
	__u32 type = frame->transport >> 24;

	return frame->flags & FRAME_IPV6 && frame->protocol == IPPROTO_ICMPV6 &&
	       !(frame->flags & FRAME_LATER) && type >= ICMP6_ROUTER_SOLICIT &&
	       type <= ICMP6_REDIRECT;
}

/* Options: none of length 0 or beyond the message; no source MAC in a probe. */
static __always_inline int nd_options_valid(const void *message, const void *end, __u32 bytes,
					    int probe)
{
	__u32 offset = ND_SOLICIT_BYTES;

	for (int i = 0; i < ND_OPTIONS_MAX; i++) {
		__u32 length;

		if (offset == bytes)
			return 1;
		if (message + offset + 2 > end)
			return 0;
		length = LOAD8(message + offset + 1) * 8;
		if (!length || offset + length > bytes)
			return 0;
		if (probe && LOAD8(message + offset) == ND_SOURCE_MAC)
			return 0;
		offset += length;
	}
	return offset == bytes;
}

#ifdef SLUICE_CONTEXT

/*
 * Checks a neighbour solicitation (RFC 4861 section 7.1.1, RFC 6980) whose frame
 * starts `frame_at` bytes into the packet, and reads its target, where it has
 * one also if the rest is wrong.
 */
static __always_inline enum drop_reason parse_solicit(SLUICE_CONTEXT *ctx, __u32 frame_at,
						      const struct frame *frame, __u64 *target)
{
	const void *start = (const void *)(long)ctx->data + frame_at;
	const void *end = (const void *)(long)ctx->data_end;
	const void *message = start + ETH_HLEN + IPV6_BYTES;
	__u32 bytes = frame->ip_bytes - IPV6_BYTES;
	int probe = !frame->source[0] && !frame->source[1];
	__u64 sum;

	if (frame->flags & (FRAME_OPTIONS | FRAME_FRAGMENT) || bytes < ND_SOLICIT_BYTES ||
	    message + ND_SOLICIT_BYTES > end)
		return DROP_nd_malformed;
	target[0] = load_half(message + 8);
	target[1] = load_half(message + 16);
	if (frame->ttl != 255 || frame->transport >> 16 != ICMP6_SOLICIT << 8)
		return DROP_nd_malformed;
	if (ipv6_multicast(target[0]) || ipv6_multicast(frame->source[0]) ||
	    frame->source_mac & MAC_GROUP_BIT || !frame->source_mac)
		return DROP_nd_malformed;
	/* A probe goes to the solicited-node address. */
	if (probe && (frame->destination[0] != 0xff02000000000000ull ||
		      frame->destination[1] >> 24 != 0x1ff))
		return DROP_nd_malformed;
	if (!nd_options_valid(message, end, bytes, probe))
		return DROP_nd_malformed;
	sum = packet_sum(ctx, frame_at + ETH_HLEN + IPV6_BYTES, bytes);
	if (sum == SUM_FAILED)
		return DROP_nd_malformed;
	sum += ipv6_pseudo_sum(frame->source, frame->destination, bytes, IPPROTO_ICMPV6);
	return checksum_fold(sum) ? DROP_nd_malformed : DROP_none;
}

#endif

/*
 * Writes the answer, ND_ADVERT_FRAME bytes at `start`: `target` is at `mac`.
 * flags: ND_ROUTER or 0. A probe (no source address) is answered to all nodes.
 */
static __always_inline void write_advert(void *start, const struct frame *question,
					 const __u64 *target, __u64 mac, __u32 flags)
{
	void *ip = start + ETH_HLEN, *message = ip + IPV6_BYTES;
	int probe = !question->source[0] && !question->source[1];
	__u64 to[2] = { question->source[0], question->source[1] };
	__u64 to_mac = question->source_mac, sum;

	flags |= ND_OVERRIDE;
	if (probe) {
		to[0] = 0xff02000000000000ull;
		to[1] = 1;
		to_mac = 0x333300000001ull;
	} else {
		flags |= ND_SOLICITED;
	}
	store_mac(start, to_mac);
	store_mac(start + ETH_ALEN, mac);
	STORE16(start + 2 * ETH_ALEN, bpf_htons(ETH_P_IPV6));
	STORE32(ip, bpf_htonl(0x60000000));
	STORE32(ip + 4, bpf_htonl(ND_ADVERT_BYTES << 16 | IPPROTO_ICMPV6 << 8 | 255));
	store_half(ip + 8, target[0]);
	store_half(ip + 16, target[1]);
	store_half(ip + 24, to[0]);
	store_half(ip + 32, to[1]);
	STORE32(message, bpf_htonl((__u32)ICMP6_ADVERT << 24));
	STORE32(message + 4, bpf_htonl(flags));
	store_half(message + 8, target[0]);
	store_half(message + 16, target[1]);
	store_half(message + 24, (__u64)ND_TARGET_MAC << 56 | 1ull << 48 | mac);
	sum = ipv6_pseudo_sum(target, to, ND_ADVERT_BYTES, IPPROTO_ICMPV6);
	sum += LOAD32(message) + (__u64)LOAD32(message + 4) + half_sum(target[0]) +
	       half_sum(target[1]) + half_sum((__u64)ND_TARGET_MAC << 56 | 1ull << 48 | mac);
	STORE16(message + 2, checksum_fold(sum));
}

#endif
