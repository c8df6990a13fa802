/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: elastic credit (Achelous section 5.1, docs/decisions/credit.md). Ports whose instance has a network class have limits for
 * packets per second, in each direction, and for the time that the host's processors spend on them. The agent changes the limits
 * by what the port has used before. (The limits for bytes: of what the VM sends in qos.h, of what it gets by the queueing
 * discipline of its interface.)
 *
 * What a packet costs is an estimate by its class and length, which the agent derives from packets that are timed: one in COST_SAMPLE.
 *
 * Contract: `scope` is that of a port, and its frame is at the start of the packet. A packet takes nothing from the bucket that refuses it,
 * nor from those that are asked later. Uses the maps `port_credits`, `packet_costs` and `packet_times`.
 */
#ifndef SLUICE_CREDIT_H
#define SLUICE_CREDIT_H

#include "vswitch/port.h"

#include "common/meters.h"
#include "layout/credit_layout.h"
#include "layout/qos_layout.h"

#define CREDIT_BURST (QOS_BURST_NS << METER_UNIT_SHIFT)
#define CREDIT_NS_PER_MS 1000000ull

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORT_METERS);
	__type(key, __u32);
	__type(value, struct port_credit);
} port_credits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_costs);
} packet_costs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_times);
} packet_times SEC(".maps");

/* NULL: the port has no class. */
static __always_inline struct port_credit *port_credit_at(__u32 scope)
{
	struct port_credit *credit = bpf_map_lookup_elem(&port_credits, &scope);

	return credit && READ_ONCE(credit->active) ? credit : NULL;
}

/* Begins to time the packet, if it is its turn. */
static __always_inline void time_packet(struct frame *frame)
{
	struct packet_times *times;
	__u32 zero = 0;

	if (++frame->seen & (COST_SAMPLE - 1))
		return;
	times = bpf_map_lookup_elem(&packet_times, &zero);
	if (times)
		times->started_ns = bpf_ktime_get_ns();
}

/* Ends what time_packet() has begun. `class` is COST_SENT or COST_RECEIVED. */
static __always_inline void packet_timed(const struct frame *frame, __u32 class)
{
	struct packet_times *times;
	__u32 zero = 0;

	if (frame->seen & (COST_SAMPLE - 1))
		return;
	times = bpf_map_lookup_elem(&packet_times, &zero);
	if (!times)
		return;
	class = (class + !!frame->judged) & (COST_CLASSES - 1);
	times->ns[class] += bpf_ktime_get_ns() - times->started_ns;
	times->packets[class] += 1;
}

/* What a packet costs, in ns. */
static __always_inline __u64 packet_cost(__u32 class, __u32 bytes)
{
	struct packet_costs *costs;
	__u32 zero = 0;

	costs = bpf_map_lookup_elem(&packet_costs, &zero);
	if (!costs)
		return 0;
	return READ_ONCE(costs->packet_ns[class]) + ((__u64)bytes * READ_ONCE(costs->kib_ns) >> 10);
}

/* Takes `ns` from the bucket of the processors. 0: it has too little. */
static __always_inline int take_cpu(struct port_credit *credit, __u64 ns, __u64 now)
{
	__u64 limit = READ_ONCE(credit->limit[CREDIT_CPU]), after;

	if (limit && !meter_take_cost(&credit->cpu_arrival, now, (ns << METER_UNIT_SHIFT) * 1000 / limit,
				      CREDIT_BURST, &after))
		return 0;
	ADD(&credit->cpu_ns, ns);
	return 1;
}

static __always_inline __u64 packets_cost(__u64 limit_kpps, __u32 packets)
{
	return (packets * CREDIT_NS_PER_MS << METER_UNIT_SHIFT) / limit_kpps;
}

/* Whether the direction's packet rate has room for these packets. A packet that is cut into more than a bucket has passes when it is full. */
static __always_inline int has_packets(struct port_credit *credit, __u32 direction, __u32 packets, __u64 now)
{
	__u64 limit = READ_ONCE(credit->limit[CREDIT_SENT_KPPS + direction]), cost, after;

	if (!limit)
		return 1;
	cost = packets_cost(limit, packets);
	return meter_has(READ_ONCE(credit->packet_arrival[direction]), now, cost,
			 cost > CREDIT_BURST ? cost : CREDIT_BURST, &after);
}

/* Takes packets for which has_packets() has seen room, and counts them. */
static __always_inline void take_packets(struct port_credit *credit, __u32 direction, __u32 packets,
					 __u32 bytes, __u64 now)
{
	__u64 limit = READ_ONCE(credit->limit[CREDIT_SENT_KPPS + direction]), cost, after;

	if (limit) {
		cost = packets_cost(limit, packets);
		meter_take_cost(&credit->packet_arrival[direction], now, cost,
				cost > CREDIT_BURST ? cost : CREDIT_BURST, &after);
	}
	ADD(&credit->bytes[direction], bytes);
	ADD(&credit->packets[direction], packets);
}

/* Whether the host may spend time on a frame of `bytes` from the VM of this port, before anything is done with it. DROP_none, or why not. */
__attribute__((noinline)) enum drop_reason credit_enter(__u32 scope, __u32 bytes)
{
	struct port_credit *credit = port_credit_at(scope);

	if (!credit ||
	    take_cpu(credit, packet_cost(COST_SENT, bytes), bpf_ktime_get_ns() << METER_UNIT_SHIFT))
		return DROP_none;
	ADD(&credit->dropped_cpu[CREDIT_SENT], 1);
	return DROP_cpu_limit;
}

/* Charges what a packet of the VM that a policy was asked about has cost more. It is not asked whether there is so much: the time is spent. */
__attribute__((noinline)) int credit_judged(__u32 scope)
{
	struct port_credit *credit = port_credit_at(scope);
	__u64 judged = packet_cost(COST_SENT_JUDGED, 0), sent = packet_cost(COST_SENT, 0), limit, now;

	if (!credit || judged <= sent)
		return 0;
	judged -= sent;
	ADD(&credit->cpu_ns, judged);
	limit = READ_ONCE(credit->limit[CREDIT_CPU]);
	now = bpf_ktime_get_ns() << METER_UNIT_SHIFT;
	/* A bucket that is full has an arrival time in the past. credit_enter() has brought it up to date a moment ago. */
	if (limit && (__s64)(READ_ONCE(credit->cpu_arrival) - now) > -(__s64)CREDIT_BURST)
		ADD(&credit->cpu_arrival, (judged << METER_UNIT_SHIFT) * 1000 / limit);
	return 0;
}

/* Whether a port may get a frame that is or will be cut into so many packets, of `bytes` together. DROP_none, or why not. */
__attribute__((noinline)) enum drop_reason credit_receive(__u32 scope, __u32 packets, __u32 bytes,
							  __u32 judged)
{
	struct port_credit *credit = port_credit_at(scope);
	__u64 now;

	if (!credit)
		return DROP_none;
	now = bpf_ktime_get_ns() << METER_UNIT_SHIFT;
	if (!has_packets(credit, CREDIT_RECEIVED, packets, now)) {
		ADD(&credit->dropped_packets[CREDIT_RECEIVED], 1);
		return DROP_packet_rate;
	}
	if (!take_cpu(credit, packet_cost(judged ? COST_RECEIVED_JUDGED : COST_RECEIVED, bytes), now)) {
		ADD(&credit->dropped_cpu[CREDIT_RECEIVED], 1);
		return DROP_cpu_limit;
	}
	take_packets(credit, CREDIT_RECEIVED, packets, bytes, now);
	return DROP_none;
}

#endif
