/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "flow accounting" (Zeta sections IV-C and IV-D): counts what is
 * sent on by flow, and tells the agent of elephants, whose senders it then tells
 * a direct path.
 *
 * Contract: identify_flow() after route(), for every packet that has a way;
 * count_flow() for those that were sent on, after forward(), and for no others.
 * A flow is the VNI that it came with, the packet's own addresses, protocol and
 * ports (0 in fragments and where there are none); its bytes are those of the
 * tenant's frame. The packet itself is neither read nor changed. That an event
 * is lost costs a period: the next one brings another.
 */
#ifndef SLUICE_OFFLOAD_H
#define SLUICE_OFFLOAD_H

#include "flow_maps.h"
#include "output.h"

/*
 * The flow's hash and the time. The hash is the underlay's too, for its paths:
 * one is enough, and hosts spread flows over gateways by frame_hash(), of which
 * a gateway sees only a part of all values.
 */
static __always_inline void identify_flow(struct packet *packet)
{
	const struct flow_table *table = flow_cell_at(0);
	const struct flow_bucket *bucket;

	packet->now_ns = bpf_ktime_get_coarse_ns();
	if (!table || !READ_ONCE(table->policy)) {
		packet->flow = (__u64)frame_hash(&packet->frame) << 32;
		return;
	}
	packet->flow = flow_of(table, &packet->frame, packet->vni);
	/* Asked for now: memory answers while the packet is rewritten. */
	bucket = flow_cell_at(flow_cell(table, packet->flow));
	if (bucket)
		READ_ONCE(bucket->entry[0].owner);
}

/* Tells the agent. Rare, so a function of its own. */
__attribute__((noinline)) int post_flow(struct packet *packet)
{
	struct flow_event *event;

	if (!packet)
		return 0;
	event = bpf_ringbuf_reserve(&flow_events, sizeof(*event), 0);
	if (!event) {
		count_lost();
		return 0;
	}
	event->source[0] = packet->frame.source[0];
	event->source[1] = packet->frame.source[1];
	event->destination[0] = packet->frame.destination[0];
	event->destination[1] = packet->frame.destination[1];
	event->outer_source[0] = packet->outer_source[0];
	event->outer_source[1] = packet->outer_source[1];
	event->time_ns = bpf_ktime_get_ns();
	event->vni = packet->vni;
	event->ipv6 = !!(packet->frame.flags & FRAME_IPV6);
	event->outer_ipv6 = packet->ipv6;
	event->reserved[0] = event->reserved[1] = 0;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Counts a packet that was sent on. */
__attribute__((noinline)) int count_flow(struct packet *packet)
{
	const struct flow_table *table = flow_cell_at(0);
	struct flow_bucket *bucket;

	if (!packet || !table || !READ_ONCE(table->policy))
		return 0;
	bucket = flow_cell_at(flow_cell(table, packet->flow));
	if (bucket && flow_account(table, bucket, packet->flow, packet->frame_bytes,
				   packet->elephant_bytes, packet->now_ns))
		post_flow(packet);
	return 0;
}

#endif
