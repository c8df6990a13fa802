/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: underlay packets that are not plain VXLAN to this node. ARP requests, neighbor solicitations and
 * echo requests for vIPs that this node owns are answered. VXLAN to this node that is fragmented, has
 * options or is cut short is dropped. All else belongs to the kernel, which gets only what it does not route
 * (pass.h).
 *
 * Contract: expects a packet for which parse_underlay() (parse_underlay.h) returned DROP_none without
 * is_tunnel; `frame` is used for the underlay's own frame. answer_underlay() returns the program's verdict:
 * XDP_TX for answers, which are written in place; XDP_DROP for counted drops; XDP_PASS for unchanged
 * packets. Uses the maps `cells` and those of count.h.
 */
#ifndef SLUICE_ANSWER_UNDERLAY_H
#define SLUICE_ANSWER_UNDERLAY_H

#include "common/parse.h"
#include "gateway/address_owner.h"
#include "gateway/answer_tenant.h"
#include "gateway/pass.h"

/* The vMAC of the vIP that an exact match found, if this node owns it; otherwise 0. */
static __always_inline __u64 owned_mac(const struct exact_hit *hit)
{
	struct next_hop *hop = next_hop_at(hit->next, NEXT_HOP_VIP);

	return hop && READ_ONCE(hop->flags) & NEXT_HOP_OWNED ? load_mac(hop->mac) : 0;
}

/*
 * Sends an answer to a question whose destination MAC address was `asked`. Normally its source is the
 * vMAC, so that switches keep the vMAC's location. While the agent is away, another gateway may have
 * taken over the vIP and answer questions that were sent to all. An answer from the vMAC would then
 * teach switches to send the vIP's packets to this node, although another gateway owns the vIP. So the
 * source becomes the port's own MAC address: the content is true whichever gateway owns the vIP, and
 * switches learn nothing from it. (A function that answer_underlay() calls: the stack of Linux 6.1 has
 * no room for it below the others.)
 */
__attribute__((noinline)) int send_answer(struct xdp_md *ctx, __u64 asked)
{
	struct cursor cursor = cursor_at(ctx, 0);
	struct ethernet_header *ethernet = take_header(&cursor, struct ethernet_header);
	const struct superblock *tables = cell_at(0);
	__u64 attended_ns = tables ? READ_ONCE(tables->attended_ns) : 0;
	struct underlay_port *port;

	if (!(asked & MAC_GROUP_BIT) || !attended_ns ||
	    (__s64)(bpf_ktime_get_ns() - attended_ns) < ATTENDED_NS)
		return XDP_TX;
	port = ingress_port(ctx);
	if (port && ethernet)
		store_mac(ethernet->source, underlay_port_mac(port));
	return XDP_TX;
}

static __always_inline int answer_underlay_arp(struct xdp_md *ctx, struct packet *packet)
{
	struct cursor cursor = cursor_at(ctx, 0);
	struct ethernet_header *ethernet;
	struct arp_message question = {};
	struct arp_header *arp;
	struct exact_hit hit = {};
	__u64 mac;

	if (!cursor_has(&cursor, ETH_HLEN + ARP_BYTES))
		return XDP_PASS;
	ethernet = next_header(&cursor, struct ethernet_header);
	arp = next_header(&cursor, struct arp_header);
	packet->frame.source_mac = load_mac(ethernet->source);
	/*
	 * An announcement has the same sender and target. It asks nothing, even if it is about an owned
	 * vIP.
	 */
	if (parse_arp(arp, &packet->frame, &question) || question.operation != ARP_REQUEST ||
	    question.sender == question.target || find_ipv4(0, question.target, &hit) != EXACT_HIT)
		return XDP_PASS;
	mac = owned_mac(&hit);
	if (!mac)
		return XDP_PASS;
	write_arp_reply(ethernet, arp, &question, mac);
	return XDP_TX;
}

static __always_inline void swap_macs(struct ethernet_header *ethernet)
{
	__u64 destination = load_mac(ethernet->destination), source = load_mac(ethernet->source);

	store_mac(ethernet->destination, source);
	store_mac(ethernet->source, destination);
}

/* Turns an echo request into a reply. */
static __always_inline void write_echo_reply(struct icmp_header *icmp, __u8 request, __u8 reply)
{
	icmp->type = reply;
	icmp->checksum = checksum_update(icmp->checksum, bpf_htons(request << 8), bpf_htons(reply << 8));
}

/* Parses the underlay's own frame. A function, so that its callers have less stack. */
__attribute__((noinline)) enum drop_reason parse_underlay_frame(struct xdp_md *ctx, struct packet *packet)
{
	return packet ? parse_frame(ctx, 0, context_bytes(ctx), &packet->frame) : DROP_stale_index;
}

/* Whether the frame is an echo request of this type: complete, without options, from a valid source. */
static __always_inline int is_plain_echo(const struct frame *frame, __u8 type)
{
	return source_valid(frame) && !(frame->flags & (FRAME_FRAGMENT | FRAME_OPTIONS)) &&
	       frame->transport >> 16 == type << 8;
}

