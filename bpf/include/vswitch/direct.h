/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: direct paths, through the tunnel to the destination's host instead of a gateway (Zeta
 * section IV-C). The agent writes a path into the tables when a gateway has notified it, when a gateway has
 * answered its request, or, under the model `preprogrammed`, when the controller has sent it.
 *
 * Contract: a unicast packet of a VM with the port's own source, no longer than the port's MTU, whose
 * destination has a path; a routed packet has a TTL of at least 2. It is sent as the gateway would have
 * sent it, or dropped for the same reasons, and counted for the sender's VNI. Returns the verdict. Uses
 * the maps `cells` and those of count.h.
 */
#ifndef SLUICE_DIRECT_H
#define SLUICE_DIRECT_H

#include "common/token_bucket.h"
#include "vswitch/deliver.h"
#include "vswitch/tunnel.h"

/* Whether an exact match found a direct path. */
static __always_inline int is_direct(enum exact_answer found, const struct exact_hit *hit)
{
	return found == EXACT_HIT && next_hop_at(hit->next, NEXT_HOP_DIRECT);
}

/* Shows the agent that the path is in use, by one store per second. */
static __always_inline void stamp_direct(struct next_hop *hop)
{
	__u32 now = bpf_ktime_get_coarse_ns() / NS_PER_SECOND;

	if (READ_ONCE(hop->used) != now)
		WRITE_ONCE(hop->used, now);
}

/* Sends a packet of the VNI by the path in the cell hit->next. */
__attribute__((noinline)) int send_direct(struct __sk_buff *skb, struct frame *frame, struct exact_hit *hit,
					  __u32 vrf_cell, __u32 vni)
{
	const struct vrf *vrf = vrf_at(vrf_cell, vni);
	const struct node_config *node = node_at();
	struct next_hop *hop;
	__u32 path_vni, bytes = skb->len;
	int verdict;

	if (!frame || !hit || !vrf || !node)
		return port_drop(0, DROP_stale_index);
	hop = next_hop_at(hit->next, NEXT_HOP_DIRECT);
	if (!hop)
		return port_drop(vni, DROP_stale_index);
	path_vni = READ_ONCE(hop->vni);
	if (frame->destination_mac == load_mac(node->router_mac)) {
		if (route_headers(skb, frame, node, hit->mac))
			return port_drop(vni, DROP_headroom);
	} else if (frame->destination_mac != hit->mac || path_vni != vni) {
		/* A frame to a neighbor's MAC address does not leave its VPC. */
		return port_drop(vni, DROP_wrong_mac);
	}
	stamp_direct(hop);
	verdict = tunnel_send(skb, node, frame, hop, hit->next, path_vni, vni,
			      frame_secret_hash(frame, node->flow_secret));
	if (verdict == VERDICT_SENT)
		count_traffic(vrf->counters, bytes);
	return verdict;
}

#endif
