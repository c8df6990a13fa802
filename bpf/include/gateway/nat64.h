/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge, stage "NAT64": turns a packet of IPv6 into one of IPv4 and back (RFC 7915), with the addresses that the
 * stages before have found (RFC 6146). Ports, the identifier of queries and the MSS are left to translate() (translate.h), which follows,
 * except those of the packet that an ICMP error to a VM quotes.
 *
 *   nat64_out()  expects the parsed IPv6 frame of a VM, `at` bytes into the packet, new_source and new_destination (IPv4). The IPv4
 *                frame then begins at the start of the packet: the tunnel's headers are removed.
 *   nat64_in()   expects the parsed IPv4 frame, new_source and new_destination (IPv6). The IPv6 frame then begins `at` bytes into the
 *                packet, which has grown in front by nat64_growth().
 *
 * Both return DROP_none, with `frame` that of the new frame, whose addresses are already the new ones, and frame_bytes its length; or
 * the reason to drop, after which the packet may be half changed. MAC addresses and TTL are not written: rewrite_frame() (forward.h)
 * does that. Of the state of the packet, `header` is changed as well. Checksums that were wrong stay wrong, except that of UDP when it
 * is computed because the IPv4 packet had none.
 *
 * Not translated (DROP_nat64_packet): IPv4 options, IPv6 extension headers other than one fragment header, fragments of ICMP, UDP of
 * IPv6 without a checksum, fragments of UDP of IPv4 without one, and messages of ICMP that have no equivalent. Uses the map `sum_chunks`.
 */
#ifndef SLUICE_NAT64_H
#define SLUICE_NAT64_H

#include "common/ip_write.h"
#include "common/packet_sum.h"
#include "gateway/nat64_icmp.h"
#include "gateway/translate.h"

#define FRAGMENT_BYTES 8 /* IPv6 fragment header */
/* By how much an IPv4 packet grows at least, and by how much an IPv6 packet shrinks. */
#define NAT64_BYTES (IPV6_BYTES - IPV4_BYTES)
/* IPv4 packets up to this length may be fragmented (RFC 7915 section 5.1): no IPv6 node has to accept a smaller MTU than 1280. */
#define NAT64_UNFRAGMENTED_MIN (1280 - NAT64_BYTES)

/* By how much the IPv4 packet in `frame` grows. */
static __always_inline __u32 nat64_growth(const struct frame *frame)
{
	__u32 growth = NAT64_BYTES;

	if (frame->flags & FRAME_FRAGMENT)
		growth += FRAGMENT_BYTES;
	if (frame->protocol == IPPROTO_ICMP && is_icmp_error(frame))
		growth += NAT64_BYTES;
	return growth;
}

/* By how much the IPv6 packet in `frame` shrinks, without what it quotes. */
static __always_inline __u32 nat64_shrinkage(const struct frame *frame)
{
	return frame->transport_at - ETH_HLEN - IPV4_BYTES;
}

/* Updates the checksum of TCP or UDP at `offset` by the change of the pseudo header. */
static __always_inline enum drop_reason nat64_transport(struct xdp_md *ctx, struct packet *packet,
							__u32 offset, __u64 change)
{
	if (packet->frame.protocol == IPPROTO_TCP)
		return update_checksum(ctx, offset + __builtin_offsetof(struct tcp_header, checksum), change,
				       0);
	offset += __builtin_offsetof(struct udp_header, checksum);
	return update_checksum(ctx, offset, change, 1);
}

/* Whether the UDP packet at `offset` has no checksum. Negative: it has no whole header. */
static __always_inline int nat64_lacks_checksum(struct xdp_md *ctx, __u32 offset)
{
	__u16 checksum;

	if (bpf_xdp_load_bytes(ctx, offset + __builtin_offsetof(struct udp_header, checksum), &checksum,
			       sizeof(checksum)))
		return -1;
	return !checksum;
}

