/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The share of a VNI in a ring of events. The ring is common to all tenants: one whose events come faster than
 * the agent reads, or than a budget allows, would take the space of all others.
 *
 * While there is enough space, which the caller decides, every event is accepted. Beyond that, a VNI gets no
 * more than its share of events accepted in a period. VNIs whose low bits are equal have one share.
 *
 * Contract: asked only for events, not for packets. An event that is refused is counted in the map
 * `events_refused`, which is per CPU and which the agent reads. Its flow's next period brings another. Uses
 * the maps `event_shares` and `events_refused`. All kinds of events of a VNI on a node have one share.
 */
#ifndef SLUICE_EVENT_SHARE_H
#define SLUICE_EVENT_SHARE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "common/atomic.h"
#include "common/token_bucket.h"

#define EVENT_SHARES (1 << 12)
#define EVENT_PERIOD_SHIFT 27 /* a period has 2^27 ns, 134 ms */
/* How often an event tries to change a word that others change at the same time. */
#define EVENT_SHARE_TRIES 4

/* Bits 0..23: events accepted in the period that is in bits 24..63. A period has fewer than 2^24 events. */
#define EVENT_COUNT_BITS 24
#define EVENT_COUNT_MASK ((1ull << EVENT_COUNT_BITS) - 1)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EVENT_SHARES);
	__type(key, __u32);
	__type(value, __u64);
} event_shares SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} events_refused SEC(".maps");

static __always_inline int refuse_event(void)
{
	__u32 zero = 0;
	__u64 *refused = bpf_map_lookup_elem(&events_refused, &zero);

	if (refused)
		*refused += 1;
	return 0;
}

/*
 * Takes one event of the VNI's share, which has `most` in a period. False: it is used up, which is counted.
 * `scarce`: there is space only for the shares.
 */
static __always_inline int take_event_share(__u32 vni, __u64 now_ns, int scarce, __u32 most)
{
	__u32 slot = vni & (EVENT_SHARES - 1);
	__u64 *share = bpf_map_lookup_elem(&event_shares, &slot);
	__u64 period = now_ns >> EVENT_PERIOD_SHIFT << EVENT_COUNT_BITS;

	if (!share)
		return refuse_event();
#pragma nounroll
	for (int i = 0; i < EVENT_SHARE_TRIES; i++) {
		__u64 old = READ_ONCE(*share), next = old + 1;

		if ((old & ~EVENT_COUNT_MASK) != period)
			next = period | 1;
		else if (scarce && (old & EVENT_COUNT_MASK) >= most)
			return refuse_event();
		if (CAS(share, old, next) == old)
			return 1;
	}
	return scarce ? refuse_event() : 1;
}

/* A limit of events for each CPU. */
struct event_budget {
	__u64 token_ns; /* time for which an event is earned */
	__u32 burst;
	__u32 per_share; /* events of one VNI in a period, while the burst is half used */
};

/*
 * Takes one event of a CPU's budget. Half of the burst is for VNIs that are within their share, so the events of one tenant
 * hide no other's.
 */
static __always_inline int take_event(struct token_bucket *bucket, const struct event_budget budget,
				      __u32 vni)
{
	__u64 now_ns = bpf_ktime_get_coarse_ns();

	if (!bucket)
		return 0;
	refill_tokens(bucket, now_ns, budget.token_ns, budget.burst);
	if (!bucket->tokens ||
	    !take_event_share(vni, now_ns, bucket->tokens < budget.burst / 2, budget.per_share))
		return 0;
	bucket->tokens -= 1;
	return 1;
}

#endif
