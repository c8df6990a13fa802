/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Flow statistics, by which elephant flows are detected (Zeta sections IV-C and IV-D): packets and bytes
 * of a flow within a period that begins with a packet of the flow. Packets of all processors write them
 * without locks, in one cell for each flow. An entry has its own period, and restarts when that is over.
 *
 * A table is an array of cells. The first is struct flow_table, which the agent writes. Each of the others
 * is a bucket of four flows. A flow has one bucket, where FLOW_NAME_BITS of its hash distinguish it from
 * the others. A new flow takes an empty entry, or one whose period is over, or else the one with the fewest
 * bytes in its period. So elephants stay, however many small flows there are.
 *
 * Contract: the functions get pointers from the includer, call no helper, and use no map. Times are
 * CLOCK_MONOTONIC. The layout is flow_layout.h.
 */
#ifndef SLUICE_FLOWS_H
#define SLUICE_FLOWS_H

#include <linux/types.h>

#include "common/atomic.h"
#include "layout/flow_layout.h"

/* How often a packet tries to change a word that others change at the same time. */
#ifndef FLOW_TRIES
#define FLOW_TRIES 8
#endif
/* How often a packet searches for its entry. If it gets none, it is not counted. */
#define FLOW_LOOKS 3

/* A flow. Addresses are halves in host order, high half first; IPv4 is ::ffff:a.b.c.d. */
struct flow_key {
	__u64 source[2];
	__u64 destination[2];
	__u32 vni_protocol; /* VNI << 8 | IP protocol */
	__u32 ports;	    /* source << 16 | destination, host order; 0 for protocols without ports */
};

/* Spreads a sum over all bits. Different sums have different results. */
static __always_inline __u64 flow_spread(__u64 sum)
{
	sum ^= sum >> 32;
	sum *= 0x9e3779b97f4a7c15ull;
	sum ^= sum >> 29;
	sum *= 0xbf58476d1ce4e5b9ull;
	return sum ^ sum >> 32;
}

#define FLOW_PRODUCT(a, b, at) ((__u64)(__u32)((a) + secret[at]) * (__u32)((b) + secret[at + 1]))

/*
 * NH (RFC 4418 section 5.2.2): without the secret, the probability that two chosen flows have the same hash
 * is at most 2^-31. IPv4 uses two of the five products, because most of its key is the same in all flows.
 */
static __always_inline __u64 flow_hash_ipv4(const struct flow_table *table, __u32 source, __u32 destination,
					    __u32 vni_protocol, __u32 ports)
{
	const __u32 *secret = table->secret;

	return flow_spread(FLOW_PRODUCT(source, destination, 6) + FLOW_PRODUCT(vni_protocol, ports, 8));
}

static __always_inline __u64 flow_hash_ipv6(const struct flow_table *table, const struct flow_key *key)
{
	const __u32 *secret = table->secret;
	__u64 sum = 0;

	sum += FLOW_PRODUCT((__u32)key->source[0], (__u32)(key->source[0] >> 32), 0);
	sum += FLOW_PRODUCT((__u32)key->source[1], (__u32)(key->source[1] >> 32), 2);
	sum += FLOW_PRODUCT((__u32)key->destination[0], (__u32)(key->destination[0] >> 32), 4);
	sum += FLOW_PRODUCT((__u32)key->destination[1], (__u32)(key->destination[1] >> 32), 6);
	return flow_spread(sum + FLOW_PRODUCT(key->vni_protocol, key->ports, 8));
}
#undef FLOW_PRODUCT

static __always_inline int flow_address_is_ipv4(const __u64 *halves)
{
	return !halves[0] && halves[1] >> 32 == 0xffff;
}

static __always_inline __u64 flow_hash(const struct flow_table *table, const struct flow_key *key)
{
	if (flow_address_is_ipv4(key->source) && flow_address_is_ipv4(key->destination))
		return flow_hash_ipv4(table, key->source[1], key->destination[1], key->vni_protocol,
				      key->ports);
	return flow_hash_ipv6(table, key);
}

/* Index of the cell of a flow's bucket. */
static __always_inline __u32 flow_cell(const struct flow_table *table, __u64 hash)
{
	return 1 + ((hash >> 32) * READ_ONCE(table->buckets) >> 32);
}

