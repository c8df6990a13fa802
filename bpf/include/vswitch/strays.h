/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: strays, packets that another host sent to this one by a direct path, for an instance that has
 * moved or was never here (Zeta section V-B, passive migration).
 *
 * Contract: a frame from a known sender, in a VNI of this host, whose destination is not a port. A
 * unicast IP packet from a host is forwarded to the VPC's gateways, which have the current location,
 * and an event tells the agent, so that it redirects the sender. All other frames are dropped as
 * not_local. A frame from a gateway never returns to a gateway: if their tables differed, it would
 * loop. Returns the verdict. Uses the maps `strays`, `stray_budget`, `events_lost`, `cells` and those of
 * count.h and event_share.h.
 *
 * While an instance migrates (Achelous section 6.2), the destination has a path with NEXT_HOP_MOVED to the host
 * that has it, or is in a delegated prefix whose route leads to that path (find_delegated() in deliver.h). A unicast IP packet, also from a gateway, is sent there with the identity of its sender. It
 * never returns to the node from which it came: two hosts that lead to each other do not make a loop. It has a mark
 * in its VXLAN header (VXLAN_REDIRECTED), with which the other host does not send it to a gateway, if the instance is not
 * there either: the gateway could send it to this host again.
 */
#ifndef SLUICE_STRAYS_H
#define SLUICE_STRAYS_H

#include "common/event_share.h"
#include "common/events_lost.h"
#include "common/token_bucket.h"
#include "layout/events.h"
#include "vswitch/direct.h"
#include "vswitch/vm_nd.h"

/* Limit of events for each CPU. Packets beyond it are still forwarded. */
#define STRAYS_PER_SECOND 1000
#define STRAYS ((struct event_budget){ NS_PER_SECOND / STRAYS_PER_SECOND, .burst = 100, .per_share = 16 })

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, STRAYS_BYTES);
} strays SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct token_bucket);
} stray_budget SEC(".maps");

/* Whether an exact match for a frame from the underlay found no port, with the tables intact. */
static __always_inline int is_stray(enum exact_answer found, const struct exact_hit *hit)
{
	return found == EXACT_MISS || is_direct(found, hit);
}

/* Posts an event about the stray, if the budget allows. */
__attribute__((noinline)) int post_stray(struct frame *frame, struct tunnel_sender *from, __u32 vni)
{
	struct stray_event *event = NULL;
	__u32 zero = 0;

	if (!frame || !from)
		return 0;
	if (take_event(bpf_map_lookup_elem(&stray_budget, &zero), STRAYS, vni))
		event = bpf_ringbuf_reserve(&strays, sizeof(*event), 0);
	if (!event) {
		count_lost();
		return 0;
	}
	event->destination[0] = frame->destination[0];
	event->destination[1] = frame->destination[1];
	event->sender[0] = from->address[0];
	event->sender[1] = from->address[1];
	event->vni = vni;
	event->ipv6 = !!(frame->flags & FRAME_IPV6);
	event->sender_ipv6 = from->ipv6;
	event->reserved[0] = event->reserved[1] = 0;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Whether the stray is one that a gateway would forward. */
static __always_inline int is_stray_unicast(const struct frame *frame)
{
	if (frame->ethertype == ETH_P_ARP || frame_multicast(frame) || is_control_icmp6(frame))
		return 0;
	return !(frame->flags & FRAME_IPV6) || !ipv6_link_local(frame->destination[0]);
}

/* Forwards the stray to the gateways, or drops it. */
static __always_inline int forward_stray(struct __sk_buff *skb, struct frame *frame,
					 struct tunnel_sender *from, __u32 vrf_cell, __u32 vni)
{
	if (!from->is_host || from->is_redirected || !is_stray_unicast(frame))
		return port_drop(vni, DROP_not_local);
	if (!source_valid(frame))
		return port_drop(vni, DROP_inner_source);
	post_stray(frame, from, vni);
	return tunnel_to_group(skb, vrf_cell, vni, frame);
}

/* The path of an instance that migrates, if that is what an exact match found. */
static __always_inline const struct next_hop *moved_path(enum exact_answer found, const struct exact_hit *hit)
{
	const struct next_hop *hop = found == EXACT_HIT ? next_hop_at(hit->next, NEXT_HOP_DIRECT) : NULL;

	return hop && READ_ONCE(hop->flags) & NEXT_HOP_MOVED ? hop : NULL;
}

/* Whether the path leads to the node that has sent the frame. */
static __always_inline int leads_back(const struct next_hop *hop, const struct tunnel_sender *from)
{
	if (!(READ_ONCE(hop->flags) & NEXT_HOP_IPV6))
		return !from->ipv6 && from->address[1] == bpf_ntohl(LOAD32(hop->address));
	return from->ipv6 && from->address[0] == load_half(hop->address) &&
	       from->address[1] == load_half(hop->address + 8);
}

/* Sends the stray to the host that has its instance, by the path that the exact match found, or drops it. */
static __always_inline int redirect_stray(struct __sk_buff *skb, struct frame *frame,
					  struct tunnel_sender *from, const struct next_hop *hop,
					  struct exact_hit *hit, __u32 vrf_cell, __u32 vni)
{
	const struct node_config *node = node_at();

	if (!node || !is_stray_unicast(frame) || leads_back(hop, from))
		return port_drop(vni, DROP_not_local);
	if (!source_valid(frame))
		return port_drop(vni, DROP_inner_source);
	/* A packet to an address that neighbors reach by the router's MAC address is routed again. */
	if (frame->destination_mac == load_mac(node->router_mac) && frame->ttl <= 1)
		return port_drop(vni, DROP_ttl_exceeded);
	if (from->is_host)
		post_stray(frame, from, vni);
	frame->flags |= FRAME_REDIRECTED;
	return send_direct(skb, frame, hit, vrf_cell, vni);
}

#endif
