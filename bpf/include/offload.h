/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "flow accounting" (Zeta sections IV-C and IV-D): counts what is
 * sent on by flow, and tells the agent of elephants, whose senders it then tells
 * a direct path.
 *
 * Contract: identify_flow() after route(), for every packet that has a way;
 * count_flow() for those that were sent on, after forward(), and for no others.
 * A flow's bytes are those of the tenant's frames. The packet itself is neither
 * read nor changed. That an event is lost costs a period: the next one brings
 * another.
 */
#ifndef SLUICE_OFFLOAD_H
#define SLUICE_OFFLOAD_H

#include "frame_flow.h"
#include "output.h"

/*
 * The flow's hash and the time. The hash is the underlay's too, for its paths:
 * one is enough, and hosts spread flows over gateways by frame_hash(), of which
 * a gateway sees only a part of all values.
 */
static __always_inline void identify_flow(struct packet *packet)
{
	const struct flow_table *table = flow_cell_at(0);

	packet->now_ns = bpf_ktime_get_coarse_ns();
	if (!table || !READ_ONCE(table->policy)) {
		packet->flow = (__u64)frame_hash(&packet->frame) << 32;
		return;
	}
	packet->flow = flow_of(table, &packet->frame, packet->vni);
}

/* Counts a packet that was sent on. */
static __always_inline void count_flow(const struct packet *packet)
{
	struct flow_queue *queue = flow_queue(flow_cell_at(0), packet->now_ns);
	struct waiting_flow *waiting;

	if (!queue)
		return;
	waiting = flow_next(queue);
	name_flow(&waiting->event, &packet->frame, packet->vni);
	waiting->event.outer_source[0] = packet->outer_source[0];
	waiting->event.outer_source[1] = packet->outer_source[1];
	waiting->event.outer_ipv6 = packet->ipv6;
	waiting->hash = packet->flow;
	waiting->own = packet->elephant_bytes;
	flow_enqueue(queue, packet->frame_bytes, packet->now_ns);
}

#endif
