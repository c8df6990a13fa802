/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge, part of stage "NAT64" (nat64.h): messages of ICMP and ICMPv6, and the packet that an error quotes.
 *
 * Contract: nat64_message_out() and nat64_message_in() expect what nat64_out() and nat64_in() do, and the offset of the message in
 * the packet, which is not a fragment. The new header of the message is in nat64_message() then, and of an error also the new IP
 * header of the quote. A query or an answer is changed in place. Of an error only the quoted transport header is: write_message_out()
 * and write_message_in() write the rest when the packet has its new length. DROP_none, or the reason to drop.
 */
#ifndef SLUICE_NAT64_ICMP_H
#define SLUICE_NAT64_ICMP_H

#include "common/ip_write.h"
#include "gateway/translate.h"

#define ICMP6_UNREACHABLE 1
#define ICMP6_PARAMETER_PROBLEM 4
#define MTU6_MIN 1280

/* No message has this value. */
#define NAT64_NONE 0xffffffffffffffffull

/* The new headers of an ICMP message, in packet->header. */
struct nat64_message {
	__u8 quoted[IPV6_BYTES]; /* the new IP header of the quote */
	struct icmp_header icmp;
};

static __always_inline struct nat64_message *nat64_message(struct packet *packet)
{
	return (struct nat64_message *)packet->header;
}

/* Type and code, which are the upper half, and what follows the checksum. */
static __always_inline __u64 message_of(__u32 type, __u32 code, __u32 rest)
{
	return (__u64)(type << 8 | code) << 32 | rest;
}

/* The IPv4 header's field, as offset, that an offset in the IPv6 header points to. 0xff: it has no such field. */
static __always_inline __u32 pointer_out(__u32 pointer)
{
	if (pointer < 2)
		return pointer;
	switch (pointer) {
	case 4:
	case 5:
		return __builtin_offsetof(struct ipv4_header, bytes);
	case 6:
		return __builtin_offsetof(struct ipv4_header, protocol);
	case 7:
		return __builtin_offsetof(struct ipv4_header, ttl);
	}
	if (pointer >= 8 && pointer < 24)
		return __builtin_offsetof(struct ipv4_header, source);
	return pointer >= 24 && pointer < 40 ? __builtin_offsetof(struct ipv4_header, destination) : 0xff;
}

/* The same from an offset in the IPv4 header. */
static __always_inline __u32 pointer_in(__u32 pointer)
{
	if (pointer < 2)
		return pointer;
	switch (pointer) {
	case 2:
	case 3:
		return __builtin_offsetof(struct ipv6_header, bytes);
	case 8:
		return __builtin_offsetof(struct ipv6_header, hop_limit);
	case 9:
		return __builtin_offsetof(struct ipv6_header, next);
	}
	if (pointer >= 12 && pointer < 16)
		return __builtin_offsetof(struct ipv6_header, source);
	return pointer >= 16 && pointer < 20 ? __builtin_offsetof(struct ipv6_header, destination) : 0xff;
}

/*
 * The ICMP message for an ICMPv6 message with type and code in bits 8..15 and 0..7, and this after its checksum (RFC 7915 section 5.2);
 * NAT64_NONE: there is no such message.
 */