/* The name of a flow, in the bits that it has in `owner`. */
static __always_inline __u64 flow_name(__u64 hash)
{
	__u64 name = hash << FLOW_NAME_SHIFT;

	return name ? name : 1ull << FLOW_NAME_SHIFT;
}

/*
 * All ones if a < b, otherwise 0. Both are below 2^63. No branch predictor can guess which entry of a bucket
 * is the flow's, so entries are compared without branches.
 */
static __always_inline __u64 flow_below(__u64 a, __u64 b)
{
	__u64 mask = (__s64)(a - b) >> 63;

	/* Hides the value from the compiler, which would make a branch of it. */
	asm volatile("" : "+r"(mask));
	return mask;
}

/* `taken` if `mask` is all ones, `value` if it is 0. */
#define FLOW_TAKE(mask, value, taken) ((value) ^ (((value) ^ (taken)) & (mask)))

/* All ones if the owner's period is not over. */
static __always_inline __u64 flow_lives(__u64 owner, __u32 ticks, __u32 period)
{
	return flow_below((__u32)(ticks - (__u32)owner + FLOW_SKEW), (__u64)period + FLOW_SKEW);
}

static __always_inline __u64 flow_generation(__u64 owner)
{
	return (owner >> FLOW_GENERATION_SHIFT & FLOW_GENERATION_MASK) << FLOW_COUNT_GENERATION_SHIFT;
}

/* All ones if a count belongs to an owner of this generation: to its flow and its period. */
static __always_inline __u64 flow_is_fresh(__u64 count, __u64 generation)
{
	return flow_below((count ^ generation) >> FLOW_COUNT_GENERATION_SHIFT, 1);
}

/* All ones if the owner has this name. */
static __always_inline __u64 flow_is_named(__u64 owner, __u64 name)
{
	return flow_below((owner ^ name) >> FLOW_NAME_SHIFT, 1);
}

/*
 * Index of the flow's entry, the first if it has two; FLOW_WAYS if it has none. `owner` is set to its word.
 */
static __always_inline __u32 flow_find(const struct flow_bucket *bucket, __u64 name, __u64 *owner)
{
	__u64 place = FLOW_WAYS;

#pragma unroll
	for (int i = FLOW_WAYS - 1; i >= 0; i--) {
		__u64 seen = READ_ONCE(bucket->entry[i].owner);
		__u64 own = flow_is_named(seen, name);

		place = FLOW_TAKE(own, place, (__u64)i);
		*owner = FLOW_TAKE(own, *owner, seen);
	}
	return place;
}

/*
 * Preference of an entry for the flow with a name, lowest first: 0 its own, 1 empty, 2 over, 3 + bytes
 * counted.
 */
static __always_inline __u64 flow_heat(const struct flow_entry *entry, __u64 seen, __u64 name, __u32 ticks,
				       __u32 period)
{
	__u64 count = READ_ONCE(entry->count);
	__u64 bytes = count & FLOW_BYTES_MASK & flow_is_fresh(count, flow_generation(seen));
	__u64 heat = 2 + (flow_lives(seen, ticks, period) & (1 + bytes));

	heat = FLOW_TAKE(flow_is_named(seen, 0), heat, 1);
	return heat & ~flow_is_named(seen, name);
}

/* Index of the entry that a flow counts in: its own, or the one that it takes. `owner` is set to its word. */
static __always_inline __u32 flow_place(const struct flow_bucket *bucket, __u64 name, __u32 ticks,
					__u32 period, __u64 *owner)
{
	__u64 coldest = ~0ull >> 1, place = 0;

#pragma unroll
	for (__u32 i = 0; i < FLOW_WAYS; i++) {
		__u64 seen = READ_ONCE(bucket->entry[i].owner);
		__u64 heat = flow_heat(&bucket->entry[i], seen, name, ticks, period);
		__u64 colder = flow_below(heat, coldest);

		coldest = FLOW_TAKE(colder, coldest, heat);
		place = FLOW_TAKE(colder, place, i);
		*owner = FLOW_TAKE(colder, *owner, seen);
	}
	return place;
}

/* The count after one more packet. */
static __always_inline __u64 flow_count_packet(__u64 count, __u32 bytes, __u64 threshold)
{
	__u64 total = (count & FLOW_BYTES_MASK) + bytes;

	if (total > FLOW_BYTES_MASK)
		total = FLOW_BYTES_MASK;
	if ((count >> FLOW_PACKETS_SHIFT & FLOW_PACKETS_MASK) != FLOW_PACKETS_MASK)
		count += 1ull << FLOW_PACKETS_SHIFT;
	if (threshold && total >= threshold)
		count |= FLOW_REPORTED;
	return (count & ~FLOW_BYTES_MASK) | total;
}