/* Reads the fragment header of the IPv6 frame, if it has one: identification, and offset with flags as in an IPv4 header. */
static __always_inline enum drop_reason read_fragment(struct xdp_md *ctx, const struct packet *packet,
						      __u32 at, struct ipv4_fields *fields)
{
	__u32 headers = packet->frame.transport_at - ETH_HLEN;
	struct ipv6_extension fragment = {};
	__u16 offset;
	__u8 next;

	if (headers == IPV6_BYTES)
		return DROP_none;
	if (bpf_xdp_load_bytes(ctx, at + ETH_HLEN + __builtin_offsetof(struct ipv6_header, next), &next, 1) ||
	    bpf_xdp_load_bytes(ctx, at + ETH_HLEN + IPV6_BYTES, &fragment, sizeof(fragment)))
		return DROP_inner_truncated;
	if (headers != IPV6_BYTES + FRAGMENT_BYTES || next != EXTENSION_FRAGMENT)
		return DROP_nat64_packet;
	offset = bpf_ntohs(fragment.fragment);
	fields->id = bpf_ntohl(fragment.rest);
	fields->fragment = offset >> 3 | (offset & IPV6_MORE ? IPV4_MORE : 0);
	return DROP_none;
}

/* What the new IPv4 header has, and the transport checksum or message behind it. */
__attribute__((noinline)) enum drop_reason nat64_payload_out(struct xdp_md *ctx, struct packet *packet,
							     __u32 offset)
{
	__u64 change;
	int lacks;

	if (!packet)
		return DROP_stale_index;
	if (packet->frame.protocol == IPPROTO_ICMPV6)
		return packet->frame.flags & FRAME_FRAGMENT ? DROP_nat64_packet
							    : nat64_message_out(ctx, packet, offset);
	if (packet->frame.flags & FRAME_LATER)
		return DROP_none;
	if (packet->frame.protocol == IPPROTO_UDP) {
		lacks = nat64_lacks_checksum(ctx, offset);
		if (lacks)
			return lacks < 0 ? DROP_inner_truncated : DROP_nat64_packet;
	}
	change = address_change(packet->frame.source, packet->new_source) +
		 address_change(packet->frame.destination, packet->new_destination);
	return nat64_transport(ctx, packet, offset, change);
}

/* The frame is the new one of IPv4, with `quoted` bytes less in what it quotes. */
static __always_inline void become_ipv4(struct packet *packet, __u32 quoted)
{
	struct frame *frame = &packet->frame;

	frame->ip_bytes -= nat64_shrinkage(frame) + quoted;
	frame->flags &= FRAME_FRAGMENT | FRAME_LATER;
	frame->ethertype = ETH_P_IP;
	frame->transport_at = ETH_HLEN + IPV4_BYTES;
	frame->source[0] = frame->destination[0] = 0;
	frame->source[1] = packet->new_source[1];
	frame->destination[1] = packet->new_destination[1];
	if (frame->protocol == IPPROTO_ICMPV6) {
		frame->protocol = IPPROTO_ICMP;
		frame->transport = bpf_ntohl(LOAD32(&nat64_message(packet)->icmp));
	}
	packet->frame_bytes = ETH_HLEN + frame->ip_bytes;
}

