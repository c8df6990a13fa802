/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: identities of VMs on other hosts, for egress rules that name a group. The agent asks gateways for those that
 * packets need (crates/vswitch/src/remote_identities.rs), so a host has only the identities of VMs that its own send to.
 *
 * Contract: asked only for a packet without a session, to a VM that has no port here. find_remote_identity() notes that the
 * identity is used. post_unknown_receiver() tells the agent that a packet was denied because its receiver's identity is not
 * known, and returns the reason to drop. Uses the maps `remote_identities`, `unknown_receivers`, `unknown_receiver_budget`,
 * `events_lost` and those of event_share.h.
 */
#ifndef SLUICE_REMOTE_IDENTITIES_H
#define SLUICE_REMOTE_IDENTITIES_H

#include "vswitch/port.h"

#include "common/event_share.h"
#include "common/events_lost.h"
#include "common/token_bucket.h"
#include "layout/events.h"
#include "layout/identity_layout.h"

/* Limit of events for each CPU. Packets beyond it are dropped like the others, without an event. */
#define UNKNOWN_RECEIVERS_PER_SECOND 1000
#define UNKNOWN_RECEIVERS \
	((struct event_budget){ NS_PER_SECOND / UNKNOWN_RECEIVERS_PER_SECOND, .burst = 100, .per_share = 16 })

/* No identity: the map does not have the address. */
#define REMOTE_IDENTITY_UNKNOWN 0x10000u

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REMOTE_IDENTITIES_MAX);
	__type(key, struct remote_identity_key);
	__type(value, struct remote_identity);
} remote_identities SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, UNKNOWN_RECEIVERS_BYTES);
} unknown_receivers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct token_bucket);
} unknown_receiver_budget SEC(".maps");

/*
 * The identity of the VM of the VNI to which the frame is sent, or REMOTE_IDENTITY_UNKNOWN. `now` is in ticks of the session
 * table. `key` is memory for the search.
 */
static __always_inline __u32 find_remote_identity(const struct frame *frame, __u32 vni, __u32 now,
						  struct remote_identity_key *key)
{
	struct remote_identity *found;

	key->vni = vni;
	key->ipv6 = !!(frame->flags & FRAME_IPV6);
	key->address[0] = frame->destination[0];
	key->address[1] = frame->destination[1];
	found = bpf_map_lookup_elem(&remote_identities, key);
	if (!found)
		return REMOTE_IDENTITY_UNKNOWN;
	if (READ_ONCE(found->used) != now)
		WRITE_ONCE(found->used, now);
	return (__u16)READ_ONCE(found->identity);
}

/* Posts an event about the receiver of a frame from the port in this cell, if the budget allows. */
__attribute__((noinline)) __u32 post_unknown_receiver(struct frame *frame, __u32 port_cell)
{
	const struct port *port = vm_port_at(port_cell);
	struct unknown_receiver_event *event = NULL;
	__u32 zero = 0;

	if (!frame || !port)
		return DROP_stale_index;
	if (take_event(bpf_map_lookup_elem(&unknown_receiver_budget, &zero), UNKNOWN_RECEIVERS, port->vni))
		event = bpf_ringbuf_reserve(&unknown_receivers, sizeof(*event), 0);
	if (!event) {
		count_lost();
		return DROP_receiver_unknown;
	}
	event->destination[0] = frame->destination[0];
	event->destination[1] = frame->destination[1];
	event->vni = port->vni;
	event->ipv6 = !!(frame->flags & FRAME_IPV6);
	event->reserved[0] = event->reserved[1] = event->reserved[2] = 0;
	bpf_ringbuf_submit(event, 0);
	return DROP_receiver_unknown;
}

#endif