__attribute__((noinline)) __u64 nat64_icmp_out(__u32 message, __u32 rest)
{
	__u32 code = message & 0xff, pointer;

	switch (message >> 8) {
	case ICMP6_ECHO:
		return code ? NAT64_NONE : message_of(ICMP4_ECHO, 0, rest);
	case ICMP6_ECHO_REPLY:
		return code ? NAT64_NONE : message_of(ICMP4_ECHO_REPLY, 0, rest);
	case ICMP6_UNREACHABLE:
		if (code > 4)
			return NAT64_NONE;
		/* Prohibited: host administratively prohibited. Port: port. All others: host. */
		return message_of(ICMP4_UNREACHABLE, code == 1 ? 10 : code == 4 ? 3 : 1, 0);
	case ICMP6_TOO_BIG:
		if (rest > 0xffff + (IPV6_BYTES - IPV4_BYTES))
			rest = 0xffff + (IPV6_BYTES - IPV4_BYTES);
		/* No IPv4 router has an MTU below 68 (RFC 791). */
		return message_of(ICMP4_UNREACHABLE, ICMP4_NEEDS_FRAGMENTATION,
				  rest < 88 ? 68 : rest - (IPV6_BYTES - IPV4_BYTES));
	case ICMP6_TIME_EXCEEDED:
		return code > 1 ? NAT64_NONE : message_of(ICMP4_TIME_EXCEEDED, code, 0);
	case ICMP6_PARAMETER_PROBLEM:
		if (code == 1)
			return message_of(ICMP4_UNREACHABLE, 2, 0);
		pointer = pointer_out(rest);
		return code || pointer == 0xff ? NAT64_NONE
					       : message_of(ICMP4_PARAMETER_PROBLEM, 0, pointer << 24);
	}
	return NAT64_NONE;
}

/* The code of ICMPv6 "destination unreachable" for one of ICMP. 0xff: none. */
static __always_inline __u32 unreachable_in(__u32 code)
{
	switch (code) {
	case 3:
		return 4; /* port */
	case 9:
	case 10:
	case 13:
	case 15:
		return 1; /* prohibited */
	case 0:
	case 1:
	case 5:
	case 6:
	case 7:
	case 8:
	case 11:
	case 12:
		return 0; /* no route */
	}
	return 0xff;
}

/* The ICMPv6 message for an ICMP message, as nat64_icmp_out() (RFC 7915 section 4.2). */
__attribute__((noinline)) __u64 nat64_icmp_in(__u32 message, __u32 rest)
{
	__u32 code = message & 0xff, mtu, as;

	switch (message >> 8) {
	case ICMP4_ECHO:
		return code ? NAT64_NONE : message_of(ICMP6_ECHO, 0, rest);
	case ICMP4_ECHO_REPLY:
		return code ? NAT64_NONE : message_of(ICMP6_ECHO_REPLY, 0, rest);
	case ICMP4_UNREACHABLE:
		/* Protocol unreachable: the next header is what was not recognized. */
		if (code == 2)
			return message_of(ICMP6_PARAMETER_PROBLEM, 1,
					  __builtin_offsetof(struct ipv6_header, next));
		if (code == ICMP4_NEEDS_FRAGMENTATION) {
			/* A router that tells no MTU says 0. */
			mtu = (rest & 0xffff) + (IPV6_BYTES - IPV4_BYTES);
			return message_of(ICMP6_TOO_BIG, 0, mtu < MTU6_MIN ? MTU6_MIN : mtu);
		}
		as = unreachable_in(code);
		return as == 0xff ? NAT64_NONE : message_of(ICMP6_UNREACHABLE, as, 0);
	case ICMP4_TIME_EXCEEDED:
		return code > 1 ? NAT64_NONE : message_of(ICMP6_TIME_EXCEEDED, code, 0);
	case ICMP4_PARAMETER_PROBLEM:
		as = pointer_in(rest >> 24);
		return (code != 0 && code != 2) || as == 0xff ? NAT64_NONE
							      : message_of(ICMP6_PARAMETER_PROBLEM, 0, as);
	}
	return NAT64_NONE;
}

/* The new type of an echo or echo reply; 0xff: it is another message. */
static __always_inline __u32 echo_type(int ipv6, __u32 type)
{
	if (ipv6)
		return type == ICMP6_ECHO ? ICMP4_ECHO : type == ICMP6_ECHO_REPLY ? ICMP4_ECHO_REPLY : 0xff;
	return type == ICMP4_ECHO ? ICMP6_ECHO : type == ICMP4_ECHO_REPLY ? ICMP6_ECHO_REPLY : 0xff;
}

/*
 * Changes the type of the quoted echo or echo reply at `offset`, and its checksum by `change`. Returns the change of the quote's sum.
 */