__attribute__((noinline)) enum drop_reason nat64_out(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	struct ipv4_fields fields = {};
	struct ethernet_header *ethernet;
	enum drop_reason reason;
	struct cursor cursor;
	__u32 offset, quoted = 0;

	if (!packet || at > TUNNEL6_BYTES)
		return DROP_stale_index;
	reason = read_fragment(ctx, packet, at, &fields);
	offset = at + packet->frame.transport_at;
	if (!reason)
		reason = nat64_payload_out(ctx, packet, offset);
	if (reason)
		return reason;
	if (packet->frame.protocol == IPPROTO_ICMPV6 && is_icmp_error(&packet->frame))
		quoted = NAT64_BYTES;
	become_ipv4(packet, quoted);
	if (bpf_xdp_adjust_head(ctx, (int)(offset + quoted - packet->frame.transport_at)))
		return DROP_headroom;
	fields.traffic_class = packet->frame.traffic_class;
	fields.ttl = packet->frame.ttl;
	fields.protocol = packet->frame.protocol;
	fields.bytes = packet->frame.ip_bytes;
	/* RFC 7915 section 5.1, RFC 6864 section 4. */
	if (fields.bytes > NAT64_UNFRAGMENTED_MIN && !(packet->frame.flags & FRAME_FRAGMENT))
		fields.fragment |= IPV4_DF;
	else if (!fields.id && !(packet->frame.flags & FRAME_FRAGMENT))
		fields.id = bpf_get_prandom_u32();
	fields.source = bpf_htonl((__u32)packet->new_source[1]);
	fields.destination = bpf_htonl((__u32)packet->new_destination[1]);
	cursor = cursor_at(ctx, 0);
	if (!cursor_has(&cursor, ETH_HLEN + IPV4_BYTES))
		return DROP_headroom;
	ethernet = next_header(&cursor, struct ethernet_header);
	ethernet->type = bpf_htons(ETH_P_IP);
	write_ipv4(next_header(&cursor, struct ipv4_header), &fields);
	return quoted ? write_message_out(ctx, packet) : DROP_none;
}

/* Computes the checksum of a UDP packet of which the IPv4 packet had none (RFC 7915 section 4.5). */
static __always_inline enum drop_reason add_udp_checksum(struct xdp_md *ctx, const struct packet *packet,
							 __u32 offset)
{
	__u32 left = packet->frame.ip_bytes - IPV4_BYTES, bytes;
	__u16 checksum;
	__be16 length;
	__u64 sum;

	if (packet->frame.flags & FRAME_FRAGMENT)
		return DROP_nat64_packet;
	if (bpf_xdp_load_bytes(ctx, offset + __builtin_offsetof(struct udp_header, bytes), &length,
			       sizeof(length)))
		return DROP_inner_truncated;
	bytes = bpf_ntohs(length);
	if (bytes < UDP_BYTES || bytes > left)
		return DROP_inner_truncated;
	sum = packet_sum(ctx, offset, bytes);
	if (sum == SUM_FAILED)
		return DROP_inner_truncated;
	checksum = checksum_fold_udp(
		sum + ipv6_pseudo_sum(packet->new_source, packet->new_destination, bytes, IPPROTO_UDP));
	return bpf_xdp_store_bytes(ctx, offset + __builtin_offsetof(struct udp_header, checksum), &checksum,
				   sizeof(checksum))
		     ? DROP_headroom
		     : DROP_none;
}

/* The transport checksum, or the message, of an IPv4 packet. */
__attribute__((noinline)) enum drop_reason nat64_payload_in(struct xdp_md *ctx, struct packet *packet,
							    __u32 offset)
{
	__u64 change;
	int lacks;

	if (!packet)
		return DROP_stale_index;
	if (packet->frame.protocol == IPPROTO_ICMP)
		return packet->frame.flags & FRAME_FRAGMENT ? DROP_nat64_packet
							    : nat64_message_in(ctx, packet, offset);
	if (packet->frame.flags & FRAME_LATER)
		return DROP_none;
	if (packet->frame.protocol == IPPROTO_UDP) {
		lacks = nat64_lacks_checksum(ctx, offset);
		if (lacks)
			return lacks < 0 ? DROP_inner_truncated : add_udp_checksum(ctx, packet, offset);
	}
	change = address_change(packet->frame.source, packet->new_source) +
		 address_change(packet->frame.destination, packet->new_destination);
	return nat64_transport(ctx, packet, offset, change);
}

