/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge, stage "translate": replaces the addresses of a packet, and the ports or the identifier of ICMP that
 * source NAT has translated, and what follows from them: the checksums
 * of the IPv4 header, of TCP, UDP and ICMPv6 (RFC 1624), and the packet that an ICMP error quotes (RFC 5508 section 4).
 * The MSS option of SYN segments is reduced to what the way carries.
 *
 * Contract: translate() expects the parsed frame, `at` bytes into the packet, with new_source, new_destination,
 * source_public, destination_public, `nat` with the ports that it demands, and longest. Of the state of the packet, it changes only `header` and `next_option`: the
 * frame keeps the addresses that were received. DROP_none, or the reason to drop. Checksums that were wrong stay wrong.
 * Headers are changed by helpers where they may be behind the linear part. Uses the map `cells`.
 */
#ifndef SLUICE_TRANSLATE_H
#define SLUICE_TRANSLATE_H

#include "common/checksum.h"
#include "common/cursor.h"
#include "gateway/packet.h"
#include "gateway/public.h"

#define TCP_SYN 0x02
#define TCP_HEADER_BYTES 20
#define TCP_OPTIONS_MAX 40
#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MSS 2
#define TCP_OPTION_MSS_BYTES 4

/* No change of a checksum has this value. */
#define CHANGE_INVALID 0xffffffffffffffffull

/* What is added to a sum when the words of one address become those of another. */
static __always_inline __u64 address_change(const __u64 *before, const __u64 *after)
{
	return half_sum(~before[0]) + half_sum(~before[1]) + halves_sum(after);
}

/* The checksum after its sum has changed by `change`. */
static __always_inline __u16 checksum_after(__u16 checksum, __u64 change)
{
	return checksum_fold((__u16)~checksum + change);
}

/* Updates the checksum `offset` bytes into the packet. With `is_udp`, a checksum of 0 says that the sender computed none. */
static __always_inline enum drop_reason update_checksum(struct xdp_md *ctx, __u32 offset, __u64 change,
							int is_udp)
{
	__u16 checksum;

	if (bpf_xdp_load_bytes(ctx, offset, &checksum, sizeof(checksum)))
		return DROP_inner_truncated;
	if (is_udp && !checksum)
		return DROP_none;
	checksum = checksum_after(checksum, change);
	if (is_udp && !checksum)
		checksum = 0xffff;
	return bpf_xdp_store_bytes(ctx, offset, &checksum, sizeof(checksum)) ? DROP_headroom : DROP_none;
}

/* Whether source NAT has translated one of the ports. */
static __always_inline int has_new_port(const struct packet *packet)
{
	return packet->nat & (PACKET_NAT_SOURCE | PACKET_NAT_DESTINATION);
}

/* The change of a sum when one of its words, in packet order, becomes another one. */
static __always_inline __u64 word_change(__u32 before, __u32 after)
{
	return (__u64)(__u32)~before + after;
}

/* Writes the new ports of TCP and UDP. Returns the change of the sum, or CHANGE_INVALID. */
__attribute__((noinline)) __u64 translate_ports(struct xdp_md *ctx, struct packet *packet, __u32 offset)
{
	__be32 before, ports;

	if (!packet)
		return CHANGE_INVALID;
	before = ports = bpf_htonl(packet->frame.transport);
	if (packet->nat & PACKET_NAT_SOURCE)
		ports = (ports & bpf_htonl(0xffff)) | bpf_htonl((__u32)packet->new_source_port << 16);
	if (packet->nat & PACKET_NAT_DESTINATION)
		ports = (ports & bpf_htonl(0xffff0000)) | bpf_htonl(packet->new_destination_port);
	return bpf_xdp_store_bytes(ctx, offset, &ports, sizeof(ports)) ? CHANGE_INVALID
								       : word_change(before, ports);
}

/*
 * Reduces the MSS option to what `longest` allows. The options are `bytes` at `offset` of the packet. Returns the change of
 * the segment's sum.
 */
