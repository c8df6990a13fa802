/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Parsing a tenant's frame: Ethernet, ARP, IPv4, IPv6 with its extension
 * headers, and the first word of the transport header. Used by the gateway
 * behind VXLAN and by the vSwitch on ports and on the VXLAN device.
 *
 * Contract: nothing is read that does not lie before the packet's end; lengths
 * are checked against `available`, the bytes that the frame has by the account
 * of whatever carried it (which may be more than lies in the linear part). The
 * answer is DROP_none or the reason to drop. The includer says what a packet is
 * (see checksum.h).
 */
#ifndef SLUICE_PARSE_H
#define SLUICE_PARSE_H

#include "common/checksum.h"
#include "common/frame.h"
#include "layout/drops.h"

#define EXTENSION_HEADERS_MAX 6

/* Bytes that a transport header has at least; 0 for protocols that are not looked into. */
static __always_inline __u32 transport_bytes(__u8 protocol, int ipv6)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return 20;
	case IPPROTO_UDP:
		return 8;
	case IPPROTO_SCTP:
		return 12;
	case IPPROTO_ICMP:
		return ipv6 ? 0 : 8;
	case IPPROTO_ICMPV6:
		return ipv6 ? 4 : 0;
	}
	return 0;
}

/* Reads the transport word at `at`, `bytes` before the end of the IP packet. */
static __always_inline enum drop_reason parse_transport(const void *at, const void *end, __u32 bytes,
							struct frame *frame)
{
	__u32 least = transport_bytes(frame->protocol, frame->flags & FRAME_IPV6);

	if (!least || frame->flags & FRAME_LATER)
		return DROP_none;
	if (bytes < least || at + 4 > end)
		return DROP_inner_truncated;
	frame->transport = bpf_ntohl(LOAD32(at));
	return DROP_none;
}

/* ip: at least IPV4_BYTES before end. */
static __always_inline enum drop_reason parse_ipv4(const void *ip, const void *end, __u32 available,
						   struct frame *frame)
{
	__u32 version = LOAD8(ip), total = bpf_ntohs(LOAD16(ip + 2));
	__u32 fragment = bpf_ntohs(LOAD16(ip + 6)), header = (version & 15) * 4;
	__u64 sum = ipv4_header_sum(ip);

	if (version >> 4 != 4)
		return DROP_inner_ethertype;
	if (header < IPV4_BYTES || total < header || total > available || ip + header > end)
		return DROP_inner_truncated;
	frame->ip_bytes = total;
	frame->flags = 0;
	if (header > IPV4_BYTES) {
		frame->flags |= FRAME_OPTIONS;
		for (__u32 i = IPV4_BYTES; i < 60; i += 4) {
			if (i >= header || ip + i + 4 > end)
				break;
			sum += LOAD32(ip + i);
		}
	}
	if (checksum_fold(sum))
		return DROP_inner_checksum;
	if (fragment & 0x4000)
		frame->flags |= FRAME_DF;
	if (fragment & 0x3fff)
		frame->flags |= FRAME_FRAGMENT;
	if (fragment & 0x1fff)
		frame->flags |= FRAME_LATER;
	frame->ttl = LOAD8(ip + 8);
	frame->protocol = LOAD8(ip + 9);
	frame->traffic_class = LOAD8(ip + 1);
	frame->source[0] = 0;
	frame->source[1] = bpf_ntohl(LOAD32(ip + 12));
	frame->destination[0] = 0;
	frame->destination[1] = bpf_ntohl(LOAD32(ip + 16));
	frame->transport_at = ETH_HLEN + header;
	return parse_transport(ip + header, end, total - header, frame);
}

/*
 * Follows extension headers from `at` in the packet, the first byte behind an
 * IPv6 header, within `bytes`. A function of its own, for the verifier, that is
 * called for the few packets that have them. Answers
 *
 *   transport << 32 | offset << 16 | fragment flags << 8 | protocol
 *
 * with the first word of the transport header, or EXTENSIONS_*.
 */
#define EXTENSIONS_TRUNCATED 0xffffffffu
#define EXTENSIONS_TOO_MANY 0xfffffffeu

static __always_inline __u64 extensions_end(SLUICE_CONTEXT *ctx, __u32 at, __u32 bytes, __u32 flags,
					    __u8 protocol)
{
	__u32 word = 0;

	if (transport_bytes(protocol, 1) && !(flags & FRAME_LATER) &&
	    (bytes < transport_bytes(protocol, 1) || packet_load(ctx, at, &word, sizeof(word))))
		return EXTENSIONS_TRUNCATED;
	return (__u64)bpf_ntohl(word) << 32 | flags << 8 | protocol;
}

