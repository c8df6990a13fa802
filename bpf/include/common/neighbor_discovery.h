/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * IPv6 neighbor discovery (RFC 4861): checks a solicitation, and writes the advertisement that answers
 * it. Tenants' frames and the underlay's own use the same functions.
 *
 * Contract: the includer satisfies context.h; the frame was parsed by parse_frame() (parse.h). A
 * solicitation is read only. write_advert() overwrites the packet from the cursor on, whose bounds the
 * caller has checked. The caller decides which addresses are answered for, and with which MAC
 * address. Uses no map.
 */
#ifndef SLUICE_NEIGHBOR_DISCOVERY_H
#define SLUICE_NEIGHBOR_DISCOVERY_H

#include "common/cursor.h"
#include "common/frame.h"
#include "common/ip_write.h"
#include "common/packet_sum.h"
#include "layout/drops.h"

#define ND_ADVERT_BYTES (sizeof(struct nd_header) + sizeof(struct nd_mac_option))
/* Length of the frame that write_advert() writes. */
#define ND_ADVERT_FRAME (ETH_HLEN + IPV6_BYTES + ND_ADVERT_BYTES)
#define ND_OPTIONS_MAX 8

/* ff02::1 and its MAC address: all nodes of the link. */
#define ALL_NODES_HIGH 0xff02000000000000ull
#define ALL_NODES_LOW 1ull
#define ALL_NODES_MAC 0x333300000001ull
/* The high half of solicited-node addresses, and the upper 40 bits of their low half. */
#define SOLICITED_NODE_HIGH 0xff02000000000000ull
#define SOLICITED_NODE_LOW 0x1ffull

/* Whether the frame is a message of neighbor discovery: types 133 to 137 of ICMPv6. */
static __always_inline int is_nd(const struct frame *frame)
{
	__u32 type = frame->transport >> 24;

	return frame->flags & FRAME_IPV6 && frame->protocol == IPPROTO_ICMPV6 &&
	       !(frame->flags & FRAME_LATER) && type >= ICMP6_ROUTER_SOLICIT && type <= ICMP6_REDIRECT;
}

/* Whether the source address is unspecified: a probe for duplicate addresses (RFC 4862). */
static __always_inline int is_nd_probe(const struct frame *frame)
{
	return !frame->source[0] && !frame->source[1];
}

/*
 * Whether the options, `bytes` from the cursor on, are well-formed: no length is 0 or exceeds the
 * message, and a probe has no source MAC address.
 */
static __always_inline int nd_options_valid(struct cursor *cursor, __u32 bytes, int probe)
{
	for (int i = 0; i < ND_OPTIONS_MAX; i++) {
		const struct nd_mac_option *option = cursor->at;
		__u32 length;

		if (!bytes)
			return 1;
		if (!cursor_has(cursor, 2))
			return 0;
		length = option->units * ND_OPTION_UNIT;
		if (!length || length > bytes)
			return 0;
		if (probe && option->type == ND_OPTION_SOURCE_MAC)
			return 0;
		cursor_advance(cursor, length);
		bytes -= length;
	}
	return !bytes;
}

/*
 * Checks a neighbor solicitation (RFC 4861 section 7.1.1, RFC 6980) whose frame starts `frame_at`
 * bytes into the packet, and reads its target. A malformed message also sets `target`, if it is long
 * enough to have one and has no extension headers.
 */
static __always_inline enum drop_reason parse_solicit(program_context *ctx, __u32 frame_at,
						      const struct frame *frame, __u64 *target)
{
	struct cursor cursor = cursor_at(ctx, frame_at + ETH_HLEN + IPV6_BYTES);
	const struct nd_header *message = take_header(&cursor, struct nd_header);
	__u32 bytes = frame->ip_bytes - IPV6_BYTES;
	int probe = is_nd_probe(frame);
	__u64 sum;

	if (frame->flags & (FRAME_OPTIONS | FRAME_FRAGMENT) || bytes < sizeof(*message) || !message)
		return DROP_nd_malformed;
	load_halves(target, message->target);
	if (frame->ttl != ND_HOP_LIMIT || frame->transport >> 16 != ICMP6_SOLICIT << 8)
		return DROP_nd_malformed;
	if (ipv6_multicast(target[0]) || ipv6_multicast(frame->source[0]) ||
	    frame->source_mac & MAC_GROUP_BIT || !frame->source_mac)
		return DROP_nd_malformed;
	if (probe && (frame->destination[0] != SOLICITED_NODE_HIGH ||
		      frame->destination[1] >> 24 != SOLICITED_NODE_LOW))
		return DROP_nd_malformed;
	if (!nd_options_valid(&cursor, bytes - sizeof(*message), probe))
		return DROP_nd_malformed;
	sum = packet_sum(ctx, frame_at + ETH_HLEN + IPV6_BYTES, bytes);
	if (sum == SUM_FAILED)
		return DROP_nd_malformed;
	sum += ipv6_pseudo_sum(frame->source, frame->destination, bytes, IPPROTO_ICMPV6);
	return checksum_fold(sum) ? DROP_nd_malformed : DROP_none;
}

/*
 * Writes the advertisement that `target` is at `mac`. The cursor has ND_ADVERT_FRAME bytes. `flags` is
 * ND_ROUTER or 0. A probe is answered to all nodes.
 */
static __always_inline void write_advert(struct cursor *cursor, const struct frame *question,
					 const __u64 *target, __u64 mac, __u32 flags)
{
	struct ethernet_header *ethernet = next_header(cursor, struct ethernet_header);
	struct ipv6_header *ip = next_header(cursor, struct ipv6_header);
	struct nd_header *message = next_header(cursor, struct nd_header);
	struct nd_mac_option *option = next_header(cursor, struct nd_mac_option);
	int probe = is_nd_probe(question);
	__u64 to[2] = { probe ? ALL_NODES_HIGH : question->source[0],
			probe ? ALL_NODES_LOW : question->source[1] };

	flags |= probe ? ND_OVERRIDE : ND_OVERRIDE | ND_SOLICITED;
	store_mac(ethernet->destination, probe ? ALL_NODES_MAC : question->source_mac);
	store_mac(ethernet->source, mac);
	ethernet->type = bpf_htons(ETH_P_IPV6);
	write_ipv6(ip, &(struct ipv6_fields){
			       .bytes = ND_ADVERT_BYTES,
			       .next = IPPROTO_ICMPV6,
			       .hop_limit = ND_HOP_LIMIT,
		       });
	store_halves(ip->source, target);
	store_halves(ip->destination, to);
	message->type = ICMP6_ADVERT;
	message->code = 0;
	message->checksum = 0;
	message->flags = bpf_htonl(flags);
	store_halves(message->target, target);
	option->type = ND_OPTION_TARGET_MAC;
	option->units = 1;
	store_mac(option->mac, mac);
	message->checksum = checksum_fold(words_sum(message, ND_ADVERT_BYTES) +
					  ipv6_pseudo_sum(target, to, ND_ADVERT_BYTES, IPPROTO_ICMPV6));
}

#endif