__attribute__((noinline)) __u64 clamp_mss(struct xdp_md *ctx, struct packet *packet, __u32 offset,
					  __u32 bytes)
{
	__u32 most, before, headers, next;
	const __u8 *options;
	__be16 after;

	if (!packet || bytes - 1 >= TCP_OPTIONS_MAX)
		return 0;
	/* The verifier of Linux 6.1 does not learn that the number is not zero. */
	bytes -= 1;
	asm volatile("" : "+r"(bytes));
	bytes = (bytes & (sizeof(packet->header) - 1)) + 1;
	if (bpf_xdp_load_bytes(ctx, offset, packet->header, bytes))
		return 0;
	options = (const __u8 *)packet->header;
	headers = (packet->frame.flags & FRAME_IPV6 ? IPV6_BYTES : IPV4_BYTES) + TCP_HEADER_BYTES;
	most = packet->longest > headers ? packet->longest - headers : 0xffff;
	/* In memory, because the verifier would follow all values that it may have in a register. */
	packet->next_option = 0;
	for (__u32 i = 0; i < TCP_OPTIONS_MAX; i++) {
		if (i >= bytes)
			break;
		if (i != READ_ONCE(packet->next_option))
			continue;
		WRITE_ONCE(packet->next_option, i + 1);
		if (options[i] == TCP_OPTION_NOP)
			continue;
		if (options[i] == TCP_OPTION_END || options[i + 1] < 2)
			break;
		next = i + options[i + 1];
		WRITE_ONCE(packet->next_option, next);
		if (options[i] != TCP_OPTION_MSS)
			continue;
		before = options[i + 2] << 8 | options[i + 3];
		if (options[i + 1] != TCP_OPTION_MSS_BYTES || next > bytes || before <= most)
			break;
		after = bpf_htons(most);
		if (bpf_xdp_store_bytes(ctx, offset + i + 2, &after, sizeof(after)))
			break;
		before = (__u16)~bpf_htons(before);
		/* At an odd offset, the bytes are the halves of two words. */
		if (i & 1)
			return (__u64)__builtin_bswap16(before) + __builtin_bswap16(after);
		return (__u64)before + after;
	}
	return 0;
}

/* A function, so that translate() has less stack. */
__attribute__((noinline)) enum drop_reason translate_tcp(struct xdp_md *ctx, struct packet *packet,
							 __u32 offset, __u64 change)
{
	struct tcp_header tcp;
	__u32 left, options;

	if (!packet)
		return DROP_stale_index;
	left = packet->frame.ip_bytes - (packet->frame.transport_at - ETH_HLEN);
	if (bpf_xdp_load_bytes(ctx, offset, &tcp, sizeof(tcp)))
		return DROP_inner_truncated;
	options = (tcp.offset >> 4) * 4 - TCP_HEADER_BYTES;
	if (tcp.flags & TCP_SYN && options <= TCP_OPTIONS_MAX && options + TCP_HEADER_BYTES <= left)
		change += clamp_mss(ctx, packet, offset + TCP_HEADER_BYTES, options);
	tcp.checksum = checksum_after(tcp.checksum, change);
	offset += __builtin_offsetof(struct tcp_header, checksum);
	return bpf_xdp_store_bytes(ctx, offset, &tcp.checksum, sizeof(tcp.checksum)) ? DROP_headroom
										     : DROP_none;
}

/* Writes the identifier of an ICMP message at `offset`. Returns the change of the sum; 0 if there is no identifier. */
static __always_inline __u64 translate_identifier(struct xdp_md *ctx, __u32 offset, __u16 id)
{
	__be16 before, after = bpf_htons(id);

	offset += __builtin_offsetof(struct icmp_header, rest);
	if (bpf_xdp_load_bytes(ctx, offset, &before, sizeof(before)) ||
	    bpf_xdp_store_bytes(ctx, offset, &after, sizeof(after)))
		return 0;
	return word_change(before, after);
}

/* The endpoint that asked is the one that source NAT translates. */
static __always_inline __u16 new_identifier(const struct packet *packet)
{
	return packet->nat & PACKET_NAT_SOURCE ? packet->new_source_port : packet->new_destination_port;
}

/*
 * Translates the ports or the identifier of a quoted packet, which goes the other way. Returns the change of the sum. At least
 * 8 bytes are quoted: read_nat_flow() (nat_flow.h) has read them.
 */
static __always_inline __u64 translate_quoted_ports(struct xdp_md *ctx, const struct packet *packet,
						    __u32 offset, __u8 protocol)
{
	__be16 port, before;
	__u64 change = 0;

	if (protocol == IPPROTO_ICMP)
		return translate_identifier(ctx, offset, new_identifier(packet));
	if (packet->nat & PACKET_NAT_DESTINATION &&
	    !bpf_xdp_load_bytes(ctx, offset, &before, sizeof(before))) {
		port = bpf_htons(packet->new_destination_port);
		if (!bpf_xdp_store_bytes(ctx, offset, &port, sizeof(port)))
			change += word_change(before, port);
	}
	offset += __builtin_offsetof(struct udp_header, destination);
	if (packet->nat & PACKET_NAT_SOURCE && !bpf_xdp_load_bytes(ctx, offset, &before, sizeof(before))) {
		port = bpf_htons(packet->new_source_port);
		if (!bpf_xdp_store_bytes(ctx, offset, &port, sizeof(port)))
			change += word_change(before, port);
	}
	return change;
}

/*
 * Updates the transport checksum of a quoted packet, of which `bytes` from `offset` on are quoted. Returns by how much the
 * sum of the quote changes by that.
 */
