/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: elastic credit (Achelous section 5.1, docs/decisions/credit.md). What ports use is counted. Those whose instance has a
 * network class have limits for packets per second, in each direction, and for the time that the host's processors spend on them;
 * others while the host is contended. The agent changes the limits by what the port has used before. (The limit for bytes that the
 * VM sends is in qos.h; that of what it gets is here if the queueing discipline of its interface does not have it.)
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
/* Units of a meter that a byte takes at 1 Mbit/s. */
#define METER_UNITS_PER_BYTE (8000ull << METER_UNIT_SHIFT)

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

/* NULL: the port is neither counted nor limited. */
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

/*
 * Takes what a packet costs from a bucket of bytes. A packet that costs more than the bucket holds passes when the
 * bucket is full, unless the bucket could not tell its debt from a clock that has wrapped (METER_SKEW). One of high priority passes as long as there is anything in the bucket, and normal packets leave a
 * quarter of it: so they do not displace those of high priority that are sent below the rate.
 */
static __always_inline int within_rate(__u64 *arrival, __u32 rate_mbps, __u32 bytes, int high)
{
	__u64 cost = bytes * METER_UNITS_PER_BYTE / rate_mbps;
	__u64 burst = QOS_BURST_BYTES * METER_UNITS_PER_BYTE / rate_mbps, after;
	__u64 now = bpf_ktime_get_ns() << METER_UNIT_SHIFT;

	if (burst < QOS_BURST_NS << METER_UNIT_SHIFT)
		burst = QOS_BURST_NS << METER_UNIT_SHIFT;
	if (cost > burst / 2 + METER_SKEW)
		return 0;
	if (high)
		burst += cost;
	else
		burst -= burst / 4;
	return meter_take_cost(arrival, now, cost, burst > cost ? burst : cost, &after);
}

/* The time, if something is limited: without limits it is not needed, and it is the largest part of what counting costs. */
static __always_inline __u64 time_if(__u64 limits)
{
	return limits ? bpf_ktime_get_ns() << METER_UNIT_SHIFT : 0;
}

/* Takes `ns` from the bucket of the processors. 0: it has too little. */
static __always_inline int take_cpu(struct port_credit *credit, __u64 ns)
{
	__u64 limit = READ_ONCE(credit->limit[CREDIT_CPU]), now = time_if(limit), after;

	if (limit && !meter_take_cost(&credit->cpu_arrival, now, (ns << METER_UNIT_SHIFT) * 1000 / limit,
				      CREDIT_BURST, &after))
		return 0;
	ADD(&credit->cpu_ns, ns);
	ADD(&credit->frames, 1);
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

	if (!credit || take_cpu(credit, packet_cost(COST_SENT, bytes)))
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
	now = time_if(limit);
	/* A bucket that is full has an arrival time in the past. credit_enter() has brought it up to date a moment ago. */
	if (limit && (__s64)(READ_ONCE(credit->cpu_arrival) - now) > -(__s64)CREDIT_BURST)
		ADD(&credit->cpu_arrival, (judged << METER_UNIT_SHIFT) * 1000 / limit);
	return 0;
}

/*
 * Whether a port may get a frame that is or will be cut into so many packets, of `bytes` together. `high`: it has high priority.
 * DROP_none, or why not.
 */
__attribute__((noinline)) enum drop_reason credit_receive(__u32 scope, __u32 packets, __u32 bytes,
							  __u32 judged, __u32 high)
{
	struct port_credit *credit = port_credit_at(scope);
	__u64 rate_mbps = 0, now;

	if (!credit)
		return DROP_none;
	now = time_if(READ_ONCE(credit->limit[CREDIT_RECEIVED_KPPS]));
	if (!has_packets(credit, CREDIT_RECEIVED, packets, now)) {
		ADD(&credit->dropped_packets[CREDIT_RECEIVED], 1);
		return DROP_packet_rate;
	}
	if (READ_ONCE(credit->active) == CREDIT_POLICED)
		rate_mbps = READ_ONCE(credit->limit[CREDIT_RECEIVED_MBPS]);
	if (rate_mbps && !within_rate(&credit->received_arrival, rate_mbps, bytes, high)) {
		ADD(&credit->dropped_received, 1);
		return DROP_rate_limit;
	}
	if (!take_cpu(credit, packet_cost(judged ? COST_RECEIVED_JUDGED : COST_RECEIVED, bytes))) {
		ADD(&credit->dropped_cpu[CREDIT_RECEIVED], 1);
		return DROP_cpu_limit;
	}
	take_packets(credit, CREDIT_RECEIVED, packets, bytes, now);
	return DROP_none;
}

#endif
