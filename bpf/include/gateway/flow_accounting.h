/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "flow accounting" (Zeta sections IV-C and IV-D): counts forwarded packets by flow, and
 * posts an event to the agent for each elephant flow, or for each flow while the gateway is overloaded.
 * The agent then notifies the sender of a direct path.
 *
 * Contract: count_flow() is called once for each packet that forward_to_host() (forward.h) sent, and
 * for no other. The bytes of a flow are those of the tenant's frames. The packet is neither read nor
 * changed. If an event is lost, the flow's next period brings another. Uses the maps of flow_queue.h.
 */
#ifndef SLUICE_FLOW_ACCOUNTING_H
#define SLUICE_FLOW_ACCOUNTING_H

#include "common/frame_flow.h"
#include "gateway/packet.h"

/* Counts a packet that is in no gap, and begins a new tick if it is the first of one. */
__attribute__((noinline)) int count_unskipped(struct packet *packet)
{
	const struct flow_table *table = flow_cell_at(0);
	struct waiting_flow *waiting;
	struct flow_queue *queue;

	if (!packet)
		return 0;
	queue = flow_queue(table, &packet->sampler, packet->now_ns);
	if (!queue)
		return 0;
	waiting = flow_next(queue);
	describe_flow(&waiting->event, &packet->frame, packet->vni);
	waiting->event.outer_source[0] = packet->outer_source[0];
	waiting->event.outer_source[1] = packet->outer_source[1];
	waiting->event.outer_ipv6 = packet->ipv6;
	waiting->hash = frame_flow_hash(table, &packet->frame, packet->vni);
	waiting->own = packet->elephant_bytes;
	flow_enqueue(queue, packet->frame_bytes, packet->now_ns);
	return 0;
}

/* Counts a packet that was forwarded. */
static __always_inline void count_flow(struct packet *packet)
{
	if (!flow_is_skipped(&packet->sampler, packet->now_ns))
		count_unskipped(packet);
}

#endif