static __always_inline __u64 nat64_quoted_echo(struct xdp_md *ctx, __u32 offset, int ipv6, __u64 change)
{
	__u16 words[2], before[2];
	__u32 type;

	if (bpf_xdp_load_bytes(ctx, offset, words, sizeof(words)))
		return CHANGE_INVALID;
	type = echo_type(ipv6, bpf_ntohs(words[0]) >> 8);
	if (type == 0xff)
		return CHANGE_INVALID;
	before[0] = words[0];
	before[1] = words[1];
	words[0] = bpf_htons(type << 8 | (bpf_ntohs(words[0]) & 0xff));
	words[1] = checksum_after(words[1], change + (__u16)~before[0] + words[0]);
	if (bpf_xdp_store_bytes(ctx, offset, words, sizeof(words)))
		return CHANGE_INVALID;
	return (__u64)(__u16)~before[0] + words[0] + (__u16)~before[1] + words[1];
}

/*
 * Translates the IPv6 packet at `offset`, of which an error quotes `bytes`: its transport header in place, and its IP header into
 * nat64_message(). Returns the change of the error's sum; CHANGE_INVALID: the quote cannot be translated.
 */
__attribute__((noinline)) __u64 nat64_quote_out(struct xdp_md *ctx, struct packet *packet, __u32 offset,
						__u32 bytes)
{
	__u64 sum, addresses, pseudo, change;
	struct ipv4_fields fields = {};
	struct ipv6_header *ip;

	if (!packet || bytes < IPV6_BYTES + ICMP_BYTES ||
	    bpf_xdp_load_bytes(ctx, offset, nat64_message(packet)->quoted, IPV6_BYTES))
		return CHANGE_INVALID;
	ip = (struct ipv6_header *)nat64_message(packet)->quoted;
	sum = words_sum(ip, IPV6_BYTES);
	addresses = words_sum(ip->source, 32);
	pseudo = addresses + ip->bytes + bpf_htons(ip->next);
	fields.source = ((const __be32 *)ip->source)[3];
	fields.destination = bpf_htonl((__u32)packet->new_source[1]);
	fields.traffic_class = bpf_ntohl(ip->version) >> IPV6_CLASS_SHIFT;
	fields.bytes = bpf_ntohs(ip->bytes) + IPV4_BYTES;
	fields.fragment = IPV4_DF;
	fields.ttl = ip->hop_limit;
	fields.protocol = ip->next;
	if (ip->next == IPPROTO_ICMPV6) {
		fields.protocol = IPPROTO_ICMP;
		change = nat64_quoted_echo(ctx, offset + IPV6_BYTES, 1, checksum_fold(pseudo));
	} else if (ip->next == IPPROTO_TCP || ip->next == IPPROTO_UDP) {
		change = translate_quoted_transport(ctx, offset + IPV6_BYTES, bytes - IPV6_BYTES, ip->next,
						    (__u64)checksum_fold(addresses) + fields.source +
							    fields.destination);
	} else {
		return CHANGE_INVALID;
	}
	write_ipv4((struct ipv4_header *)ip, &fields);
	/* The sum of an IPv4 header is 0. */
	return change == CHANGE_INVALID ? change : change + checksum_fold(sum);
}