/* The frame is the new one of IPv6. */
static __always_inline void become_ipv6(struct packet *packet)
{
	struct frame *frame = &packet->frame;

	frame->ip_bytes += nat64_growth(frame);
	frame->transport_at = ETH_HLEN + IPV6_BYTES;
	if (frame->flags & FRAME_FRAGMENT)
		frame->transport_at += FRAGMENT_BYTES;
	frame->flags = (frame->flags & (FRAME_FRAGMENT | FRAME_LATER)) | FRAME_IPV6 | FRAME_DF;
	frame->ethertype = ETH_P_IPV6;
	frame->source[0] = packet->new_source[0];
	frame->source[1] = packet->new_source[1];
	frame->destination[0] = packet->new_destination[0];
	frame->destination[1] = packet->new_destination[1];
	if (frame->protocol == IPPROTO_ICMP) {
		frame->protocol = IPPROTO_ICMPV6;
		frame->transport = bpf_ntohl(LOAD32(&nat64_message(packet)->icmp));
	}
	packet->frame_bytes = ETH_HLEN + frame->ip_bytes;
}

/* Writes the IPv6 headers of the frame; `fragment` is the word of the IPv4 header with identification, flags and offset. */
static __always_inline enum drop_reason write_headers_in(struct xdp_md *ctx, const struct packet *packet,
							 __u32 at, __u32 fragment)
{
	const struct frame *frame = &packet->frame;
	struct cursor cursor = cursor_at(ctx, at);
	struct ethernet_header *ethernet;
	struct ipv6_extension *extension;
	struct ipv6_fields fields = {};
	struct ipv6_header *ip;

	if (!cursor_has(&cursor, ETH_HLEN + IPV6_BYTES))
		return DROP_headroom;
	ethernet = next_header(&cursor, struct ethernet_header);
	ip = next_header(&cursor, struct ipv6_header);
	ethernet->type = bpf_htons(ETH_P_IPV6);
	fields.traffic_class = frame->traffic_class;
	fields.next = frame->flags & FRAME_FRAGMENT ? EXTENSION_FRAGMENT : frame->protocol;
	fields.hop_limit = frame->ttl;
	fields.bytes = frame->ip_bytes - IPV6_BYTES;
	write_ipv6(ip, &fields);
	store_halves(ip->source, packet->new_source);
	store_halves(ip->destination, packet->new_destination);
	if (!(frame->flags & FRAME_FRAGMENT))
		return DROP_none;
	extension = take_header(&cursor, struct ipv6_extension);
	if (!extension)
		return DROP_headroom;
	extension->next = frame->protocol;
	extension->units = 0;
	extension->fragment =
		bpf_htons((fragment & IPV4_OFFSET) << 3 | (fragment & IPV4_MORE ? IPV6_MORE : 0));
	extension->rest = bpf_htonl(fragment >> 16);
	return DROP_none;
}

__attribute__((noinline)) enum drop_reason nat64_in(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	enum drop_reason reason;
	__be32 fragment;
	__u32 growth;
	int quotes;

	if (!packet || at > TUNNEL6_BYTES)
		return DROP_stale_index;
	if (packet->frame.flags & FRAME_OPTIONS)
		return DROP_nat64_packet;
	if (bpf_xdp_load_bytes(ctx, at + ETH_HLEN + __builtin_offsetof(struct ipv4_header, id), &fragment,
			       sizeof(fragment)))
		return DROP_inner_truncated;
	reason = nat64_payload_in(ctx, packet, at + packet->frame.transport_at);
	if (reason)
		return reason;
	growth = nat64_growth(&packet->frame);
	quotes = packet->frame.protocol == IPPROTO_ICMP && is_icmp_error(&packet->frame);
	if (bpf_xdp_adjust_head(ctx, -(int)growth))
		return DROP_headroom;
	become_ipv6(packet);
	reason = write_headers_in(ctx, packet, at, bpf_ntohl(fragment));
	return !reason && quotes ? write_message_in(ctx, packet, at) : reason;
}

#endif