enum flow_answer {
	FLOW_COUNTED = 0,
	FLOW_CROSSED = 1, /* this packet made the flow an elephant; once per period */
	FLOW_MOVED = 2,	  /* not counted: the entry has another owner now */
};

/* Counts a packet in the entry of this owner. */
static __always_inline enum flow_answer flow_add(struct flow_entry *entry, __u64 owner, __u32 bytes,
						 __u64 threshold)
{
	__u64 generation = flow_generation(owner);
	__u64 seen = READ_ONCE(entry->count);

#pragma nounroll
	for (int i = 0; i < FLOW_TRIES; i++) {
		__u64 before = seen, after, found;

		if (!flow_is_fresh(seen, generation)) {
			/* The count belongs to an earlier owner, or to a later one than this. */
			if (READ_ONCE(entry->owner) != owner)
				return FLOW_MOVED;
			before = generation;
		}
		after = flow_count_packet(before, bytes, threshold);
		found = CAS(&entry->count, seen, after);
		if (found == seen)
			return (after & ~before & FLOW_REPORTED) ? FLOW_CROSSED : FLOW_COUNTED;
		seen = found;
	}
	if (!flow_is_fresh(seen, generation))
		return FLOW_MOVED;
	/*
	 * Too many packets at once: an addition always succeeds. It does not saturate, so it is not used near
	 * the largest count. If it crosses the threshold, the next packet reports the flow.
	 */
	if (!(seen & (FLOW_BYTES_MASK ^ FLOW_BYTES_MASK >> 1)) &&
	    (seen >> FLOW_PACKETS_SHIFT & FLOW_PACKETS_MASK) <= FLOW_PACKETS_MASK / 2)
		ADD(&entry->count, (1ull << FLOW_PACKETS_SHIFT) + bytes);
	return FLOW_COUNTED;
}

/* Bytes from which a flow is an elephant; 0: no flow is. `own` is the threshold of the flow's VPC. */
static __always_inline __u64 flow_threshold(__u64 policy, __u32 own)
{
	if (own == FLOW_NEVER)
		return 0;
	if (policy & FLOW_EVERY)
		return 1;
	return own ? own : policy & FLOW_BYTES_MASK;
}

/*
 * Counts a packet of `bytes` in `bucket`, the cell flow_cell(table, hash), at `now` (ns). 1: with this packet
 * the flow crossed the threshold; otherwise 0. It is 1 once per period, as long as the flow keeps its entry.
 * `own` is the threshold in bytes, FLOW_NEVER, or 0 for the table's policy.
 */
static __always_inline int flow_account(const struct flow_table *table, struct flow_bucket *bucket,
					__u64 hash, __u32 bytes, __u32 own, __u64 now)
{
	__u64 policy = READ_ONCE(table->policy), name = flow_name(hash);
	__u64 threshold = flow_threshold(policy, own);
	__u32 period = policy >> FLOW_PERIOD_SHIFT & FLOW_PERIOD_MASK;
	__u32 ticks = now >> FLOW_TICK_SHIFT;

	if (!period)
		return 0;
#pragma nounroll
	for (int i = 0; i < FLOW_LOOKS; i++) {
		__u64 owner = 0, mine;
		__u32 place = flow_find(bucket, name, &owner);
		struct flow_entry *entry;
		enum flow_answer answer;

		if (place == FLOW_WAYS)
			place = flow_place(bucket, name, ticks, period, &owner);
		entry = &bucket->entry[place & (FLOW_WAYS - 1)];
		if ((owner & FLOW_NAME_MASK) != name || !flow_lives(owner, ticks, period)) {
			mine = owner + (1ull << FLOW_GENERATION_SHIFT);
			mine = name | (mine & FLOW_GENERATION_MASK << FLOW_GENERATION_SHIFT) | ticks;
			if (CAS(&entry->owner, owner, mine) != owner)
				continue;
			owner = mine;
		}
		answer = flow_add(entry, owner, bytes, threshold);
		if (answer != FLOW_MOVED)
			return answer == FLOW_CROSSED;
	}
	return 0;
}

#endif
