/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Packets that were sent on are counted together. A flow's bucket is in no cache
 * where flows are many, and a swap waits for memory before anything else goes
 * on; but memory answers for many buckets at once. So while packets are dense, a
 * processor keeps what is to be counted of up to FLOWS_WAITING of them, asks for
 * all their buckets, and then counts them.
 *
 * And while packets are dense one in 8 or 16 is counted, for as many, at gaps
 * that no sender can know: what a flow is counted for is right on average, and a
 * flow that sends less than an elephant is taken for one no more often than its
 * part of an elephant's bytes. The denser they are the fewer. Unless all flows
 * are to be told of: then each packet may be a flow's first.
 *
 * Dense is by the last tick of the coarse clock in which packets came: at least
 * one in FLOW_DENSE_NS on this processor. Otherwise nothing waits, and the first
 * packet of each tick counts all that does. Where such packets end, the last ones
 * wait for the next, and are forgotten if that comes after FLOW_LATE_NS: they
 * would be counted in a period that they are not of.
 *
 * A queue is one processor's, which runs one packet program at a time. It is no
 * successor's: nothing is lost with it but those last packets.
 */
#ifndef SLUICE_FLOW_QUEUE_H
#define SLUICE_FLOW_QUEUE_H

#include "common/flow_maps.h"

#define FLOWS_WAITING 32
#define FLOW_DENSE_NS 2048
#define FLOW_LATE_NS 1000000000ull

/* What is to be counted of a packet, and told if it crosses. */
struct waiting_flow {
	struct flow_event event; /* its time is still to come */
	__u64 hash;
	__u32 bytes;
	__u32 own; /* as in flow_account() */
};

struct flow_queue {
	__u64 tick_ns; /* coarse time of the last packet */
	__u32 packets; /* that came at that time */
	__u32 room;    /* packets that are counted together, at most */
	__u32 weight;  /* what one is counted for: 1, 8 or 16 */
	__u32 gap;     /* packets to pass over before the next that is counted */
	__u64 waiting;
	struct waiting_flow flows[FLOWS_WAITING];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_queue);
} flow_queues SEC(".maps");

/* Where the next packet waits: to be filled in, but for its bytes, before flow_enqueue(). */
static __always_inline struct waiting_flow *flow_next(struct flow_queue *queue)
{
	return &queue->flows[queue->waiting & (FLOWS_WAITING - 1)];
}

/* Counts one, and tells the agent if it crosses. */
__attribute__((noinline)) int count_waiting(struct waiting_flow *waiting, __u64 now_ns)
{
	const struct flow_table *table = flow_cell_at(0);
	struct flow_bucket *bucket;

	if (!waiting || !table)
		return 0;
	bucket = flow_cell_at(flow_cell(table, waiting->hash));
	if (!bucket || !flow_account(table, bucket, waiting->hash, waiting->bytes, waiting->own, now_ns))
		return 0;
	waiting->event.time_ns = bpf_ktime_get_ns();
	if (bpf_ringbuf_output(&flow_events, &waiting->event, sizeof(waiting->event), 0))
		count_lost();
	return 0;
}

/* Counts all that wait. */
__attribute__((noinline)) int count_all_waiting(struct flow_queue *queue, __u64 now_ns)
{
	const struct flow_table *table = flow_cell_at(0);

	if (!queue || !table)
		return 0;
#pragma nounroll
	for (__u32 i = 0; i < FLOWS_WAITING && i < queue->waiting; i++) {
		const struct flow_bucket *bucket =
			flow_cell_at(flow_cell(table, queue->flows[i].hash));

		/* Asked for, and not waited for. */
		if (bucket)
			READ_ONCE(bucket->entry[0].owner);
	}
#pragma nounroll
	for (__u32 i = 0; i < FLOWS_WAITING && i < queue->waiting; i++)
		count_waiting(&queue->flows[i], now_ns);
	queue->waiting = 0;
	return 0;
}

/* What a dense packet is counted for: one comes in FLOW_DENSE_NS, or in half of that and less. */
static __always_inline __u32 flow_weight(__u64 dense_ns, __u64 passed_ns)
{
	return dense_ns < 2 * passed_ns ? 8 : 16;
}

/* The first packet of a tick: all that waits is counted, and the tick before says how it goes on. */
static __always_inline void flow_tick(struct flow_queue *queue, __u64 policy, __u64 now_ns)
{
	__u64 passed_ns = now_ns - queue->tick_ns;
	__u64 dense_ns = queue->packets * (__u64)FLOW_DENSE_NS;
	int dense = dense_ns >= passed_ns;

	if (passed_ns > FLOW_LATE_NS)
		queue->waiting = 0;
	if (queue->waiting)
		count_all_waiting(queue, now_ns);
	queue->room = dense ? FLOWS_WAITING : 1;
	queue->weight = dense && !(policy & FLOW_EVERY) ? flow_weight(dense_ns, passed_ns) : 1;
	queue->tick_ns = now_ns;
	queue->packets = 0;
}

/* How many packets to pass over before one that is counted for `weight`: one less on average, at most twice that. */
static __always_inline __u32 flow_gap(__u32 weight)
{
	__u32 random = bpf_get_prandom_u32();

	return (random & (weight - 1)) + (random >> 16 & (weight - 1));
}

/*
 * This processor's queue; NULL if the packet is not to be counted. Once for each that was sent on.
 * `now_ns`: CLOCK_MONOTONIC, coarse.
 */
static __always_inline struct flow_queue *flow_queue(const struct flow_table *table, __u64 now_ns)
{
	struct flow_queue *queue;
	__u64 policy;
	__u32 zero = 0;

	policy = table ? READ_ONCE(table->policy) : 0;
	if (!policy)
		return NULL;
	queue = bpf_map_lookup_elem(&flow_queues, &zero);
	if (!queue)
		return NULL;
	if (now_ns != queue->tick_ns)
		flow_tick(queue, policy, now_ns);
	queue->packets += 1;
	if (queue->weight > 1) {
		if (queue->gap) {
			queue->gap -= 1;
			return NULL;
		}
		queue->gap = flow_gap(queue->weight);
	}
	return queue;
}

/* The packet of `bytes` that was filled in waits, or is counted. `now_ns`: as for flow_queue(). */
static __always_inline void flow_enqueue(struct flow_queue *queue, __u32 bytes, __u64 now_ns)
{
	flow_next(queue)->bytes = bytes * queue->weight;
	queue->waiting += 1;
	if (queue->waiting >= queue->room)
		count_all_waiting(queue, now_ns);
}

#endif
