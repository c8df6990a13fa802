/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Parsing of a tenant's frame: Ethernet, ARP, IPv4, IPv6 with its extension headers, and the first
 * word of the transport header. The gateway uses it behind VXLAN, the vSwitch on ports and on the
 * VXLAN device.
 *
 * Contract: the includer satisfies context.h. parse_frame() fills in all of struct frame and returns
 * DROP_none, or returns the reason to drop and leaves some fields undefined.
 * Lengths are checked against `available`, the bytes that the frame has according to what carried it,
 * which may be more than are linear. Headers are read from the linear part, and only extension headers
 * also from fragments. The packet is not changed. Uses no map.
 */
#ifndef SLUICE_PARSE_H
#define SLUICE_PARSE_H

#include "common/checksum.h"
#include "common/cursor.h"
#include "common/frame.h"
#include "layout/drops.h"

#define EXTENSION_HEADERS_MAX 6

/* The shortest header of a transport protocol, in bytes. 0 for protocols that are not parsed. */
static __always_inline __u32 transport_bytes(__u8 protocol, int ipv6)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return sizeof(struct tcp_header);
	case IPPROTO_UDP:
		return UDP_BYTES;
	case IPPROTO_SCTP:
		return SCTP_HEADER_BYTES;
	case IPPROTO_ICMP:
		return ipv6 ? 0 : ICMP_BYTES;
	case IPPROTO_ICMPV6:
		return ipv6 ? 4 : 0;
	}
	return 0;
}

/* Reads the transport word at the cursor. The IP packet ends `bytes` behind it. */
static __always_inline enum drop_reason parse_transport(struct cursor *cursor, __u32 bytes,
							struct frame *frame)
{
	__u32 least = transport_bytes(frame->protocol, frame->flags & FRAME_IPV6);
	const __be32 *word;

	if (!least || frame->flags & FRAME_LATER)
		return DROP_none;
	word = take_header(cursor, __be32);
	if (bytes < least || !word)
		return DROP_inner_truncated;
	frame->transport = bpf_ntohl(*word);
	return DROP_none;
}

/* The cursor has at least IPV4_BYTES. */
static __always_inline enum drop_reason parse_ipv4(struct cursor *cursor, __u32 available,
						   struct frame *frame)
{
	const struct ipv4_header *ip = next_header(cursor, struct ipv4_header);
	__u32 total = bpf_ntohs(ip->bytes), fragment = bpf_ntohs(ip->fragment);
	__u32 header = (ip->version & 15) * 4, options = header - IPV4_BYTES;
	__u64 sum = ipv4_header_sum(ip);

	if (ip->version >> 4 != 4)
		return DROP_inner_ethertype;
	if (header < IPV4_BYTES || total < header || total > available)
		return DROP_inner_truncated;
	/* The verifier of Linux 6.1 forgets that the header is long enough. */
	asm volatile("" : "+r"(options));
	options &= 15 * 4;
	if (!cursor_has(cursor, options))
		return DROP_inner_truncated;
	frame->ip_bytes = total;
	frame->flags = 0;
	if (options) {
		frame->flags |= FRAME_OPTIONS;
		for (__u32 i = 0; i < IPV4_HEADER_MAX - IPV4_BYTES; i += 4) {
			if (i >= options || !cursor_has(cursor, i + 4))
				break;
			sum += LOAD32(cursor->at + i);
		}
	}
	if (!checksum_valid(sum))
		return DROP_inner_checksum;
	if (fragment & IPV4_DF)
		frame->flags |= FRAME_DF;
	if (fragment & (IPV4_MORE | IPV4_OFFSET))
		frame->flags |= FRAME_FRAGMENT;
	if (fragment & IPV4_OFFSET)
		frame->flags |= FRAME_LATER;
	frame->ttl = ip->ttl;
	frame->protocol = ip->protocol;
	frame->traffic_class = ip->traffic_class;
	frame->source[0] = 0;
	frame->source[1] = bpf_ntohl(ip->source);
	frame->destination[0] = 0;
	frame->destination[1] = bpf_ntohl(ip->destination);
	frame->transport_at = ETH_HLEN + header;
	cursor_advance(cursor, options);
	return parse_transport(cursor, total - header, frame);
}

/*
 * Follows extension headers from `at` in the packet, the first byte behind an IPv6 header. The IP
 * packet ends `bytes` behind that. `next` is the IPv6 header's own field. The result is
 *
 *   transport << 32 | offset << 16 | fragment flags << 8 | protocol
 *
 * with the first word of the transport header and its offset from `at`, or EXTENSIONS_*. It is a
 * function, so that the verifier processes it once and not for every caller. Few packets need it.
 */
#define EXTENSIONS_TRUNCATED 0xffffffffu
#define EXTENSIONS_TOO_MANY 0xfffffffeu

static __always_inline int is_extension(__u32 next)
{
	return next == EXTENSION_HOP_BY_HOP || next == EXTENSION_ROUTING || next == EXTENSION_FRAGMENT ||
	       next == EXTENSION_AUTHENTICATION || next == EXTENSION_DESTINATION;
}

