/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * ARP from a VM (RFC 826, 5227). The router and the ports of this host are
 * answered for here; who else is asked for is the gateway's to answer.
 */
#ifndef SLUICE_VM_ARP_H
#define SLUICE_VM_ARP_H

#include "common/arp.h"
#include "vswitch/reply.h"

/* "It is at `mac`": the VM's own request, turned round. */
static __always_inline int arp_answer(struct __sk_buff *skb, const struct port *port,
				      const struct arp_question *arp, __u64 mac)
{
	void *start = (void *)(long)skb->data;

	if (start + ETH_HLEN + ARP_BYTES > (void *)(long)skb->data_end)
		return port_drop(port->vni, DROP_inner_truncated);
	write_arp_reply(start, arp, mac);
	return reply_send(skb);
}

/* The verdict on an ARP frame whose Ethernet source is the port's, or FORWARD. */
__attribute__((noinline)) int arp_from_vm(struct __sk_buff *skb, __u32 port_cell, struct frame *frame)
{
	const struct port *port = vm_port_at(port_cell);
	const struct node_config *node = node_at();
	const void *start = (const void *)(long)skb->data;
	struct exact_hit hit = {};
	struct arp_question arp;
	enum drop_reason reason;
	int found;

	if (!port || !node || !frame)
		return port_drop(0, DROP_stale_index);
	if (start + ETH_HLEN + ARP_BYTES > (const void *)(long)skb->data_end)
		return port_drop(port->vni, DROP_inner_truncated);
	reason = parse_arp(start, frame, &arp);
	if (reason)
		return port_drop(port->vni, reason);
	/* A probe (RFC 5227) has no sender yet. */
	if (arp.sender != bpf_ntohl(port->address4) && (arp.sender || arp.operation == ARP_REPLY))
		return port_drop(port->vni, DROP_spoofed_ip);
	/* Announcements, probes of its own address, and answers that nobody waits for. */
	if (arp.operation == ARP_REPLY || arp.target == bpf_ntohl(port->address4))
		return ABSORBED;
	/* A probe of another address finds it taken: this port may use only its own. */
	if (!arp.sender || (arp.target && arp.target == bpf_ntohl(port->router4)))
		return arp_answer(skb, port, &arp, load_mac(node->router_mac));
	found = find_ipv4(port->vni, arp.target, &hit);
	if (found == EXACT_BUSY)
		return port_drop(port->vni, DROP_table_busy);
	if (found == EXACT_HIT)
		return arp_answer(skb, port, &arp, hit.mac);
	/* So that questions spread over the group like everything else. */
	frame->source[1] = arp.sender;
	frame->destination[1] = arp.target;
	return FORWARD;
}

#endif
