/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: neighbor discovery and multicast listener reports from a VM (RFC 4861, 4862, 3810). As in
 * vm_arp.h, solicitations for the router, for instances on this host and for destinations with a direct path
 * are answered here, all others by the gateway. A VM may use any link-local address toward its router, because
 * no packet from or to one leaves the port.
 *
 * Contract: an ICMPv6 message of is_control_icmp6() whose Ethernet source the VM may use. nd_from_vm()
 * returns the verdict, or what the caller does next (enum verdict): it does not call nd_answer() itself,
 * because the verifier limits the stack of a call chain. Only VERDICT_FORWARD may have changed the packet,
 * in its source address and checksum. Uses the maps `cells` and those of reply.h, claims.h and count.h.
 */
#ifndef SLUICE_VM_ND_H
#define SLUICE_VM_ND_H

#include "common/neighbor_discovery.h"
#include "vswitch/claims.h"
#include "vswitch/router_advertisement.h"
#include "vswitch/sources.h"

/* Offset of the message in the packet: there are no extension headers. */
#define ND_AT (ETH_HLEN + IPV6_BYTES)
#define ND_ROUTER_SOLICIT_BYTES 8

/* What nd_answer() needs for VERDICT_ND_ANSWER. */
struct nd_decision {
	__u64 target[2]; /* as in struct frame */
	__u64 mac;	 /* at which the target is */
	__u64 flags;	 /* ND_ROUTER or 0 */
};

/*
 * Checks the options from `at` to `end`: lengths are valid, and the only MAC address is that of the frame. A
 * message from the unspecified address has no source MAC address.
 */
static __always_inline enum drop_reason nd_check_options(struct __sk_buff *skb, __u32 at, __u32 end,
							 __u64 mac, int unspecified)
{
	for (int i = 0; i <= ND_OPTIONS_MAX; i++) {
		/* A MAC address on the stack is not aligned: it is read as a part of the word. */
		union {
			struct nd_mac_option header;
			__be64 word;
		} option;
		__u8 type;
		__u32 bytes;

		if (at == end)
			return DROP_none;
		if (at + sizeof(option) > end || context_load(skb, at, &option, sizeof(option)))
			return DROP_nd_malformed;
		type = option.header.type;
		bytes = option.header.units * ND_OPTION_UNIT;
		if (!bytes || at + bytes > end || (type == ND_OPTION_SOURCE_MAC && unspecified))
			return DROP_nd_malformed;
		if ((type == ND_OPTION_SOURCE_MAC || type == ND_OPTION_TARGET_MAC) &&
		    (bpf_be64_to_cpu(option.word) & EXACT_MAC_MASK) != mac)
			return DROP_spoofed_mac;
		at += bytes;
	}
	return DROP_nd_malformed;
}

/* The checks that RFC 4861 sections 6.1.1, 7.1.1 and 7.1.2 have in common. */
static __always_inline enum drop_reason nd_check(struct __sk_buff *skb, const struct frame *frame)
{
	__u32 solicit = frame->transport >> 24 == ICMP6_ROUTER_SOLICIT;
	__u32 fixed = solicit ? ND_ROUTER_SOLICIT_BYTES : sizeof(struct nd_header);
	__u32 bytes = frame->ip_bytes - IPV6_BYTES;
	__u64 sum;

	/* RFC 6980 forbids fragments; no other extension header has a use here. */
	if (frame->flags & (FRAME_OPTIONS | FRAME_FRAGMENT) || frame->ttl != ND_HOP_LIMIT ||
	    (frame->transport >> 16 & 0xff) || bytes < fixed)
		return DROP_nd_malformed;
	sum = packet_sum(skb, ND_AT, bytes);
	if (sum == SUM_FAILED)
		return DROP_nd_malformed;
	sum += ipv6_pseudo_sum(frame->source, frame->destination, bytes, IPPROTO_ICMPV6);
	if (checksum_fold(sum))
		return DROP_nd_malformed;
	return nd_check_options(skb, ND_AT + fixed, ND_AT + bytes, frame->source_mac, is_nd_probe(frame));
}

/* Turns the VM's solicitation into the advertisement that was decided, and sends it. */
__attribute__((noinline)) int nd_answer(struct __sk_buff *skb, __u32 port_cell, struct frame *frame,
					struct nd_decision *decision)
{
	const struct port *port = vm_port_at(port_cell);
	enum drop_reason failed;
	struct cursor cursor;
	__u64 target[2];

	if (!port || !frame || !decision)
		return port_drop(0, DROP_stale_index);
	failed = reply_begin(skb, ND_ADVERT_FRAME);
	if (failed)
		return port_drop(port->vni, failed);
	cursor = cursor_at(skb, 0);
	if (!cursor_has(&cursor, ND_ADVERT_FRAME))
		return port_drop(port->vni, DROP_headroom);
	target[0] = decision->target[0];
	target[1] = decision->target[1];
	write_advert(&cursor, frame, target, decision->mac, decision->flags);
	return reply_send(skb);
}

