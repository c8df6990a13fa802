/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: ARP from a VM (RFC 826, 5227). Requests for the router, for instances on this host and for
 * destinations with a direct path are answered here, all others by the gateway.
 *
 * Contract: an ARP frame whose Ethernet source the VM may use. Returns the verdict: the frame was turned
 * into the reply and sent, absorbed, or dropped and counted; or VERDICT_FORWARD for a request that is
 * unchanged but for its sender, with the addresses of struct frame set so that the flow hash can be
 * computed. Uses the maps `cells` and those of count.h and claims.h.
 */
#ifndef SLUICE_VM_ARP_H
#define SLUICE_VM_ARP_H

#include "common/arp.h"
#include "vswitch/claims.h"
#include "vswitch/reply.h"
#include "vswitch/sources.h"

/* Turns the VM's request into the reply that the target is at `mac`, and sends it. */
static __always_inline int arp_answer(struct __sk_buff *skb, const struct port *port,
				      const struct arp_message *question, __u64 mac)
{
	struct cursor cursor = cursor_at(skb, 0);
	struct ethernet_header *ethernet;

	if (!cursor_has(&cursor, ETH_HLEN + ARP_BYTES))
		return port_drop(port->vni, DROP_inner_truncated);
	ethernet = next_header(&cursor, struct ethernet_header);
	write_arp_reply(ethernet, next_header(&cursor, struct arp_header), question, mac);
	return reply_send(skb);
}

/*
 * Prepares a request for the gateway: its sender becomes the port's own address, unless the VM gets the packets to it. The
 * answer could not be sent to another address.
 */
static __always_inline int arp_forward(struct __sk_buff *skb, const struct port *port, __u32 port_cell,
				       const struct arp_message *arp, struct frame *frame)
{
	__u32 sender = arp->sender;

	if (!is_received(source4(port, port_cell, sender))) {
		if (!port->address4)
			return port_drop(port->vni, DROP_spoofed_ip);
		sender = bpf_ntohl(port->address4);
		if (bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct arp_header, sender),
					&port->address4, sizeof(port->address4), 0))
			return port_drop(port->vni, DROP_headroom);
	}
	/* By these addresses, requests are spread over the gateway group. */
	frame->source[1] = sender;
	frame->destination[1] = arp->target;
	return VERDICT_FORWARD;
}

/* A gratuitous request, or a reply: the network has asked nothing (RFC 5227 section 3). */
static __always_inline int is_announcement(const struct arp_message *arp)
{
	return arp->operation == ARP_REPLY || arp->target == arp->sender;
}

__attribute__((noinline)) int arp_from_vm(struct __sk_buff *skb, __u32 port_cell, struct frame *frame)
{
	const struct port *port = vm_port_at(port_cell);
	const struct node_config *node = node_at();
	struct cursor cursor = cursor_at(skb, ETH_HLEN);
	const struct arp_header *header = take_header(&cursor, struct arp_header);
	struct arp_message arp;
	struct exact_hit hit = {};
	enum exact_answer found;
	enum drop_reason reason;
	__u32 kind;

	if (!port || !node || !frame)
		return port_drop(0, DROP_stale_index);
	if (!header)
		return port_drop(port->vni, DROP_inner_truncated);
	reason = parse_arp(header, frame, &arp);
	if (reason)
		return port_drop(port->vni, reason);
	/* The sender of a probe (RFC 5227) is zero. */
	if (arp.sender || arp.operation == ARP_REPLY) {
		kind = source4(port, port_cell, arp.sender);
		if (!kind && !(port->flags & PORT_UNPROTECTED))
			return port_drop(port->vni, DROP_spoofed_ip);
		if (kind == SOURCE_PAIR || (kind == SOURCE_HELD && is_announcement(&arp)))
			return claim_address(port_cell, 0, 0, arp.sender);
	}
	/* The network does not wait for replies. */
	if (arp.operation == ARP_REPLY)
		return VERDICT_ABSORBED;
	if (arp.target && arp.target == bpf_ntohl(port->router4))
		return arp_answer(skb, port, &arp, load_mac(node->router_mac));
	/* Announcements, and probes of addresses that the VM may use. */
	kind = source4(port, port_cell, arp.target);
	if (is_received(kind) || (!arp.sender && (kind || port->flags & PORT_UNPROTECTED)))
		return VERDICT_ABSORBED;
	/* A probe of another address finds it in use: this port may use only its own. */
	if (!arp.sender)
		return arp_answer(skb, port, &arp, load_mac(node->router_mac));
	found = find_ipv4(port->vni, arp.target, &hit);
	if (found == EXACT_BUSY)
		return port_drop(port->vni, DROP_table_busy);
	if (found == EXACT_HIT)
		return arp_answer(skb, port, &arp, hit.mac);
	return arp_forward(skb, port, port_cell, &arp, frame);
}

#endif
