/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Neighbour discovery and multicast listener reports from a VM (RFC 4861, 4862,
 * 3810). As in vm_arp.h: the router and the ports of this host are answered for
 * here, the gateway answers for all others.
 *
 * A VM may use any link-local address towards its router, since nothing from or
 * to one ever leaves the port.
 */
#ifndef SLUICE_VM_ND_H
#define SLUICE_VM_ND_H

#include "common/neighbor_discovery.h"
#include "vswitch/router_advertisement.h"

#define MLD_QUERY 130
#define MLD_DONE 132
#define MLD2_REPORT 143
#define ND_AT (ETH_HLEN + IPV6_BYTES)
#define ND_ROUTER_SOLICIT_BYTES 8

/* What nd_from_vm leaves its caller to do: the kernel allows little stack for calls within calls. */
#define ND_ANSWER 100	 /* nd_answer() with the decision */
#define ND_ADVERTISE 101 /* router_advertise() */

struct nd_decision {
	__u64 target[2];
	__u64 mac;
	__u64 flags;
};

/* What is between a VM and its network, and never forwarded. */
static __always_inline int is_control_icmp6(const struct frame *frame)
{
	__u8 type = frame->transport >> 24;

	if (!(frame->flags & FRAME_IPV6) || frame->protocol != IPPROTO_ICMPV6 ||
	    frame->flags & FRAME_LATER)
		return 0;
	return is_nd(frame) || (type >= MLD_QUERY && type <= MLD_DONE) || type == MLD2_REPORT;
}

/*
 * Walks the options from `at` to `end`: lengths are right, and the VM's own MAC
 * is the only one it tells of. An unspecified source has no MAC to tell.
 */
static __always_inline enum drop_reason nd_check_options(struct __sk_buff *skb, __u32 at, __u32 end,
							 const struct port *port, int unspecified)
{
	for (int i = 0; i <= ND_OPTIONS_MAX; i++) {
		__u64 option; /* type, length, and the MAC if it is one that tells of it */
		__u32 type, units;

		if (at == end)
			return DROP_none;
		if (at + 8 > end || bpf_skb_load_bytes(skb, at, &option, sizeof(option)))
			return DROP_nd_malformed;
		option = bpf_be64_to_cpu(option);
		type = option >> 56;
		units = option >> 48 & 0xff;
		if (!units || at + units * 8 > end || (type == ND_SOURCE_MAC && unspecified))
			return DROP_nd_malformed;
		if ((type == ND_SOURCE_MAC || type == ND_TARGET_MAC) &&
		    (option & EXACT_MAC_MASK) != load_mac(port->mac))
			return DROP_spoofed_mac;
		at += units * 8;
	}
	return DROP_nd_malformed;
}

/* RFC 4861 section 6.1.1, and what sections 7.1.1 and 7.1.2 have in common with it. */
static __always_inline enum drop_reason nd_check(struct __sk_buff *skb, const struct port *port,
						 const struct frame *frame)
{
	__u32 solicit = frame->transport >> 24 == ICMP6_ROUTER_SOLICIT;
	__u32 fixed = solicit ? ND_ROUTER_SOLICIT_BYTES : ND_SOLICIT_BYTES;
	__u32 bytes = frame->ip_bytes - IPV6_BYTES;
	__u64 sum;

	/* RFC 6980 forbids fragments; other extension headers serve only to hide. */
	if (frame->flags & (FRAME_OPTIONS | FRAME_FRAGMENT) || frame->ttl != ND_HOP_LIMIT ||
	    (frame->transport >> 16 & 0xff) || bytes < fixed)
		return DROP_nd_malformed;
	sum = packet_sum(skb, ND_AT, bytes);
	if (sum == SUM_FAILED)
		return DROP_nd_malformed;
	sum += ipv6_pseudo_sum(frame->source, frame->destination, bytes, IPPROTO_ICMPV6);
	if (checksum_fold(sum))
		return DROP_nd_malformed;
	return nd_check_options(skb, ND_AT + fixed, ND_AT + bytes, port,
				!frame->source[0] && !frame->source[1]);
}

/* Answers the VM's solicitation. */
__attribute__((noinline)) int nd_answer(struct __sk_buff *skb, __u32 port_cell, struct frame *frame,
					struct nd_decision *decision)
{
	const struct port *port = vm_port_at(port_cell);
	__u64 target[2];
	void *start;

	if (!port || !frame || !decision)
		return port_drop(0, DROP_stale_index);
	if (reply_begin(skb, ND_ADVERT_FRAME))
		return port_drop(port->vni, DROP_headroom);
	start = (void *)(long)skb->data;
	if (start + ND_ADVERT_FRAME > (void *)(long)skb->data_end)
		return port_drop(port->vni, DROP_headroom);
	target[0] = decision->target[0];
	target[1] = decision->target[1];
	write_advert(start, frame, target, decision->mac, decision->flags);
	return reply_send(skb);
}