static __always_inline __u64 extensions_end(program_context *ctx, __u32 at, __u32 bytes, __u32 flags,
					    __u8 protocol)
{
	__u32 least = transport_bytes(protocol, 1);
	__be32 word = 0;

	if (least && !(flags & FRAME_LATER) && (bytes < least || context_load(ctx, at, &word, sizeof(word))))
		return EXTENSIONS_TRUNCATED;
	return (__u64)bpf_ntohl(word) << 32 | flags << 8 | protocol;
}

__attribute__((noinline)) __u64 follow_extensions(program_context *ctx, __u32 at, __u32 bytes, __u32 next)
{
	__u32 offset = 0, flags = 0;

	for (int i = 0; i <= EXTENSION_HEADERS_MAX; i++) {
		struct ipv6_extension header = {};
		__u32 length;

		if (!is_extension(next) || flags & FRAME_LATER) {
			__u64 end = extensions_end(ctx, at + offset, bytes - offset, flags, next);

			return end == EXTENSIONS_TRUNCATED ? end : end | offset << 16;
		}
		if (offset + sizeof(header) > bytes ||
		    context_load(ctx, at + offset, &header, sizeof(header)))
			return EXTENSIONS_TRUNCATED;
		length = (header.units + 1) * 8;
		if (next == EXTENSION_FRAGMENT) {
			length = sizeof(header);
			if (header.fragment & bpf_htons(IPV6_OFFSET | IPV6_MORE))
				flags |= FRAME_FRAGMENT;
			if (header.fragment & bpf_htons(IPV6_OFFSET))
				flags |= FRAME_LATER;
		} else if (next == EXTENSION_AUTHENTICATION) {
			length = (header.units + 2) * 4;
		}
		next = header.next;
		offset += length;
		if (offset > bytes)
			return EXTENSIONS_TRUNCATED;
	}
	return EXTENSIONS_TOO_MANY;
}

/* The cursor, `at` bytes into the packet, has at least IPV6_BYTES. */
static __always_inline enum drop_reason parse_ipv6(program_context *ctx, __u32 at, struct cursor *cursor,
						   __u32 available, struct frame *frame)
{
	const struct ipv6_header *ip = next_header(cursor, struct ipv6_header);
	__u32 first = bpf_ntohl(ip->version), payload = bpf_ntohs(ip->bytes), next = ip->next;
	__u64 found;

	if (first >> 28 != 6)
		return DROP_inner_ethertype;
	if (payload + IPV6_BYTES > available)
		return DROP_inner_truncated;
	frame->ip_bytes = payload + IPV6_BYTES;
	frame->flags = FRAME_IPV6 | FRAME_DF;
	frame->ttl = ip->hop_limit;
	frame->traffic_class = first >> IPV6_CLASS_SHIFT;
	load_halves(frame->source, ip->source);
	load_halves(frame->destination, ip->destination);
	frame->protocol = next;
	frame->transport_at = ETH_HLEN + IPV6_BYTES;
	if (next == IPPROTO_TCP || next == IPPROTO_UDP || next == IPPROTO_ICMPV6)
		return parse_transport(cursor, payload, frame);
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

/* Sets the fields of a frame that is not IP. */
static __always_inline void clear_ip(struct frame *frame)
{
	frame->source[0] = frame->source[1] = 0;
	frame->destination[0] = frame->destination[1] = 0;
	frame->ip_bytes = 0;
	frame->transport_at = 0;
	frame->protocol = 0;
	frame->ttl = 0;
	frame->traffic_class = 0;
	frame->flags = 0;
}

/*
 * Parses the frame that starts `at` bytes into the packet. Of an ARP frame only the MAC addresses, the
 * ethertype and the length are read (arp.h reads the rest); all fields of IP are zero. Source addresses are
 * not judged: source_valid() (frame.h) does that.
 */
static __always_inline enum drop_reason parse_frame(program_context *ctx, __u32 at, __u32 available,
						    struct frame *frame)
{
	struct cursor cursor = cursor_at(ctx, at);
	const struct ethernet_header *ethernet;

	/* No frame that is accepted is shorter than one with an IPv4 header: one check for both headers. */
	if (available < ETH_HLEN + IPV4_BYTES || !cursor_has(&cursor, ETH_HLEN + IPV4_BYTES))
		return DROP_inner_truncated;
	ethernet = next_header(&cursor, struct ethernet_header);
	available -= ETH_HLEN;
	frame->destination_mac = load_mac(ethernet->destination);
	frame->source_mac = load_mac(ethernet->source);
	frame->ethertype = bpf_ntohs(ethernet->type);
	frame->transport = 0;
	if (frame->ethertype == ETH_P_IP)
		return parse_ipv4(&cursor, available, frame);
	if (frame->ethertype == ETH_P_IPV6) {
		if (available < IPV6_BYTES || !cursor_has(&cursor, IPV6_BYTES))
			return DROP_inner_truncated;
		return parse_ipv6(ctx, at + ETH_HLEN, &cursor, available, frame);
	}
	if (frame->ethertype == ETH_P_ARP) {
		if (available < ARP_BYTES || !cursor_has(&cursor, ARP_BYTES))
			return DROP_inner_truncated;
		clear_ip(frame);
		return DROP_none;
	}
	if (frame->ethertype == ETHERTYPE_VLAN || frame->ethertype == ETHERTYPE_QINQ)
		return DROP_inner_vlan;
	return DROP_inner_ethertype;
}

#endif
