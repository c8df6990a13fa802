/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch, detection on the host (GWZone, docs/decisions/models.md): counts what
 * goes to the gateways by flow, as the gateway does in offload.h, and tells the
 * agent of elephants, which then asks a gateway for the path.
 *
 * Contract: for packets that were sent to the group, and for no others. Unless the
 * agent has set the table's policy this costs a lookup and the time.
 */
#ifndef SLUICE_SENT_FLOWS_H
#define SLUICE_SENT_FLOWS_H

/* 65,536 flows: those that one host's instances begin within a period. */
#define FLOW_CELLS (1 << 14)
#include "common/frame_flow.h"

/* Counts a packet of `bytes` that was sent. */
__attribute__((noinline)) int count_sent(struct frame *frame, __u32 vni, __u32 bytes)
{
	const struct flow_table *table = flow_cell_at(0);
	__u64 now_ns = bpf_ktime_get_coarse_ns();
	struct flow_queue *queue = flow_queue(table, now_ns);
	struct waiting_flow *waiting;

	if (!frame || !queue)
		return 0;
	waiting = flow_next(queue);
	name_flow(&waiting->event, frame, vni);
	/* It is this node. */
	waiting->event.outer_source[0] = waiting->event.outer_source[1] = 0;
	waiting->event.outer_ipv6 = 0;
	waiting->hash = flow_of(table, frame, vni);
	waiting->own = 0;
	flow_enqueue(queue, bytes, now_ns);
	return 0;
}

#endif