/*
 * Prepares a solicitation for the gateway: its source becomes the port's own address, unless the VM gets the packets to
 * it. The answer could not be sent to another address, such as the link-local one, from which Linux probes reachability.
 */
static __always_inline int nd_forward(struct __sk_buff *skb, const struct port *port, __u32 port_cell,
				      const struct frame *frame)
{
	__be64 before[2], after[2];
	__s64 difference;

	if (is_received(source6(port, port_cell, frame->source)))
		return VERDICT_FORWARD;
	if (!port_has_ipv6(port))
		return port_drop(port->vni, DROP_spoofed_ip);
	store_halves(before, frame->source);
	__builtin_memcpy(after, port->address6, sizeof(after));
	difference = bpf_csum_diff((__be32 *)before, 16, (__be32 *)after, 16, 0);
	if (bpf_l4_csum_replace(skb, ND_AT + __builtin_offsetof(struct nd_header, checksum), 0, difference,
				BPF_F_PSEUDO_HDR) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6_header, source), after,
				sizeof(after), 0))
		return port_drop(port->vni, DROP_headroom);
	return VERDICT_FORWARD;
}

/* Decides about a valid solicitation (RFC 4861 section 7.2.3) from a source that the VM may use, or zero. */
static __always_inline int nd_solicitation(struct __sk_buff *skb, const struct port *port, __u32 port_cell,
					   const struct frame *frame, struct nd_decision *decision)
{
	int probe = is_nd_probe(frame);
	const __u64 *target = decision->target;
	int router = is_router6(port, target);
	const struct node_config *node = node_at();
	struct exact_hit hit = {};
	enum exact_answer found;

	if (!router) {
		__u32 kind = source6(port, port_cell, target);

		if (probe && is_shared(kind))
			return claim_address(port_cell, 1, target[0], target[1]);
		if (is_received(kind) ||
		    (probe && (is_link_local64(target) || port->flags & PORT_UNPROTECTED)))
			return VERDICT_ABSORBED;
	}
	/* A probe of another address finds it in use: this port may use only its own. */
	if (router || probe) {
		decision->mac = node ? load_mac(node->router_mac) : 0;
		decision->flags = router ? ND_ROUTER : 0;
		return VERDICT_ND_ANSWER;
	}
	if (ipv6_link_local(target[0]))
		return port_drop(port->vni, DROP_link_local);
	found = find_ipv6(port->vni, target[0], target[1], &hit);
	if (found == EXACT_BUSY)
		return port_drop(port->vni, DROP_table_busy);
	if (found != EXACT_HIT)
		return nd_forward(skb, port, port_cell, frame);
	decision->mac = hit.mac;
	decision->flags = 0;
	return VERDICT_ND_ANSWER;
}

static __always_inline int nd_dispatch(struct __sk_buff *skb, const struct port *port, __u32 port_cell,
				       struct frame *frame, struct nd_decision *decision)
{
	__u64 target[2] = {};
	enum drop_reason reason;
	__u32 kind;

	if (frame->transport >> 24 == ICMP6_ROUTER_SOLICIT) {
		if (!LOAD64(port->prefix6)) /* a subnet without IPv6 has no router */
			return port_drop(port->vni, DROP_multicast);
		return VERDICT_ROUTER_ADVERTISEMENT;
	}
	if (frame->transport >> 24 == ICMP6_SOLICIT) {
		reason = parse_solicit(skb, 0, frame, target);
		if (reason)
			return port_drop(port->vni, reason);
		decision->target[0] = target[0];
		decision->target[1] = target[1];
		return nd_solicitation(skb, port, port_cell, frame, decision);
	}
	/* An advertisement: the network answers for the VM, and needs no other. */
	if (context_load(skb, ND_AT + __builtin_offsetof(struct nd_header, target), target, sizeof(target)))
		return port_drop(port->vni, DROP_nd_malformed);
	load_halves(target, target);
	if (is_router6(port, target))
		return port_drop(port->vni, DROP_spoofed_ip);
	kind = source6(port, port_cell, target);
	if (is_shared(kind))
		return claim_address(port_cell, 1, target[0], target[1]);
	if (kind || is_link_local64(target) || port->flags & PORT_UNPROTECTED)
		return VERDICT_ABSORBED;
	return port_drop(port->vni, DROP_spoofed_ip);
}

/* Whether the VM may send control messages from the source, which is not the port's own address. */
static __always_inline int nd_source_valid(const struct port *port, __u32 port_cell,
					   const struct frame *frame)
{
	if (is_router6(port, frame->source))
		return 0;
	return is_link_local64(frame->source) || may_send(port, port_cell, frame);
}

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
	if (!is_nd_probe(frame) && !is_port_address6(port, frame->source) &&
	    !nd_source_valid(port, port_cell, frame))
		return port_drop(port->vni, DROP_spoofed_ip);
	/* Multicast listener reports: there is no multicast, so they have no effect. */
	if (!is_nd(frame))
		return VERDICT_ABSORBED;
	reason = nd_check(skb, frame);
	if (reason)
		return port_drop(port->vni, reason);
	return nd_dispatch(skb, port, port_cell, frame, decision);
}

#endif
