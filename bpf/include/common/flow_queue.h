/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Counts forwarded packets by flow in batches, and samples them while they are dense.
 *
 * Batches: with many flows, a flow's bucket is in no cache, and a compare-and-swap stalls the processor
 * until memory has answered. But memory can answer for many buckets at once. So while packets are dense, a
 * processor queues up to FLOWS_WAITING of them, loads all their buckets, and then counts them.
 *
 * Sampling: while packets are dense, one in 8 to 64 is counted, with 8 to 64 times its bytes, at gaps that no
 * sender can predict. The result is right on average. The probability that a flow below the threshold is
 * reported as an elephant is at most its share of the threshold. If the policy reports every flow, all
 * packets are counted, because each may be the first of its flow.
 *
 * Packets are dense if, in the last tick of the coarse clock that had packets, this processor forwarded at
 * least one every FLOW_DENSE_NS. Otherwise no packet waits. The first packet of each tick counts all that
 * wait. When traffic stops, the last packets wait for the next one, and are forgotten if that arrives after
 * FLOW_LATE_NS: they would be counted in the wrong period.
 *
 * Contract: for each packet that was sent, once: flow_queue(); if it is not NULL, fill in flow_next() but for
 * its bytes; then flow_enqueue(). Instead of flow_queue() one may first ask flow_is_skipped(). The includer
 * provides a struct flow_sampler for each processor, zero at first. A queue and a sampler belong to one
 * processor, which runs one packet program at a time. A new program starts with empty queues, so the packets
 * that wait are lost with the old program. A change of the policy takes effect with the next packet that is
 * not skipped: in the next tick, or before. Uses the maps `flow_queues`, `flow_cells`,
 * `flow_events` and `events_lost`, and those of event_share.h.
 */
#ifndef SLUICE_FLOW_QUEUE_H
#define SLUICE_FLOW_QUEUE_H

#include "common/event_share.h"
#include "common/flow_maps.h"

/*
 * Events of one VNI in a period (event_share.h) while more than half of the ring is in use. The other half has
 * space for the shares of more than 20 VNIs.
 */
#define EVENTS_PER_SHARE 256
#define FLOWS_WAITING 32
#define FLOW_DENSE_NS 2048
#define FLOW_LATE_NS 1000000000ull

/* A packet that waits to be counted, and the event that is posted if its flow crosses the threshold. */
struct waiting_flow {
	struct flow_event event; /* without the time */
	__u64 hash;		 /* of the flow */
	__u32 bytes;		 /* multiplied by the weight */
	__u32 own;		 /* as in flow_account() */
};

/* Which packets of a processor are counted. Small, so that it is beside what is read for each packet anyway. */
struct flow_sampler {
	__u64 tick_ns; /* coarse time of the last packet */
	__u32 packets; /* received at that time */
	__u32 gap;     /* packets that are not counted before the next that is */
};

struct flow_queue {
	__u32 room;    /* packets that may wait: 1 or FLOWS_WAITING */
	__u32 weight;  /* packets that one counted packet represents: 1, or 8 to 64 */
	__u64 waiting; /* entries of `flows` in use */
	struct waiting_flow flows[FLOWS_WAITING];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_queue);
} flow_queues SEC(".maps");

/* The entry of the next packet that waits. */
static __always_inline struct waiting_flow *flow_next(struct flow_queue *queue)
{
	return &queue->flows[queue->waiting & (FLOWS_WAITING - 1)];
}

/* Posts the event of a flow that crossed the threshold. */
static __always_inline void post_flow_event(struct flow_event *event)
{
	int scarce = bpf_ringbuf_query(&flow_events, BPF_RB_AVAIL_DATA) > FLOW_EVENTS_BYTES / 2;

	event->time_ns = bpf_ktime_get_ns();
	if (take_event_share(event->vni, event->time_ns, scarce, EVENTS_PER_SHARE) &&
	    bpf_ringbuf_output(&flow_events, event, sizeof(*event), 0))
		count_lost();
}