/* The same for an IPv4 packet, with its ports or its identifier. */
__attribute__((noinline)) __u64 nat64_quote_in(struct xdp_md *ctx, struct packet *packet, __u32 offset,
					       __u32 bytes)
{
	__u64 destination[2], sum, addresses, change, ports;
	struct ipv6_fields fields = {};
	struct ipv4_header *ip4;
	struct ipv6_header *ip;
	__u8 protocol;

	if (!packet || bytes < IPV4_BYTES + ICMP_BYTES ||
	    bpf_xdp_load_bytes(ctx, offset, nat64_message(packet)->quoted, IPV4_BYTES))
		return CHANGE_INVALID;
	ip4 = (struct ipv4_header *)nat64_message(packet)->quoted;
	protocol = ip4->protocol;
	if (ip4->version != IPV4_VERSION || bpf_ntohs(ip4->bytes) < IPV4_BYTES)
		return CHANGE_INVALID;
	sum = ipv4_header_sum(ip4);
	addresses = (__u64)ip4->source + ip4->destination;
	destination[0] = 0;
	destination[1] = bpf_ntohl(ip4->destination);
	/* Of an error of another VM. */
	if (packet->nat & PACKET_NAT_SOURCE)
		destination[1] = (__u32)packet->new_source[1];
	else
		to_outside(packet->source_public, destination);
	destination[0] = packet->new_source[0];
	destination[1] |= packet->new_source[1] & ~0xffffffffull;
	fields.traffic_class = ip4->traffic_class;
	fields.next = protocol == IPPROTO_ICMP ? IPPROTO_ICMPV6 : protocol;
	fields.hop_limit = ip4->ttl;
	fields.bytes = bpf_ntohs(ip4->bytes) - IPV4_BYTES;
	ip = (struct ipv6_header *)nat64_message(packet)->quoted;
	write_ipv6(ip, &fields);
	store_halves(ip->source, packet->new_destination);
	store_halves(ip->destination, destination);
	if (protocol != IPPROTO_ICMP && protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return CHANGE_INVALID;
	ports = translate_quoted_ports(ctx, packet, offset + IPV4_BYTES, protocol);
	change = ports + words_sum(ip->source, 32);
	if (protocol == IPPROTO_ICMP)
		change = nat64_quoted_echo(ctx, offset + IPV4_BYTES, 0,
					   change + ip->bytes + bpf_htons(IPPROTO_ICMPV6));
	else
		change = translate_quoted_transport(ctx, offset + IPV4_BYTES, bytes - IPV4_BYTES, protocol,
						    change + checksum_fold(addresses));
	return change == CHANGE_INVALID ? change
					: change + ports + checksum_fold(sum) + words_sum(ip, IPV6_BYTES);
}

/* Sum of what the pseudo header of ICMPv6 has besides the length. */
static __always_inline __u64 icmp6_pseudo_sum(const __u64 *source, const __u64 *destination)
{
	return halves_sum(source) + halves_sum(destination) + bpf_htons(IPPROTO_ICMPV6);
}

/*
 * Puts the new message into nat64_message(), whose `icmp` is the old one, and stores it at `offset` unless it is an error. `change` is
 * that of the message's sum without its own header.
 */
static __always_inline enum drop_reason put_message(struct xdp_md *ctx, struct icmp_header *icmp, __u64 found,
						    __u64 change, __u32 offset, int is_error)
{
	__be32 rest = bpf_htonl((__u32)found);
	__u16 words[2];

	words[0] = LOAD16(&icmp->type);
	words[1] = bpf_htons((__u16)(found >> 32));
	change += (__u64)(__u16)~words[0] + words[1] + (__u32)~icmp->rest + rest;
	STORE16(&icmp->type, words[1]);
	icmp->checksum = checksum_after(icmp->checksum, change);
	icmp->rest = rest;
	if (is_error)
		return DROP_none;
	return bpf_xdp_store_bytes(ctx, offset, icmp, sizeof(*icmp)) ? DROP_headroom : DROP_none;
}

/* Bytes of the ICMP message of the frame. */
static __always_inline __u32 message_bytes(const struct frame *frame)
{
	return frame->ip_bytes - (frame->transport_at - ETH_HLEN);
}

/* Reads the header of the ICMP message at `offset` into nat64_message(). Returns the length of the message; 0: it is too short. */
static __always_inline __u32 read_message(struct xdp_md *ctx, struct packet *packet, __u32 offset)
{
	__u32 bytes = message_bytes(&packet->frame);

	if (bytes < ICMP_BYTES ||
	    bpf_xdp_load_bytes(ctx, offset, &nat64_message(packet)->icmp, sizeof(struct icmp_header)))
		return 0;
	return bytes;
}

__attribute__((noinline)) enum drop_reason nat64_message_out(struct xdp_md *ctx, struct packet *packet,
							     __u32 offset)
{
	struct icmp_header *icmp;
	__u64 found, change;
	__u32 bytes;
	int is_error;

	if (!packet)
		return DROP_stale_index;
	icmp = &nat64_message(packet)->icmp;
	bytes = read_message(ctx, packet, offset);
	if (!bytes)
		return DROP_inner_truncated;
	is_error = is_icmp_error(&packet->frame);
	found = nat64_icmp_out((__u32)icmp->type << 8 | icmp->code, bpf_ntohl(icmp->rest));
	if (found == NAT64_NONE)
		return DROP_nat64_packet;
	change = checksum_fold(icmp6_pseudo_sum(packet->frame.source, packet->frame.destination) +
			       bpf_htons(bytes));
	if (is_error) {
		__u64 quote = nat64_quote_out(ctx, packet, offset + ICMP_BYTES, bytes - ICMP_BYTES);

		if (quote == CHANGE_INVALID)
			return DROP_nat64_packet;
		change += quote;
	}
	return put_message(ctx, icmp, found, change, offset, is_error);
}

__attribute__((noinline)) enum drop_reason nat64_message_in(struct xdp_md *ctx, struct packet *packet,
							    __u32 offset)
{
	struct icmp_header *icmp;
	__u64 found, change;
	__u32 bytes;
	int is_error;

	if (!packet)
		return DROP_stale_index;
	icmp = &nat64_message(packet)->icmp;
	bytes = read_message(ctx, packet, offset);
	if (!bytes)
		return DROP_inner_truncated;
	is_error = is_icmp_error(&packet->frame);
	found = nat64_icmp_in((__u32)icmp->type << 8 | icmp->code, bpf_ntohl(icmp->rest));
	if (found == NAT64_NONE)
		return DROP_nat64_packet;
	change = icmp6_pseudo_sum(packet->new_source, packet->new_destination);
	if (is_error) {
		__u64 quote = nat64_quote_in(ctx, packet, offset + ICMP_BYTES, bytes - ICMP_BYTES);

		if (quote == CHANGE_INVALID)
			return DROP_nat64_packet;
		change += quote;
		bytes += IPV6_BYTES - IPV4_BYTES;
	}
	return put_message(ctx, icmp, found, change + bpf_htons(bytes), offset, is_error);
}

/* Writes `bytes`, a constant and a multiple of 4. */
static __always_inline void copy_words(void *to, const void *from, __u32 bytes)
{
#pragma unroll
	for (__u32 i = 0; i < bytes; i += 4)
		STORE32(to + i, LOAD32(from + i));
}

/* Writes the header of an error and of its quote behind an IPv4 header, which is the first one of the packet. */
static __always_inline enum drop_reason write_message_out(struct xdp_md *ctx, struct packet *packet)
{
	struct cursor cursor = cursor_at(ctx, ETH_HLEN + IPV4_BYTES);

	if (!cursor_has(&cursor, ICMP_BYTES + IPV4_BYTES))
		return DROP_headroom;
	copy_words(cursor_advance(&cursor, ICMP_BYTES), &nat64_message(packet)->icmp, ICMP_BYTES);
	copy_words(cursor.at, nat64_message(packet)->quoted, IPV4_BYTES);
	return DROP_none;
}

/* The same behind an IPv6 header, of the frame that begins `at` bytes into the packet. */
static __always_inline enum drop_reason write_message_in(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	struct cursor cursor = cursor_at(ctx, at + ETH_HLEN + IPV6_BYTES);

	if (!cursor_has(&cursor, ICMP_BYTES + IPV6_BYTES))
		return DROP_headroom;
	copy_words(cursor_advance(&cursor, ICMP_BYTES), &nat64_message(packet)->icmp, ICMP_BYTES);
	copy_words(cursor.at, nat64_message(packet)->quoted, IPV6_BYTES);
	return DROP_none;
}

#endif
