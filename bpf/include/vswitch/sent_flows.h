/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: detection of elephant flows on the host (models `achelous` and `gwzone`, docs/decisions/models.md). Counts
 * packets to the gateways by flow, as flow_accounting.h does on the gateway, and posts an event to the
 * agent for each elephant. The agent then requests the path from a gateway.
 *
 * Contract: called once for each unicast IP packet of a VM that was sent to the group, and for no other: not
 * for ARP, ND and strays. The packet is neither read nor changed. If the agent has not set the policy of the flow table, this costs a lookup
 * and reading the time. Uses the maps of flow_queue.h.
 */
#ifndef SLUICE_SENT_FLOWS_H
#define SLUICE_SENT_FLOWS_H

/* Room for 65,536 flows: more than the instances of one host start within a period. */
#define FLOW_CELLS (1 << 14)
#include "common/flow_samplers.h"
#include "common/frame_flow.h"
#include "common/lookup.h"

/* Counts a packet of `bytes` that a VM of the VRF in `vrf_cell` has sent. */
__attribute__((noinline)) int count_sent(struct frame *frame, __u32 vrf_cell, __u32 bytes)
{
	const struct vrf *vrf = cell_at(vrf_cell & CELL_INDEX_MASK);
	const struct flow_table *table = flow_cell_at(0);
	__u64 now_ns = bpf_ktime_get_coarse_ns();
	struct flow_sampler *sampler = flow_sampler();
	struct waiting_flow *waiting;
	struct flow_queue *queue;
	__u32 vni;

	if (!frame || !sampler || !vrf)
		return 0;
	queue = flow_queue(table, sampler, now_ns);
	if (!queue)
		return 0;
	vni = READ_ONCE(vrf->vni);
	waiting = flow_next(queue);
	describe_flow(&waiting->event, frame, vni);
	/* The sender is this node. */
	waiting->event.outer_source[0] = waiting->event.outer_source[1] = 0;
	waiting->event.outer_ipv6 = 0;
	waiting->hash = frame_flow_hash(table, frame, vni);
	waiting->own = vrf_sent_elephant_bytes(vrf);
	flow_enqueue(queue, bytes, now_ns);
	return 0;
}

#endif
