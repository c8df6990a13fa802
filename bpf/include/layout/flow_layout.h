/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Layout of the table of flow statistics, which packets write (flows.h) and the agent configures and sweeps.
 *
 * Contract: crates/tables binds this at build time. A change that an old agent cannot read changes
 * FLOWS_LAYOUT_VERSION.
 */
#ifndef SLUICE_FLOW_LAYOUT_H
#define SLUICE_FLOW_LAYOUT_H

#include <linux/types.h>

#define FLOWS_MAGIC 0x3146454349554c53ull /* "SLUICEF1", little endian */
#define FLOWS_LAYOUT_VERSION 1

/* Times are the low 32 bits of CLOCK_MONOTONIC in ticks of 2^24 ns (16.8 ms). */
#define FLOW_TICK_SHIFT 24

/*
 * `policy` is changed by one store. Bits 0..35: bytes per period from which a flow is an elephant, 0: no flow
 * is. Bits 36..62: period in ticks. Bit 63: every flow is an elephant from its first packet on. The word 0:
 * flows are not counted.
 */
#define FLOW_BYTES_MASK 0x0000000fffffffffull
#define FLOW_PERIOD_SHIFT 36
#define FLOW_PERIOD_MASK 0x7ffffffu
#define FLOW_EVERY_SHIFT 63
#define FLOW_EVERY (1ull << FLOW_EVERY_SHIFT)

/* A threshold of a VPC instead of a number of bytes: its flows are never elephants. 0: the table's policy. */
#define FLOW_NEVER 0xffffffffu

#define FLOW_KEY_WORDS 10

struct flow_table {
	__u64 magic; /* stored last when the table is laid out */
	__u32 layout_version;
	__u32 buckets; /* in cells 1 to `buckets` */
	__u64 policy;
	__u32 secret[FLOW_KEY_WORDS]; /* random, so that tenants cannot choose flows that collide */
};

/*
 * owner: bits 0..31 are the start of the period in ticks; 32..37 the generation, which increases with each
 * change of the word; 38..63 the name of the flow, not 0. The word 0: empty.
 *
 * count: bits 0..35 are the bytes and 36..56 the packets of the period, both of which stop at their largest
 * value; 57 is set when the flow was reported as an elephant; 58..63 the generation. The count belongs to
 * `owner` if the generations are equal; otherwise nothing is counted yet.
 *
 * `owner` changes first. The packet that then finds a count of another generation restarts it and adds
 * itself, in one compare-and-swap. So no packet that is counted for an owner is lost, and none is counted for
 * the next owner.
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

/*
 * Ticks by which processors' clocks may differ: a period that began up to this much later is a current one.
 */
#define FLOW_SKEW 64

#endif
