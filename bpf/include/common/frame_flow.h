/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The flow of a tenant's frame: its VNI, addresses, protocol and ports. Ports are 0 in fragments and in
 * protocols without ports.
 *
 * Contract: the frame was parsed; `vni` is the VNI that it was received with. Uses no map itself, and
 * includes flow_queue.h for the gateway and the vSwitch.
 */
#ifndef SLUICE_FRAME_FLOW_H
#define SLUICE_FRAME_FLOW_H

#include "common/flow_queue.h"
#include "common/frame.h"

/* The hash of the frame's flow. */
static __always_inline __u64 frame_flow_hash(const struct flow_table *table, const struct frame *frame,
					     __u32 vni)
{
	struct flow_key key = {
		.source = { frame->source[0], frame->source[1] },
		.destination = { frame->destination[0], frame->destination[1] },
		.vni_protocol = vni << 8 | frame->protocol,
	};

	if (frame_has_ports(frame))
		key.ports = frame->transport;
	if (frame->flags & FRAME_IPV6)
		return flow_hash_ipv6(table, &key);
	return flow_hash_ipv4(table, key.source[1], key.destination[1], key.vni_protocol, key.ports);
}

/* Fills in the fields of an event that follow from the frame: all but the time and the node that sent it. */
static __always_inline void describe_flow(struct flow_event *event, const struct frame *frame, __u32 vni)
{
	event->source[0] = frame->source[0];
	event->source[1] = frame->source[1];
	event->destination[0] = frame->destination[0];
	event->destination[1] = frame->destination[1];
	event->vni = vni;
	event->ipv6 = !!(frame->flags & FRAME_IPV6);
	event->reserved[0] = event->reserved[1] = 0;
}

#endif