/*
 * A solicitation that goes to the gateway carries the port's own address: the
 * answer finds its way back by that, which a link-local one (Linux probes
 * reachability from it) would not.
 */
static __always_inline int nd_forward(struct __sk_buff *skb, const struct port *port,
				      const struct frame *frame)
{
	__be64 before[2], after[2];
	__s64 difference;

	if (is_port_address6(port, frame->source))
		return FORWARD;
	if (!port_has_ipv6(port))
		return port_drop(port->vni, DROP_spoofed_ip);
	store_half(&before[0], frame->source[0]);
	store_half(&before[1], frame->source[1]);
	__builtin_memcpy(after, port->address6, sizeof(after));
	difference = bpf_csum_diff((__be32 *)before, 16, (__be32 *)after, 16, 0);
	if (bpf_l4_csum_replace(skb, ND_AT + 2, 0, difference, BPF_F_PSEUDO_HDR) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN + 8, after, sizeof(after), 0))
		return port_drop(port->vni, DROP_headroom);
	return FORWARD;
}

/* RFC 4861 section 7.2.3 and what is behind it. The source is one that the VM may use, or zero. */
static __always_inline int nd_solicitation(struct __sk_buff *skb, const struct port *port,
					   const struct frame *frame,
					   struct nd_decision *decision)
{
	int probe = !frame->source[0] && !frame->source[1], found;
	const __u64 *target = decision->target;
	int router = is_router6(port, target);
	const struct node_config *node = node_at();
	struct exact_hit hit = {};

	if (!router && (is_port_address6(port, target) || (probe && is_link_local64(target))))
		return ABSORBED;
	/* A probe of another address finds it taken: this port may use only its own. */
	if (router || probe) {
		decision->mac = node ? load_mac(node->router_mac) : 0;
		decision->flags = router ? ND_ROUTER : 0;
		return ND_ANSWER;
	}
	if (ipv6_link_local(target[0]))
		return port_drop(port->vni, DROP_link_local);
	found = find_ipv6(port->vni, target[0], target[1], &hit);
	if (found == EXACT_BUSY)
		return port_drop(port->vni, DROP_table_busy);
	if (found != EXACT_HIT)
		return nd_forward(skb, port, frame);
	decision->mac = hit.mac;
	decision->flags = 0;
	return ND_ANSWER;
}

static __always_inline int nd_dispatch(struct __sk_buff *skb, const struct port *port,
				       struct frame *frame, struct nd_decision *decision)
{
	__u64 target[2] = {};
	enum drop_reason reason;

	if (frame->transport >> 24 == ICMP6_ROUTER_SOLICIT) {
		if (!LOAD64(port->prefix6)) /* a subnet without IPv6 has no router to tell of */
			return port_drop(port->vni, DROP_multicast);
		return ND_ADVERTISE;
	}
	if (frame->transport >> 24 == ICMP6_SOLICIT) {
		reason = parse_solicit(skb, 0, frame, target);
		if (reason)
			return port_drop(port->vni, reason);
		decision->target[0] = target[0];
		decision->target[1] = target[1];
		return nd_solicitation(skb, port, frame, decision);
	}
	/* An advertisement: nobody asked, since the network answers for the VM. */
	if (bpf_skb_load_bytes(skb, ND_AT + 8, target, sizeof(target)))
		return port_drop(port->vni, DROP_nd_malformed);
	target[0] = bpf_be64_to_cpu(target[0]);
	target[1] = bpf_be64_to_cpu(target[1]);
	if (is_port_address6(port, target) ||
	    (is_link_local64(target) && !is_router6(port, target)))
		return ABSORBED;
	return port_drop(port->vni, DROP_spoofed_ip);
}

/* The verdict on ICMPv6 of is_control_icmp6(), FORWARD, or ND_*. */
__attribute__((noinline)) int nd_from_vm(struct __sk_buff *skb, __u32 port_cell, struct frame *frame,
					 struct nd_decision *decision)
{
	const struct port *port = vm_port_at(port_cell);
	enum drop_reason reason;
	__u8 type;

	if (!port || !frame || !decision)
		return port_drop(0, DROP_stale_index);
	type = frame->transport >> 24;
	if (type == ICMP6_ROUTER_ADVERT || type == ICMP6_REDIRECT || type == MLD_QUERY)
		return port_drop(port->vni, DROP_forged_control);
	if ((frame->source[0] || frame->source[1]) && !is_port_address6(port, frame->source) &&
	    (!is_link_local64(frame->source) || is_router6(port, frame->source)))
		return port_drop(port->vni, DROP_spoofed_ip);
	/* Who listens to what does not matter where there is no multicast. */
	if (!is_nd(frame))
		return ABSORBED;
	reason = nd_check(skb, port, frame);
	if (reason)
		return port_drop(port->vni, reason);
	return nd_dispatch(skb, port, frame, decision);
}

#endif