static __always_inline __u64 translate_quoted_transport(struct xdp_md *ctx, __u32 offset, __u32 bytes,
							__u8 protocol, __u64 change)
{
	__u16 before, after;
	__u32 at;

	if (protocol == IPPROTO_TCP)
		at = __builtin_offsetof(struct tcp_header, checksum);
	else if (protocol == IPPROTO_UDP)
		at = __builtin_offsetof(struct udp_header, checksum);
	else if (protocol == IPPROTO_ICMPV6 || protocol == IPPROTO_ICMP)
		at = __builtin_offsetof(struct icmp_header, checksum);
	else
		return 0;
	if (bytes < at + sizeof(before) || bpf_xdp_load_bytes(ctx, offset + at, &before, sizeof(before)) ||
	    (protocol == IPPROTO_UDP && !before))
		return 0;
	after = checksum_after(before, change);
	if (protocol == IPPROTO_UDP && !after)
		after = 0xffff;
	if (bpf_xdp_store_bytes(ctx, offset + at, &after, sizeof(after)))
		return 0;
	return (__u64)(__u16)~before + after;
}

/*
 * Translates the addresses of a quoted packet, which goes the other way: its source is where the error goes, its
 * destination where the error comes from, or another address of the same prefix. Others stay, but source NAT has found its
 * session by the quoted addresses. Returns the change of the quote's sum.
 */
static __always_inline __u64 translate_quoted_addresses(const struct packet *packet, __u64 *source,
							__u64 *destination)
{
	__u64 change = half_sum(~source[0]) + half_sum(~source[1]) + half_sum(~destination[0]) +
		       half_sum(~destination[1]);

	if (packet->nat & PACKET_NAT_DESTINATION)
		source[1] = packet->new_destination[1];
	else
		to_inside(packet->destination_public, source);
	if (packet->nat & PACKET_NAT_SOURCE)
		destination[1] = packet->new_source[1];
	else
		to_outside(packet->source_public, destination);
	return change + halves_sum(source) + halves_sum(destination);
}

/*
 * Translates the IPv4 packet at `offset`, of which an ICMP error quotes `bytes`. Returns the change of the error's sum;
 * CHANGE_INVALID if the quote has no header.
 */
__attribute__((noinline)) __u64 translate_quote4(struct xdp_md *ctx, struct packet *packet, __u32 offset,
						 __u32 bytes)
{
	__u64 source[2] = {}, destination[2] = {}, change, sum;
	struct ipv4_header *ip;
	__u32 header;

	if (!packet || bytes < IPV4_BYTES || bpf_xdp_load_bytes(ctx, offset, packet->header, IPV4_BYTES))
		return CHANGE_INVALID;
	ip = (struct ipv4_header *)packet->header;
	header = (ip->version & 15) * 4;
	if (ip->version >> 4 != 4 || header < IPV4_BYTES || header > bytes)
		return CHANGE_INVALID;
	source[1] = bpf_ntohl(ip->source);
	destination[1] = bpf_ntohl(ip->destination);
	change = translate_quoted_addresses(packet, source, destination);
	ip->source = bpf_htonl((__u32)source[1]);
	ip->destination = bpf_htonl((__u32)destination[1]);
	sum = change + (__u16)~ip->checksum;
	ip->checksum = checksum_after(ip->checksum, change);
	sum += ip->checksum;
	if (bpf_xdp_store_bytes(ctx, offset, packet->header, IPV4_BYTES))
		return CHANGE_INVALID;
	if (ip->fragment & bpf_htons(IPV4_OFFSET))
		return sum;
	/* The addresses are not in the checksum of ICMP. */
	if (ip->protocol == IPPROTO_ICMP)
		change = 0;
	if (has_new_port(packet)) {
		__u64 ports = translate_quoted_ports(ctx, packet, offset + header, ip->protocol);

		sum += ports;
		change += ports;
	}
	return sum + translate_quoted_transport(ctx, offset + header, bytes - header, ip->protocol, change);
}

/*
 * The same for an IPv6 packet. A transport checksum behind extension headers stays: receivers do not verify it. Ports stay as well:
 * nat64_quote_in() (nat64_icmp.h) has translated them.
 */
__attribute__((noinline)) __u64 translate_quote6(struct xdp_md *ctx, struct packet *packet, __u32 offset,
						 __u32 bytes)
{
	__u64 source[2], destination[2], change;
	struct ipv6_header *ip;

	if (!packet || bytes < IPV6_BYTES || bpf_xdp_load_bytes(ctx, offset, packet->header, IPV6_BYTES))
		return CHANGE_INVALID;
	ip = (struct ipv6_header *)packet->header;
	if ((bpf_ntohl(ip->version) & 0xf0000000) != IPV6_VERSION)
		return CHANGE_INVALID;
	load_halves(source, ip->source);
	load_halves(destination, ip->destination);
	change = translate_quoted_addresses(packet, source, destination);
	store_halves(ip->source, source);
	store_halves(ip->destination, destination);
	if (bpf_xdp_store_bytes(ctx, offset, packet->header, IPV6_BYTES))
		return CHANGE_INVALID;
	return change +
	       translate_quoted_transport(ctx, offset + IPV6_BYTES, bytes - IPV6_BYTES, ip->next, change);
}

