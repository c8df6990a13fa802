/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "flow accounting" (Zeta sections IV-C and IV-D): counts what is
 * sent on by flow, and tells the agent of elephants, whose senders it then tells
 * a direct path.
 *
 * Contract: count_flow() for packets that were sent on, after forward_to_host(), and for
 * no others. A flow's bytes are those of the tenant's frames. The packet itself
 * is neither read nor changed. That an event is lost costs a period: the next one
 * brings another.
 */
#ifndef SLUICE_FLOW_ACCOUNTING_H
#define SLUICE_FLOW_ACCOUNTING_H

#include "common/frame_flow.h"
#include "gateway/packet.h"

/* Counts a packet that was sent on. */
static __always_inline void count_flow(const struct packet *packet)
{
	const struct flow_table *table = flow_cell_at(0);
	struct flow_queue *queue = flow_queue(table, packet->now_ns);
	struct waiting_flow *waiting;

	if (!queue)
		return;
	waiting = flow_next(queue);
	name_flow(&waiting->event, &packet->frame, packet->vni);
	waiting->event.outer_source[0] = packet->outer_source[0];
	waiting->event.outer_source[1] = packet->outer_source[1];
	waiting->event.outer_ipv6 = packet->ipv6;
	waiting->hash = flow_of(table, &packet->frame, packet->vni);
	waiting->own = packet->elephant_bytes;
	flow_enqueue(queue, packet->frame_bytes, packet->now_ns);
}

#endif
