/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch, detection on the host (GWZone, docs/decisions/models.md): counts what
 * goes to the gateways by flow, as the gateway does in offload.h, and tells the
 * agent of elephants, which then asks a gateway for the path.
 *
 * Contract: for packets that were sent to the group, and for no others. Unless the
 * agent has set the table's policy this costs a lookup.
 */
#ifndef SLUICE_SENT_FLOWS_H
#define SLUICE_SENT_FLOWS_H

/* 65,536 flows: those that one host's instances begin within a period. */
#define FLOW_CELLS (1 << 14)
#include "flow_maps.h"

/* Tells the agent. */
__attribute__((noinline)) int post_sent(struct frame *frame, __u32 vni)
{
	struct flow_event *event;

	if (!frame)
		return 0;
	event = bpf_ringbuf_reserve(&flow_events, sizeof(*event), 0);
	if (!event) {
		count_lost();
		return 0;
	}
	event->source[0] = frame->source[0];
	event->source[1] = frame->source[1];
	event->destination[0] = frame->destination[0];
	event->destination[1] = frame->destination[1];
	/* It is this node. */
	event->outer_source[0] = event->outer_source[1] = 0;
	event->time_ns = bpf_ktime_get_ns();
	event->vni = vni;
	event->ipv6 = !!(frame->flags & FRAME_IPV6);
	event->outer_ipv6 = 0;
	event->reserved[0] = event->reserved[1] = 0;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Counts a packet of `bytes` that was sent. */
__attribute__((noinline)) int count_sent(struct frame *frame, __u32 vni, __u32 bytes)
{
	const struct flow_table *table = flow_cell_at(0);
	struct flow_bucket *bucket;
	__u64 flow;

	if (!frame || !table || !READ_ONCE(table->policy))
		return 0;
	flow = flow_of(table, frame, vni);
	bucket = flow_cell_at(flow_cell(table, flow));
	if (bucket && flow_account(table, bucket, flow, bytes, 0, bpf_ktime_get_coarse_ns()))
		post_sent(frame, vni);
	return 0;
}

#endif
