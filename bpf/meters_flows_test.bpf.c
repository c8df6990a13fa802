// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * For tests: meters and flow statistics, by the functions that packet programs use, at times that the test
 * chooses.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define FLOW_CELLS 16385
#include "common/flow_samplers.h"
#include "common/meters.h"

char _license[] SEC("license") = "Dual BSD/GPL";

#define METER_CELLS 64
#define CLOCKS 8
#define METER_QUERIES_MAX 40
#define LOAD_PACKETS 64

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, METER_CELLS);
	__type(key, __u32);
	__type(value, struct cell);
} meters SEC(".maps");

/* Times that programs on several processors share. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLOCKS);
	__type(key, __u32);
	__type(value, __u64);
} clocks SEC(".maps");

enum meter_query_kind { QUERY_METER = 1, QUERY_FLOW, QUERY_HASH, QUERY_QUEUE };

struct meter_query {
	__u32 kind;
	__u32 meter;
	__u32 direction;
	__u32 bytes;
	__u64 now_ns;
	__u64 hash;   /* QUERY_HASH: the answer */
	__u32 answer; /* 1: the packet conforms, or the flow crosses the threshold */
	__u32 own;    /* QUERY_FLOW, QUERY_QUEUE: as in flow_account() */
	struct flow_key key;
};

/* A sequence of equal packets, each one step of the clock after the one before. */
struct load {
	struct meter_query query;
	__u64 step_ns;
	__u32 clock;
	__u32 reserved;
	__u64 answered; /* number of answers that were 1, over all runs */
};

/* Global, so that the verifier processes it once and not for every query. */
__attribute__((noinline)) int answer_meter(struct meter_query *query)
{
	struct meter *meter;
	__u32 cell;

	if (!query)
		return 0;
	cell = query->meter;
	meter = bpf_map_lookup_elem(&meters, &cell);
	if (!meter)
		return 0;
	query->answer = meter_take(meter, query->direction, query->bytes, query->now_ns);
	return 0;
}

__attribute__((noinline)) int answer_flow(struct meter_query *query)
{
	const struct flow_table *table;
	struct flow_bucket *bucket;

	table = flow_cell_at(0);
	if (!query || !table)
		return 0;
	if (query->kind == QUERY_HASH) {
		query->hash = flow_hash(table, &query->key);
		return 0;
	}
	bucket = flow_cell_at(flow_cell(table, query->hash));
	if (!bucket)
		return 0;
	query->answer = flow_account(table, bucket, query->hash, query->bytes, query->own, query->now_ns);
	return 0;
}

/* The events that it posts have `meter` as VNI. */
__attribute__((noinline)) int enqueue_flow(struct meter_query *query)
{
	struct flow_sampler *sampler = flow_sampler();
	struct waiting_flow *waiting;
	struct flow_queue *queue;

	if (!query || !sampler || flow_is_skipped(sampler, query->now_ns))
		return 0;
	queue = flow_queue(flow_cell_at(0), sampler, query->now_ns);
	if (!queue)
		return 0;
	waiting = flow_next(queue);
	__builtin_memset(&waiting->event, 0, sizeof(waiting->event));
	waiting->event.vni = query->meter;
	waiting->hash = query->hash;
	waiting->own = query->own;
	flow_enqueue(queue, query->bytes, query->now_ns);
	return 0;
}

static __always_inline void answer(struct meter_query *query)
{
	query->answer = 0;
	if (query->kind == QUERY_METER)
		answer_meter(query);
	else if (query->kind == QUERY_QUEUE)
		enqueue_flow(query);
	else
		answer_flow(query);
}

/* The "packet" is an array of queries, which are answered in place. */
SEC("xdp")
int answer_queries(struct xdp_md *ctx)
{
	for (__u32 i = 0; i < METER_QUERIES_MAX; i++) {
		struct meter_query *at = (void *)(long)ctx->data;
		void *end = (void *)(long)ctx->data_end;
		struct meter_query query;

		at += i;
		if ((void *)(at + 1) > end)
			break;
		query = *at;
		answer(&query);
		at = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
		at += i;
		if ((void *)(at + 1) > end)
			break;
		*at = query;
	}
	return XDP_PASS;
}

/* The "packet" is a struct load. Each run makes LOAD_PACKETS of its packets. */
SEC("xdp")
int make_load(struct xdp_md *ctx)
{
	struct load *load = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct meter_query query;
	__u64 answered = 0, step_ns, *clock;
	__u32 at;

	if ((void *)(load + 1) > end)
		return XDP_DROP;
	at = load->clock;
	step_ns = load->step_ns;
	query = load->query;
	clock = bpf_map_lookup_elem(&clocks, &at);
	if (!clock)
		return XDP_DROP;
	for (int i = 0; i < LOAD_PACKETS; i++) {
		query.now_ns = ADD(clock, step_ns);
		answer(&query);
		answered += query.answer;
	}
	load = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if ((void *)(load + 1) > end)
		return XDP_DROP;
	load->answered += answered;
	return XDP_PASS;
}
