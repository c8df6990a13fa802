/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Layout of the table of meters (meters.h): packets write the arrival times, the agent the limits.
 *
 * Contract: crates/tables binds this at build time. A change that an old agent cannot read changes
 * METERS_LAYOUT_VERSION.
 */
#ifndef SLUICE_METER_LAYOUT_H
#define SLUICE_METER_LAYOUT_H

#include <linux/types.h>

#define METERS_MAGIC 0x314d454349554c53ull /* "SLUICEM1", little endian */
#define METERS_LAYOUT_VERSION 1

#define METERS_DEFAULT 4096 /* of a gateway */

#define METER_UNIT_SHIFT 8 /* 256 units per nanosecond */

/* In cell 0. So no meter has the number 0. */
struct meter_table {
	__u64 magic; /* stored last when the table is laid out */
	__u32 layout_version;
	__u32 reserved32;
	__u64 cells; /* capacity; meters have numbers from 1 to cells - 1 */
	__u64 reserved[5];
};

/* Indices of a meter's words: twice the direction, plus the kind. */
#define METER_IN 0  /* toward the tenant */
#define METER_OUT 1 /* from the tenant */
#define METER_BYTES 0
#define METER_PACKETS 1
#define METER_WORDS 4

/*
 * A limit is one word, so that a change of it is one store. 0: no limit.
 *
 *   bits  0..27  mantissa of the cost
 *   bits 28..33  shift of the cost: bytes cost bytes * mantissa >> shift units,
 *                rounded to the nearest; a packet costs mantissa << shift
 *   bits 34..57  mantissa of the burst tolerance
 *   bits 58..63  shift of the tolerance: mantissa << shift units, at most
 *                METER_TOLERANCE_MAX
 */
#define METER_COST_BITS 28
#define METER_COST_MASK 0x0fffffffull
#define METER_COST_SHIFT_SHIFT 28
#define METER_SHIFT_MASK 0x3full
#define METER_TOLERANCE_BITS 24
#define METER_TOLERANCE_MASK 0xffffffull
#define METER_TOLERANCE_SHIFT 34
#define METER_TOLERANCE_SHIFT_SHIFT 58
#define METER_TOLERANCE_MAX (1ull << 60)

struct meter {
	__u64 arrival[METER_WORDS]; /* packets write these */
	__u64 limit[METER_WORDS];   /* the agent writes these */
};

/*
 * Gateway: what a meter was made of, only for the agent. The meters have the numbers 1 to n = (cells - 1) / 2, and cell n + i is the
 * name of meter i. `id` is stored when the meter has its limits, and cleared when no packet finds the number any more.
 */
struct meter_name {
	__u32 id; /* the controller's; 0: the number is free */
	__u32 reserved32;
	__u64 in_kbps; /* 0: no limit */
	__u64 in_burst_bytes;
	__u64 out_kbps;
	__u64 out_burst_bytes;
	__u32 in_share; /* of rate and burst, in millionths; 0: the whole, as an earlier version leaves it */
	__u32 out_share;
	__u64 reserved[2];
};

/*
 * Gateway: bytes of IP packets of the meter with this number, by direction, since it has the number. Each processor counts its own, in
 * a map beside the meters: packets that are dropped write nothing that other processors read.
 */
struct meter_count {
	__u64 passed[2];
	__u64 dropped[2];
};

/*
 * If an arrival time is further ahead than twice the tolerance plus this (1.07 s, much more than the clocks
 * of processors differ), the meter was idle until the clock wrapped, or an agent ended in the middle of a
 * change: then the bucket counts as full.
 */
#define METER_SKEW (1ull << 38)

#endif