__attribute__((noinline)) int answer_echo4(struct xdp_md *ctx, struct packet *packet)
{
	struct cursor cursor = cursor_at(ctx, 0);
	struct ipv4_header *ip;
	__be32 source;

	if (!packet || parse_underlay_frame(ctx, packet) || !is_plain_echo(&packet->frame, ICMP4_ECHO) ||
	    !cursor_has(&cursor, ETH_HLEN + IPV4_BYTES + ICMP_BYTES))
		return XDP_PASS;
	swap_macs(next_header(&cursor, struct ethernet_header));
	ip = next_header(&cursor, struct ipv4_header);
	/* Addresses that change places do not change a checksum. */
	source = ip->source;
	ip->source = ip->destination;
	ip->destination = source;
	ipv4_set_ttl(ip, OUTER_TTL);
	write_echo_reply(next_header(&cursor, struct icmp_header), ICMP4_ECHO, ICMP4_ECHO_REPLY);
	return XDP_TX;
}

static __always_inline int answer_underlay_ipv4(struct xdp_md *ctx, struct packet *packet)
{
	struct cursor cursor = cursor_at(ctx, 0);
	const struct ipv4_header *ip;
	const struct udp_header *udp;
	__u32 fragment, header;
	enum owner owner;

	if (!cursor_has(&cursor, ETH_HLEN + IPV4_BYTES))
		return XDP_PASS;
	cursor_advance(&cursor, ETH_HLEN);
	ip = next_header(&cursor, struct ipv4_header);
	if (ip->version >> 4 != 4 || (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_ICMP))
		return XDP_PASS;
	owner = owner_of4(ctx, bpf_ntohl(ip->destination), packet->frame.destination_mac);
	if (owner == OWNER_BUSY)
		return drop(0, DROP_table_busy);
	if (ip->protocol == IPPROTO_ICMP)
		return owner == OWNER_VIP_OWNED ? answer_echo4(ctx, packet) : XDP_PASS;
	if (owner == OWNER_OTHER)
		return XDP_PASS;
	header = (ip->version & 15) * 4;
	fragment = bpf_ntohs(ip->fragment) & (IPV4_MORE | IPV4_OFFSET);
	/*
	 * A later fragment has no port. To a vIP it can only be VXLAN, because the kernel does not serve
	 * vIPs; to the VTEP it may be part of a datagram for the kernel.
	 */
	if (fragment & IPV4_OFFSET)
		return owner == OWNER_VTEP ? XDP_PASS : drop(0, DROP_outer_fragment);
	udp = (const void *)ip + header;
	if (header < IPV4_BYTES || (const void *)&udp->bytes > cursor.end ||
	    udp->destination != bpf_htons(VXLAN_PORT))
		return XDP_PASS;
	if (fragment)
		return drop(0, DROP_outer_fragment);
	return drop(0, header > IPV4_BYTES ? DROP_outer_options : DROP_outer_truncated);
}

/*
 * Answers a neighbor solicitation, of which parse_solicit() returned `reason`, with `mac`. XDP_PASS if that is 0: the target
 * is not an address that this node owns.
 */
static __always_inline int answer_solicit(struct xdp_md *ctx, const struct frame *frame, const __u64 *target,
					  enum drop_reason reason, __u64 mac)
{
	struct cursor cursor;

	if (!mac)
		return XDP_PASS;
	if (reason)
		return drop(0, reason);
	if (resize(ctx, ND_ADVERT_FRAME))
		return drop(0, DROP_headroom);
	cursor = cursor_at(ctx, 0);
	if (!cursor_has(&cursor, ND_ADVERT_FRAME))
		return drop(0, DROP_headroom);
	write_advert(&cursor, frame, target, mac, 0);
	/* The answer to a duplicate address probe is multicast, but leaves only by the port of the probe. */
	return XDP_TX;
}

/* Answers a neighbor solicitation for an owned vIP, which was sent by multicast or to the vIP itself. */
static __always_inline int answer_underlay_solicit(struct xdp_md *ctx, const struct frame *frame)
{
	__u64 target[2] = {};
	struct exact_hit hit = {};
	enum drop_reason reason = parse_solicit(ctx, 0, frame, target);

	if (find_ipv6(0, target[0], target[1], &hit) != EXACT_HIT)
		return XDP_PASS;
	return answer_solicit(ctx, frame, target, reason, owned_mac(&hit));
}

static __always_inline int answer_echo6(struct xdp_md *ctx)
{
	struct cursor cursor = cursor_at(ctx, 0);
	struct ipv6_header *ip;
	__be64 high, low;

	if (!cursor_has(&cursor, ETH_HLEN + IPV6_BYTES + ICMP_BYTES))
		return XDP_PASS;
	swap_macs(next_header(&cursor, struct ethernet_header));
	ip = next_header(&cursor, struct ipv6_header);
	high = ip->source[0];
	low = ip->source[1];
	ip->source[0] = ip->destination[0];
	ip->source[1] = ip->destination[1];
	ip->destination[0] = high;
	ip->destination[1] = low;
	ip->hop_limit = OUTER_TTL;
	write_echo_reply(next_header(&cursor, struct icmp_header), ICMP6_ECHO, ICMP6_ECHO_REPLY);
	return XDP_TX;
}

