/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: claims, announcements of a VM that it has now an address that it has in turn with other VMs: ARP from the
 * address, a probe or an advertisement of neighbor discovery about it. The agent tells the controller, which decides. Of a
 * holder's ARP, only announcements count: it repeats them when it has heard another VM say that it has the address.
 *
 * Contract: the address is a source of the port of kind SOURCE_PAIR or SOURCE_HELD. An event tells the agent, unless the port has
 * posted so many that it could take the space of others. The frame is absorbed. Uses the maps `claims`, `claim_shares`,
 * `events_lost`, `events_refused` and `cells`.
 */
#ifndef SLUICE_CLAIMS_H
#define SLUICE_CLAIMS_H

#include "common/event_share.h"
#include "common/events_lost.h"
#include "layout/events.h"
#include "vswitch/port.h"

/*
 * Claims of a port in a period of 1.07 s: a VM that takes over many addresses at once announces each of them several
 * times. The ring has room for 1638 claims, so that 25 such ports do not fill it before the agent is awake. Ports whose
 * indices have the same low bits share.
 */
#define CLAIMS_PER_PERIOD 64
#define CLAIM_PERIOD_SHIFT 30
#define CLAIM_SHARES (1 << 12)

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, CLAIMS_BYTES);
} claims SEC(".maps");

/* Bits 0..7: claims posted in the period that is in bits 8..63. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLAIM_SHARES);
	__type(key, __u32);
	__type(value, __u64);
} claim_shares SEC(".maps");

/* Takes one claim of the port's share. Two processors that do it at once may take one together. */
static __always_inline int take_claim_share(__u32 ifindex)
{
	__u32 slot = ifindex & (CLAIM_SHARES - 1);
	__u64 *share = bpf_map_lookup_elem(&claim_shares, &slot);
	__u64 period = bpf_ktime_get_coarse_ns() >> CLAIM_PERIOD_SHIFT << 8, old;

	if (!share)
		return refuse_event();
	old = READ_ONCE(*share);
	if ((old & ~0xffull) != period)
		old = period;
	if ((old & 0xff) >= CLAIMS_PER_PERIOD)
		return refuse_event();
	WRITE_ONCE(*share, old + 1);
	return 1;
}

__attribute__((noinline)) int claim_address(__u32 port_cell, __u32 ipv6, __u64 high, __u64 low)
{
	const struct port *port = vm_port_at(port_cell);
	struct claim_event *event;

	if (!port)
		return port_drop(0, DROP_stale_index);
	if (!take_claim_share(port->ifindex))
		return VERDICT_ABSORBED;
	port = vm_port_service_at(port_cell);
	if (!port)
		return VERDICT_ABSORBED;
	event = bpf_ringbuf_reserve(&claims, sizeof(*event), 0);
	if (!event) {
		count_lost();
		return VERDICT_ABSORBED;
	}
	event->address[0] = high;
	event->address[1] = low;
	event->instance = port->instance;
	event->ipv6 = !!ipv6;
	event->at_ms = bpf_ktime_get_ns() / 1000000;
	bpf_ringbuf_submit(event, 0);
	return VERDICT_ABSORBED;
}

#endif