/* Whether the message is an error, which quotes a packet. */
static __always_inline int is_icmp_error(const struct frame *frame)
{
	__u32 type = frame->transport >> 24;

	if (frame->flags & FRAME_IPV6)
		return type < ICMP6_INFORMATION;
	return type == ICMP4_UNREACHABLE || type == ICMP4_SOURCE_QUENCH || type == ICMP4_REDIRECT ||
	       type == ICMP4_TIME_EXCEEDED || type == ICMP4_PARAMETER_PROBLEM;
}

/* ICMP of either family. Only ICMPv6 has the addresses in its checksum, by the pseudo header. */
static __always_inline enum drop_reason translate_icmp(struct xdp_md *ctx, struct packet *packet,
						       __u32 offset, __u64 change)
{
	__u32 headers = packet->frame.transport_at - ETH_HLEN + ICMP_BYTES;
	int ipv6 = packet->frame.flags & FRAME_IPV6;
	__u64 quote = 0;

	if (is_icmp_error(&packet->frame)) {
		__u32 bytes = packet->frame.ip_bytes > headers ? packet->frame.ip_bytes - headers : 0;

		quote = ipv6 ? translate_quote6(ctx, packet, offset + ICMP_BYTES, bytes)
			     : translate_quote4(ctx, packet, offset + ICMP_BYTES, bytes);
		if (quote == CHANGE_INVALID)
			return DROP_inner_truncated;
	} else if (has_new_port(packet)) {
		quote = translate_identifier(ctx, offset, new_identifier(packet));
	} else if (!ipv6) {
		return DROP_none;
	}
	offset += __builtin_offsetof(struct icmp_header, checksum);
	return update_checksum(ctx, offset, ipv6 ? quote + change : quote, 0);
}

/* Writes the addresses into the IP header of the frame at the cursor. */
static __always_inline enum drop_reason write_addresses(struct cursor *cursor, const struct packet *packet,
							__u64 change)
{
	struct ipv4_header *ip4;
	struct ipv6_header *ip6;

	if (packet->frame.flags & FRAME_IPV6) {
		if (!cursor_has(cursor, ETH_HLEN + IPV6_BYTES))
			return DROP_headroom;
		cursor_advance(cursor, ETH_HLEN);
		ip6 = cursor->at;
		store_halves(ip6->source, packet->new_source);
		store_halves(ip6->destination, packet->new_destination);
		return DROP_none;
	}
	if (!cursor_has(cursor, ETH_HLEN + IPV4_BYTES))
		return DROP_headroom;
	cursor_advance(cursor, ETH_HLEN);
	ip4 = cursor->at;
	ip4->source = bpf_htonl((__u32)packet->new_source[1]);
	ip4->destination = bpf_htonl((__u32)packet->new_destination[1]);
	ip4->checksum = checksum_after(ip4->checksum, change);
	return DROP_none;
}

__attribute__((noinline)) enum drop_reason translate(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	struct cursor cursor;
	__u32 offset;
	__u64 change;

	if (!packet || at > TUNNEL6_BYTES)
		return DROP_stale_index;
	offset = at + packet->frame.transport_at;
	change = address_change(packet->frame.source, packet->new_source) +
		 address_change(packet->frame.destination, packet->new_destination);
	cursor = cursor_at(ctx, at);
	if (write_addresses(&cursor, packet, change))
		return DROP_headroom;
	if (packet->frame.flags & FRAME_LATER)
		return DROP_none;
	if (has_new_port(packet) && packet->frame.protocol != IPPROTO_ICMP &&
	    packet->frame.protocol != IPPROTO_ICMPV6) {
		__u64 ports = translate_ports(ctx, packet, offset);

		if (ports == CHANGE_INVALID)
			return DROP_headroom;
		change += ports;
	}
	switch (packet->frame.protocol) {
	case IPPROTO_TCP:
		return translate_tcp(ctx, packet, offset, change);
	case IPPROTO_UDP:
		offset += __builtin_offsetof(struct udp_header, checksum);
		return update_checksum(ctx, offset, change, 1);
	case IPPROTO_ICMP:
		return packet->frame.flags & FRAME_IPV6 ? DROP_none
							: translate_icmp(ctx, packet, offset, change);
	case IPPROTO_ICMPV6:
		return packet->frame.flags & FRAME_IPV6 ? translate_icmp(ctx, packet, offset, change)
							: DROP_none;
	}
	return DROP_none;
}

#endif
