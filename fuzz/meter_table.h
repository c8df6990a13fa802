/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The meters of a gateway in a fuzz target: the public prefix of IPv4 in the image of the tables has number 1, its VPC
 * number 2, and its IPv4 peering both (crates/datapath/tests/fuzz/gateway.rs). What is in their buckets changes from packet to packet.
 */
#ifndef SLUICE_FUZZ_METER_TABLE_H
#define SLUICE_FUZZ_METER_TABLE_H

#include "kernel.h"

#define METERS_KNOWN 3
/* 1 unit for a byte, and bursts of 4 and 64 KiB. */
#define METER_LIMIT(burst) (1ull | (burst) << METER_TOLERANCE_SHIFT)

static struct meter meter_memory[METERS_KNOWN];
static struct meter_count meter_count_memory[METERS_KNOWN];

/* An element of the map `meters`, whose number may be one of memory that was changed. */
static struct meter *find_meter(uint32_t number)
{
	return number < METERS_KNOWN ? &meter_memory[number] : NULL;
}

/* An element of the map `meter_counts`. */
static struct meter_count *find_meter_count(uint32_t number)
{
	return number < METERS_KNOWN ? &meter_count_memory[number] : NULL;
}

/* Leaves 1 to 4096 bytes in the buckets of the first meter, by the time of the packet. */
static void begin_meters(void)
{
	for (int i = 1; i < METERS_KNOWN; i++) {
		for (int word = 0; word < METER_WORDS; word += 2) {
			meter_memory[i].limit[word] = METER_LIMIT(i == 1 ? 4096ull : 65536ull);
			meter_memory[i].arrival[word] =
				(kernel.now_ns << METER_UNIT_SHIFT) + (kernel.now_ns * 40503 >> i & 0xfff);
		}
	}
}

#endif
