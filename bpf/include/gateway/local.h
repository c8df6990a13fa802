/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: underlay packets that are no plain VXLAN. ARP, neighbour
 * solicitations and echo requests for vIPs that this node owns are answered;
 * VXLAN in fragments, behind options, or cut short is dropped and counted;
 * everything else is the kernel's.
 */
#ifndef SLUICE_LOCAL_H
#define SLUICE_LOCAL_H

#include "common/parse.h"
#include "gateway/address_owner.h"
#include "gateway/answer.h"

/* The vMAC of an owned vIP that an exact match led to; 0: it is none. */
static __always_inline __u64 owned_mac(const struct exact_hit *hit)
{
	struct next_hop *hop = next_hop_at(hit->next, NEXT_HOP_VIP);

	return hop && READ_ONCE(hop->flags) & NEXT_HOP_OWNED ? load_mac(hop->mac) : 0;
}

/*
 * Sends an answer to a question that was sent to the MAC `asked`. It goes from
 * the vMAC, so that switches keep it. But a question to everybody, while the
 * agent is away, is also answered by the gateway that has taken the vIP, and
 * from the vMAC ours would bring a switch to send its packets here, where the
 * neighbours may be lost since the link failed. So it goes from the port's own
 * MAC: what it says is true whoever has the vIP, and switches learn nothing from
 * it. (Called from local(), for its callees have no more stack on Linux 6.1.)
 */
__attribute__((noinline)) int send_answer(struct xdp_md *ctx, __u64 asked)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct superblock *tables = cell_at(0);
	__u64 said = tables ? READ_ONCE(tables->attended_ns) : 0;
	struct underlay_port *port;

	if (!(asked & MAC_GROUP_BIT) || !said ||
	    (__s64)(bpf_ktime_get_ns() - said) < ATTENDED_NS)
		return XDP_TX;
	port = underlay_port_at(underlay_port_index(ctx->ingress_ifindex));
	if (port && port->ifindex == ctx->ingress_ifindex && data + ETH_HLEN <= end)
		store_mac(data + ETH_ALEN, underlay_port_mac(port));
	return XDP_TX;
}

static __always_inline int local_arp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame frame = {};
	struct arp_question arp = {};
	struct exact_hit hit = {};
	__u64 mac;

	if (data + ETH_HLEN + ARP_BYTES > end)
		return XDP_PASS;
	frame.source_mac = load_mac(data + ETH_ALEN);
	/* An announcement asks nothing, though it may be about our vIP. */
	if (parse_arp(data, &frame, &arp) || arp.operation != ARP_REQUEST ||
	    arp.sender == arp.target || find_ipv4(0, arp.target, &hit) != EXACT_HIT)
		return XDP_PASS;
	mac = owned_mac(&hit);
	if (!mac)
		return XDP_PASS;
	write_arp_reply(data, &arp, mac);
	return XDP_TX;
}

/* Swaps the addresses of Ethernet. */
static __always_inline void swap_macs(void *data)
{
	__u64 destination = load_mac(data), source = load_mac(data + ETH_ALEN);

	store_mac(data, source);
	store_mac(data + ETH_ALEN, destination);
}

__attribute__((noinline)) int answer_echo4(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *ip = data + ETH_HLEN, *icmp = ip + IPV4_BYTES;
	struct frame frame = {};
	__u32 source;

	if (parse_frame(ctx, 0, bpf_xdp_get_buff_len(ctx), &frame) || !source_valid(&frame) ||
	    frame.flags & (FRAME_FRAGMENT | FRAME_OPTIONS) ||
	    frame.transport >> 16 != ICMP4_ECHO << 8 || icmp + ICMP_BYTES > end)
		return XDP_PASS;
	swap_macs(data);
	source = LOAD32(ip + 12);
	STORE32(ip + 12, LOAD32(ip + 16));
	STORE32(ip + 16, source);
	STORE8(ip + 8, OUTER_TTL);
	STORE16(ip + 10, 0);
	STORE16(ip + 10, checksum_fold(ipv4_header_sum(ip)));
	STORE8(icmp, ICMP4_ECHO_REPLY);
	STORE16(icmp + 2, checksum_update(LOAD16(icmp + 2), bpf_htons(ICMP4_ECHO << 8),
					  bpf_htons(ICMP4_ECHO_REPLY << 8)));
	return XDP_TX;
}

static __always_inline int local_ipv4(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *ip = data + ETH_HLEN, *udp;
	__u32 fragment, header;
	enum owner owner;

	if (ip + IPV4_BYTES > end || LOAD8(ip) >> 4 != 4)
		return XDP_PASS;
	if (LOAD8(ip + 9) != IPPROTO_UDP && LOAD8(ip + 9) != IPPROTO_ICMP)
		return XDP_PASS;
	owner = owner_of4(bpf_ntohl(LOAD32(ip + 16)), load_mac(data), ctx->ingress_ifindex);
	if (owner == OWNER_BUSY)
		return drop(0, DROP_table_busy);
	if (LOAD8(ip + 9) == IPPROTO_ICMP)
		return owner == OWNER_VIP_OWNED ? answer_echo4(ctx) : XDP_PASS;
	if (owner == OWNER_OTHER)
		return XDP_PASS;
	header = (LOAD8(ip) & 15) * 4;
	fragment = bpf_ntohs(LOAD16(ip + 6)) & 0x3fff;
	/* Nothing but the programs serves a vIP; at a VTEP the rest of a datagram may be the kernel's. */
	if (fragment & 0x1fff)
		return owner == OWNER_VTEP ? XDP_PASS : drop(0, DROP_outer_fragment);
	udp = ip + header;
	if (header < IPV4_BYTES || udp + 4 > end || LOAD16(udp + 2) != bpf_htons(VXLAN_PORT))
		return XDP_PASS;
	if (fragment)
		return drop(0, DROP_outer_fragment);
	return drop(0, header > IPV4_BYTES ? DROP_outer_options : DROP_outer_truncated);
}

