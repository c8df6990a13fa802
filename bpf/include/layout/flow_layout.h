/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Layout of the table of flow statistics: see flows.h. */
#ifndef SLUICE_FLOW_LAYOUT_H
#define SLUICE_FLOW_LAYOUT_H

#include <linux/types.h>

#define FLOWS_MAGIC 0x3146454349554c53ull /* "SLUICEF1", little endian */
#define FLOWS_LAYOUT_VERSION 1

/* The time of periods: CLOCK_MONOTONIC in ticks of 2^24 ns (16.8 ms), of which 32 bits are kept. */
#define FLOW_TICK_SHIFT 24

/*
 * `policy`, one store: bits 0..35 bytes a period from which a flow is an
 * elephant (0: none is), bits 36..62 period in ticks, bit 63 every flow is one,
 * from its first packet on. 0: flows are not counted.
 */
#define FLOW_BYTES_MASK 0x0000000fffffffffull
#define FLOW_PERIOD_SHIFT 36
#define FLOW_PERIOD_MASK 0x7ffffffu
#define FLOW_EVERY_SHIFT 63
#define FLOW_EVERY (1ull << FLOW_EVERY_SHIFT)

/* Instead of a number of bytes: the flow is no elephant, ever. 0: the table's policy says. */
#define FLOW_NEVER 0xffffffffu

#define FLOW_KEY_WORDS 10

struct flow_table {
	__u64 magic; /* stored last when the table is laid out */
	__u32 layout_version;
	__u32 buckets; /* in cells 1 to `buckets` */
	__u64 policy;
	__u32 secret[FLOW_KEY_WORDS]; /* random, so that nobody can choose flows that meet */
};

/*
 * owner: bits 0..31 start of the period, in ticks; 32..37 generation, one more
 * each time the word changes; 38..63 name of the flow, not 0. 0: empty.
 *
 * count: bits 0..35 bytes and 36..56 packets of the period, both staying at
 * their largest; 57 reported as an elephant; 58..63 generation. It belongs to
 * `owner` where the generations agree; else nothing is counted yet.
 *
 * `owner` changes first. Whoever then finds the count of another generation
 * begins it anew together with its own packet, in one change: so no packet that
 * is counted for an owner is lost, and none is counted for the next one.
 */
struct flow_entry {
	__u64 owner;
	__u64 count;
};

#define FLOW_NAME_SHIFT 38
#define FLOW_NAME_BITS 26
#define FLOW_NAME_MASK (~0ull << FLOW_NAME_SHIFT)
#define FLOW_GENERATION_SHIFT 32
#define FLOW_GENERATION_MASK 0x3full
#define FLOW_COUNT_GENERATION_SHIFT 58
#define FLOW_REPORTED (1ull << 57)
#define FLOW_PACKETS_SHIFT 36
#define FLOW_PACKETS_MASK 0x1fffffull

#define FLOW_WAYS 4

struct flow_bucket {
	struct flow_entry entry[FLOW_WAYS];
};

/* By how much processors' ticks may differ: a period that began up to so much later is no old one. */
#define FLOW_SKEW 64

#endif