/* Counts a packet that waited, and posts the event if its flow crosses the threshold. */
__attribute__((noinline)) int count_waiting(struct waiting_flow *waiting, __u64 now_ns)
{
	const struct flow_table *table = flow_cell_at(0);
	struct flow_bucket *bucket;

	if (!waiting || !table)
		return 0;
	bucket = flow_cell_at(flow_cell(table, waiting->hash));
	if (!bucket || !flow_account(table, bucket, waiting->hash, waiting->bytes, waiting->own, now_ns))
		return 0;
	post_flow_event(&waiting->event);
	return 0;
}

/* Counts all packets that wait. */
__attribute__((noinline)) int count_all_waiting(struct flow_queue *queue, __u64 now_ns)
{
	const struct flow_table *table = flow_cell_at(0);

	if (!queue || !table)
		return 0;
#pragma nounroll
	for (__u32 i = 0; i < FLOWS_WAITING && i < queue->waiting; i++) {
		const struct flow_bucket *bucket = flow_cell_at(flow_cell(table, queue->flows[i].hash));

		/* Starts the load into the cache. Nothing depends on its result. */
		if (bucket)
			READ_ONCE(bucket->entry[0].owner);
	}
#pragma nounroll
	for (__u32 i = 0; i < FLOWS_WAITING && i < queue->waiting; i++)
		count_waiting(&queue->flows[i], now_ns);
	queue->waiting = 0;
	return 0;
}

/* The weight of dense packets: 8, and twice as much each time that they are twice as dense, up to 64. */
static __always_inline __u32 flow_weight(__u64 dense_ns, __u64 passed_ns)
{
	__u32 weight = 8;

	for (int i = 0; i < 3; i++) {
		passed_ns *= 2;
		weight <<= dense_ns >= passed_ns;
	}
	return weight;
}

/* Begins a tick: counts all packets that wait, and sets room and weight by the density of the tick before. */
static __always_inline void flow_tick(struct flow_queue *queue, struct flow_sampler *sampler, __u64 policy,
				      __u64 now_ns)
{
	__u64 passed_ns = now_ns - sampler->tick_ns;
	__u64 dense_ns = sampler->packets * (__u64)FLOW_DENSE_NS;
	int dense = dense_ns >= passed_ns;

	if (passed_ns > FLOW_LATE_NS)
		queue->waiting = 0;
	if (queue->waiting)
		count_all_waiting(queue, now_ns);
	queue->room = dense ? FLOWS_WAITING : 1;
	queue->weight = dense && !(policy & FLOW_EVERY) ? flow_weight(dense_ns, passed_ns) : 1;
	sampler->tick_ns = now_ns;
	sampler->packets = 0;
	if (queue->weight == 1)
		sampler->gap = 0;
}

/* A random gap before the next packet that is counted: weight - 1 on average, at most twice that. */
static __always_inline __u32 flow_gap(__u32 weight)
{
	__u32 random = bpf_get_prandom_u32();

	return (random & (weight - 1)) + (random >> 16 & (weight - 1));
}

/* Whether the packet is not counted because it is in a gap. `now_ns` as for flow_queue(). */
static __always_inline int flow_is_skipped(struct flow_sampler *sampler, __u64 now_ns)
{
	if (!sampler->gap || sampler->tick_ns != now_ns)
		return 0;
	sampler->gap -= 1;
	sampler->packets += 1;
	return 1;
}

/* This processor's queue. NULL: the packet is not counted. `now_ns` is CLOCK_MONOTONIC, coarse. */
static __always_inline struct flow_queue *flow_queue(const struct flow_table *table,
						     struct flow_sampler *sampler, __u64 now_ns)
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
	if (now_ns != sampler->tick_ns)
		flow_tick(queue, sampler, policy, now_ns);
	if (flow_is_skipped(sampler, now_ns))
		return NULL;
	sampler->packets += 1;
	if (queue->weight > 1)
		sampler->gap = flow_gap(queue->weight);
	return queue;
}

/* Queues the packet in flow_next(), of `bytes`, and counts all if the queue is full. */
static __always_inline void flow_enqueue(struct flow_queue *queue, __u32 bytes, __u64 now_ns)
{
	flow_next(queue)->bytes = bytes * queue->weight;
	queue->waiting += 1;
	if (queue->waiting >= queue->room)
		count_all_waiting(queue, now_ns);
}

#endif