__attribute__((noinline)) __u64 follow_extensions(SLUICE_CONTEXT *ctx, __u32 at, __u32 bytes,
						  __u32 next)
{
	__u32 offset = 0, flags = 0;

	for (int i = 0; i <= EXTENSION_HEADERS_MAX; i++) {
		__u8 header[8] = {};
		__u32 length;

		if ((next != NEXT_HOP_BY_HOP && next != NEXT_ROUTING && next != NEXT_FRAGMENT &&
		     next != NEXT_AUTHENTICATION && next != NEXT_DESTINATION) ||
		    flags & FRAME_LATER) {
			__u64 end = extensions_end(ctx, at + offset, bytes - offset, flags, next);

			return end == EXTENSIONS_TRUNCATED ? end : end | offset << 16;
		}
		if (offset + sizeof(header) > bytes ||
		    packet_load(ctx, at + offset, header, sizeof(header)))
			return EXTENSIONS_TRUNCATED;
		length = (header[1] + 1) * 8;
		if (next == NEXT_FRAGMENT) {
			length = sizeof(header);
			if (header[2] || header[3] & 0xf9)
				flags |= FRAME_FRAGMENT;
			if (header[2] || header[3] & 0xf8)
				flags |= FRAME_LATER;
		} else if (next == NEXT_AUTHENTICATION) {
			length = (header[1] + 2) * 4;
		}
		next = header[0];
		offset += length;
		if (offset > bytes)
			return EXTENSIONS_TRUNCATED;
	}
	return EXTENSIONS_TOO_MANY;
}

/* ip: at least IPV6_BYTES before end, and `at` bytes into the packet. */
static __always_inline enum drop_reason parse_ipv6(SLUICE_CONTEXT *ctx, __u32 at, const void *ip,
						   const void *end, __u32 available,
						   struct frame *frame)
{
	__u32 first = bpf_ntohl(LOAD32(ip)), payload = bpf_ntohs(LOAD16(ip + 4));
	__u32 next = LOAD8(ip + 6);
	__u64 found;

	if (first >> 28 != 6)
		return DROP_inner_ethertype;
	if (payload + IPV6_BYTES > available)
		return DROP_inner_truncated;
	frame->ip_bytes = payload + IPV6_BYTES;
	frame->flags = FRAME_IPV6 | FRAME_DF;
	frame->ttl = LOAD8(ip + 7);
	frame->traffic_class = first >> 20;
	frame->source[0] = load_half(ip + 8);
	frame->source[1] = load_half(ip + 16);
	frame->destination[0] = load_half(ip + 24);
	frame->destination[1] = load_half(ip + 32);
	frame->protocol = next;
	frame->transport_at = ETH_HLEN + IPV6_BYTES;
	if (next == IPPROTO_TCP || next == IPPROTO_UDP || next == IPPROTO_ICMPV6)
		return parse_transport(ip + IPV6_BYTES, end, payload, frame);
	found = follow_extensions(ctx, at + IPV6_BYTES, payload, next);
	if (found == EXTENSIONS_TRUNCATED)
		return DROP_inner_truncated;
	if (found == EXTENSIONS_TOO_MANY)
		return DROP_inner_options;
	frame->transport = found >> 32;
	frame->transport_at += (__u16)(found >> 16);
	frame->protocol = found;
	frame->flags |= found >> 8 & (FRAME_FRAGMENT | FRAME_LATER);
	if (frame->transport_at > ETH_HLEN + IPV6_BYTES)
		frame->flags |= FRAME_OPTIONS;
	return DROP_none;
}

/*
 * Parses the frame that starts `at` bytes into the packet. ARP frames have
 * ethertype, MACs and the room for ARP_BYTES checked, no more (answer.h).
 * Source addresses are not judged: see source_valid().
 */
static __always_inline enum drop_reason parse_frame(SLUICE_CONTEXT *ctx, __u32 at, __u32 available,
						    struct frame *frame)
{
	const void *start = (const void *)(long)ctx->data + at;
	const void *end = (const void *)(long)ctx->data_end;

	/* The shortest frame of interest holds an IPv4 header: one check for all. */
	if (available < ETH_HLEN + IPV4_BYTES || start + ETH_HLEN + IPV4_BYTES > end)
		return DROP_inner_truncated;
	available -= ETH_HLEN;
	frame->destination_mac = load_mac(start);
	frame->source_mac = load_mac(start + ETH_ALEN);
	frame->ethertype = bpf_ntohs(LOAD16(start + 2 * ETH_ALEN));
	frame->transport = 0;
	if (frame->ethertype == ETH_P_IP)
		return parse_ipv4(start + ETH_HLEN, end, available, frame);
	if (frame->ethertype == ETH_P_IPV6) {
		if (available < IPV6_BYTES || start + ETH_HLEN + IPV6_BYTES > end)
			return DROP_inner_truncated;
		return parse_ipv6(ctx, at + ETH_HLEN, start + ETH_HLEN, end, available, frame);
	}
	if (frame->ethertype == ETH_P_ARP) {
		if (available < ARP_BYTES || start + ETH_HLEN + ARP_BYTES > end)
			return DROP_inner_truncated;
		return DROP_none;
	}
	if (frame->ethertype == ETHERTYPE_VLAN || frame->ethertype == ETHERTYPE_QINQ)
		return DROP_inner_vlan;
	return DROP_inner_ethertype;
}

#endif
