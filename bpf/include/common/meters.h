/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Meters: rate limits, from which packets of all processors take without locks. A meter has one cell, with
 * a limit for bytes and one for packets in each direction.
 *
 * A bucket is one word, the theoretical arrival time of the generic cell rate algorithm (ITU-T I.371,
 * virtual scheduling): the time at which the bucket will be full. It is later than now by the time that
 * refilling takes. A packet conforms if, with its own cost, that time stays within the burst tolerance, in
 * which an empty bucket fills up. So nothing has to refill buckets, an unused meter costs nothing, and
 * taking is one compare-and-swap.
 *
 * Contract: the functions get pointers from the includer, call no helper, and use no map. Times are
 * CLOCK_MONOTONIC in units of 1/256 ns. They wrap after 2.3 years, so only differences are compared. The
 * layout is meter_layout.h.
 */
#ifndef SLUICE_METERS_H
#define SLUICE_METERS_H

#include <linux/types.h>

#include "common/atomic.h"
#include "layout/meter_layout.h"

/* How often a packet tries to take from a bucket that others change at the same time. */
#ifndef METER_TRIES
#define METER_TRIES 8
#endif

static __always_inline __u64 meter_bytes_cost(__u64 limit, __u32 bytes)
{
	__u64 shift = limit >> METER_COST_SHIFT_SHIFT & METER_SHIFT_MASK;

	return (bytes * (limit & METER_COST_MASK) + ((1ull << shift) >> 1)) >> shift;
}

static __always_inline __u64 meter_packet_cost(__u64 limit)
{
	return (limit & METER_COST_MASK) << (limit >> METER_COST_SHIFT_SHIFT & METER_SHIFT_MASK);
}

static __always_inline __u64 meter_tolerance(__u64 limit)
{
	return (limit >> METER_TOLERANCE_SHIFT & METER_TOLERANCE_MASK)
	    << (limit >> METER_TOLERANCE_SHIFT_SHIFT);
}

/*
 * Whether a bucket has `cost` at `now`, both in units. `after` is set to its arrival time without the cost.
 */
static __always_inline int meter_has(__u64 arrival, __u64 now, __u64 cost, __u64 tolerance, __u64 *after)
{
	__s64 ahead = arrival - now;

	if (ahead < 0 || ahead > (__s64)(2 * tolerance + METER_SKEW))
		ahead = 0;
	*after = now + ahead + cost;
	return ahead + cost <= tolerance;
}

/* Takes `cost` from a bucket. 1: taken, and `after` is its new arrival time; 0: the bucket has too little. */
static __always_inline int meter_take_cost(__u64 *arrival, __u64 now, __u64 cost, __u64 tolerance,
					   __u64 *after)
{
	__u64 seen = READ_ONCE(*arrival), found;

#pragma nounroll
	for (int i = 0; i < METER_TRIES; i++) {
		if (!meter_has(seen, now, cost, tolerance, after))
			return 0;
		found = CAS(arrival, seen, *after);
		if (found == seen)
			return 1;
		seen = found;
	}
	if (!meter_has(seen, now, cost, tolerance, after))
		return 0;
	/*
	 * Too many packets at once: an addition always succeeds. One packet per processor may conform
	 * beyond the burst, but all are charged, so the rate is exact. Time in which the bucket was full is
	 * not kept.
	 */
	found = ADD(arrival, cost);
	if ((__s64)(now - found) > 0)
		ADD(arrival, now - found);
	*after = found + cost;
	return 1;
}

/*
 * Meters a packet of `bytes` in `direction`, METER_IN or METER_OUT, at `now` (ns). 1: it conforms to both
 * limits; 0: it does not, and nothing was taken.
 */
static __always_inline int meter_take(struct meter *meter, __u32 direction, __u32 bytes, __u64 now)
{
	__u32 at = (direction & 1) * 2;
	__u64 *arrival = &meter->arrival[at];
	__u64 bytes_limit = READ_ONCE(meter->limit[at]);
	__u64 packets_limit = READ_ONCE(meter->limit[at + METER_PACKETS]);
	__u64 bytes_cost = meter_bytes_cost(bytes_limit, bytes);
	__u64 packet_cost = meter_packet_cost(packets_limit);
	__u64 taken = 0, after = 0;

	now <<= METER_UNIT_SHIFT;
	/* Checked first, so that a token for the packet rarely has to be returned. */
	if (bytes_limit && packets_limit &&
	    !meter_has(READ_ONCE(arrival[METER_BYTES]), now, bytes_cost, meter_tolerance(bytes_limit),
		       &after))
		return 0;
	if (packets_limit && !meter_take_cost(&arrival[METER_PACKETS], now, packet_cost,
					      meter_tolerance(packets_limit), &taken))
		return 0;
	if (!bytes_limit ||
	    meter_take_cost(&arrival[METER_BYTES], now, bytes_cost, meter_tolerance(bytes_limit), &after))
		return 1;
	/*
	 * Another processor took the last bytes in between. The token for the packet is returned, unless the
	 * bucket has changed again: then it is unknown whether the token was refilled, and a bucket that
	 * grants slightly less is better than one that grants more.
	 */
	if (packets_limit)
		CAS(&arrival[METER_PACKETS], taken, taken - packet_cost);
	return 0;
}

#endif