__attribute__((noinline)) int answer_underlay_icmp6(struct xdp_md *ctx, struct packet *packet, __u32 owner)
{
	struct frame *frame;

	if (!packet || parse_underlay_frame(ctx, packet))
		return XDP_PASS;
	frame = &packet->frame;
	if (is_nd(frame) && frame->transport >> 24 == ICMP6_SOLICIT)
		return answer_underlay_solicit(ctx, frame);
	if (owner == OWNER_VIP_OWNED && is_plain_echo(frame, ICMP6_ECHO))
		return answer_echo6(ctx);
	return XDP_PASS;
}

/*
 * Drops VXLAN behind an extension header of this kind, which is at the cursor. What is behind further headers
 * belongs to the kernel.
 */
static __always_inline int drop_vxlan_options6(struct cursor *cursor, __u32 kind, enum owner owner)
{
	const struct ipv6_extension *header = take_header(cursor, struct ipv6_extension);
	const struct udp_header *udp = cursor->at;
	__u32 fragment;

	if (!header || header->next != IPPROTO_UDP)
		return XDP_PASS;
	if (kind != EXTENSION_FRAGMENT) {
		udp = (const void *)header + (header->units + 1) * 8;
		if ((const void *)&udp->bytes > cursor->end || udp->destination != bpf_htons(VXLAN_PORT))
			return XDP_PASS;
		return drop(0, DROP_outer_options);
	}
	fragment = bpf_ntohs(header->fragment);
	if (fragment & IPV6_OFFSET)
		return owner == OWNER_VTEP ? XDP_PASS : drop(0, DROP_outer_fragment);
	if ((const void *)&udp->bytes > cursor->end || udp->destination != bpf_htons(VXLAN_PORT))
		return XDP_PASS;
	return drop(0, DROP_outer_fragment);
}

static __always_inline int answer_underlay_ipv6(struct xdp_md *ctx, struct packet *packet)
{
	struct cursor cursor = cursor_at(ctx, 0);
	const struct ipv6_header *ip;
	const struct udp_header *udp;
	__u64 destination[2];
	enum owner owner;
	__u32 next;

	if (!cursor_has(&cursor, ETH_HLEN + IPV6_BYTES))
		return XDP_PASS;
	cursor_advance(&cursor, ETH_HLEN);
	ip = next_header(&cursor, struct ipv6_header);
	udp = cursor.at;
	next = ip->next;
	if ((bpf_ntohl(ip->version) & 0xf0000000) != IPV6_VERSION || next == IPPROTO_TCP)
		return XDP_PASS;
	load_halves(destination, ip->destination);
	owner = owner_of6(ctx, destination, packet->frame.destination_mac);
	if (owner == OWNER_BUSY)
		return drop(0, DROP_table_busy);
	if (next == IPPROTO_ICMPV6)
		return answer_underlay_icmp6(ctx, packet, owner);
	if (owner == OWNER_OTHER)
		return XDP_PASS;
	if (next == EXTENSION_FRAGMENT || next == EXTENSION_HOP_BY_HOP || next == EXTENSION_ROUTING ||
	    next == EXTENSION_DESTINATION)
		return drop_vxlan_options6(&cursor, next, owner);
	if (next == IPPROTO_UDP && (const void *)&udp->bytes <= cursor.end &&
	    udp->destination == bpf_htons(VXLAN_PORT))
		return drop(0, DROP_outer_truncated);
	return XDP_PASS;
}

__attribute__((noinline)) int answer_underlay(struct xdp_md *ctx, struct packet *packet)
{
	struct cursor cursor = cursor_at(ctx, 0);
	const struct ethernet_header *ethernet = take_header(&cursor, struct ethernet_header);
	int verdict = XDP_PASS;
	__be16 ethertype;

	if (!ethernet || !packet)
		return XDP_PASS;
	/* Kept in the packet's state, because the answer overwrites it. */
	packet->frame.destination_mac = load_mac(ethernet->destination);
	ethertype = ethernet->type;
	if (ethertype == bpf_htons(ETH_P_ARP))
		verdict = answer_underlay_arp(ctx, packet);
	else if (ethertype == bpf_htons(ETH_P_IP))
		verdict = answer_underlay_ipv4(ctx, packet);
	else if (ethertype == bpf_htons(ETH_P_IPV6))
		verdict = answer_underlay_ipv6(ctx, packet);
	if (verdict == XDP_PASS)
		return pass_to_kernel(ctx);
	return verdict == XDP_TX ? send_answer(ctx, packet->frame.destination_mac) : verdict;
}

#endif