/* A solicitation, by multicast or to a vIP itself. */
static __always_inline int local_solicit(struct xdp_md *ctx, const struct frame *frame)
{
	__u64 target[2] = {}, mac;
	struct exact_hit hit = {};
	void *data;
	int reason = parse_solicit(ctx, 0, frame, target);

	if (find_ipv6(0, target[0], target[1], &hit) != EXACT_HIT)
		return XDP_PASS;
	mac = owned_mac(&hit);
	if (!mac)
		return XDP_PASS;
	if (reason)
		return drop(0, reason);
	if (resize(ctx, ND_ADVERT_FRAME))
		return drop(0, DROP_headroom);
	data = (void *)(long)ctx->data;
	if (data + ND_ADVERT_FRAME > (void *)(long)ctx->data_end)
		return drop(0, DROP_headroom);
	write_advert(data, frame, target, mac, 0);
	/* The answer to a probe goes to all nodes; from here that is the port it came by. */
	return XDP_TX;
}

static __always_inline int answer_echo6(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *ip = data + ETH_HLEN, *icmp = ip + IPV6_BYTES;
	__u64 high, low;

	if (icmp + ICMP_BYTES > end)
		return XDP_PASS;
	swap_macs(data);
	high = LOAD64(ip + 8);
	low = LOAD64(ip + 16);
	STORE64(ip + 8, LOAD64(ip + 24));
	STORE64(ip + 16, LOAD64(ip + 32));
	STORE64(ip + 24, high);
	STORE64(ip + 32, low);
	STORE8(ip + 7, OUTER_TTL);
	STORE8(icmp, ICMP6_ECHO_REPLY);
	STORE16(icmp + 2, checksum_update(LOAD16(icmp + 2), bpf_htons(ICMP6_ECHO << 8),
					  bpf_htons(ICMP6_ECHO_REPLY << 8)));
	return XDP_TX;
}

__attribute__((noinline)) int local_icmp6(struct xdp_md *ctx, __u32 owner)
{
	struct frame frame = {};

	if (parse_frame(ctx, 0, bpf_xdp_get_buff_len(ctx), &frame))
		return XDP_PASS;
	if (is_nd(&frame) && frame.transport >> 24 == ICMP6_SOLICIT)
		return local_solicit(ctx, &frame);
	if (owner == OWNER_VIP_OWNED && source_valid(&frame) &&
	    !(frame.flags & (FRAME_FRAGMENT | FRAME_OPTIONS)) &&
	    frame.transport >> 16 == ICMP6_ECHO << 8)
		return answer_echo6(ctx);
	return XDP_PASS;
}

/* One extension header and what it says comes next is looked at: VXLAN has none. */
static __always_inline int local_options6(const void *header, const void *end, __u32 kind,
					  enum owner owner)
{
	__u32 fragment;

	if (header + 8 > end || LOAD8(header) != IPPROTO_UDP)
		return XDP_PASS;
	if (kind != NEXT_FRAGMENT)
		return drop(0, DROP_outer_options);
	fragment = bpf_ntohs(LOAD16(header + 2));
	if (fragment & 0xfff8)
		return owner == OWNER_VTEP ? XDP_PASS : drop(0, DROP_outer_fragment);
	if (header + 12 > end || LOAD16(header + 10) != bpf_htons(VXLAN_PORT))
		return XDP_PASS;
	return drop(0, DROP_outer_fragment);
}

static __always_inline int local_ipv6(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *ip = data + ETH_HLEN, *udp = ip + IPV6_BYTES;
	enum owner owner;
	__u32 next;

	if (udp > end || LOAD8(ip) >> 4 != 6)
		return XDP_PASS;
	next = LOAD8(ip + 6);
	if (next == IPPROTO_TCP)
		return XDP_PASS;
	owner = owner_of6(load_half(ip + 24), load_half(ip + 32), load_mac(data),
			  ctx->ingress_ifindex);
	if (owner == OWNER_BUSY)
		return drop(0, DROP_table_busy);
	if (next == IPPROTO_ICMPV6)
		return local_icmp6(ctx, owner);
	if (owner == OWNER_OTHER)
		return XDP_PASS;
	if (next == NEXT_FRAGMENT || next == NEXT_HOP_BY_HOP || next == NEXT_ROUTING ||
	    next == NEXT_DESTINATION)
		return local_options6(udp, end, next, owner);
	if (next == IPPROTO_UDP && udp + 4 <= end && LOAD16(udp + 2) == bpf_htons(VXLAN_PORT))
		return drop(0, DROP_outer_truncated);
	return XDP_PASS;
}

/* Whatever parse_underlay() called NOT_TUNNEL. */
__attribute__((noinline)) int local(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u16 ethertype;
	int verdict;
	__u64 asked;

	if (data + ETH_HLEN > end)
		return XDP_PASS;
	asked = load_mac(data);
	ethertype = LOAD16(data + 2 * ETH_ALEN);
	if (ethertype == bpf_htons(ETH_P_ARP))
		verdict = local_arp(ctx);
	else if (ethertype == bpf_htons(ETH_P_IP))
		verdict = local_ipv4(ctx);
	else if (ethertype == bpf_htons(ETH_P_IPV6))
		verdict = local_ipv6(ctx);
	else
		verdict = XDP_PASS;
	return verdict == XDP_TX ? send_answer(ctx, asked) : verdict;
}

#endif
