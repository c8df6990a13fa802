/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Counts events that were not posted, because the ring was full or the budget used up.
 *
 * Contract: the agent reads the map `events_lost`. It is per CPU.
 */
#ifndef SLUICE_EVENTS_LOST_H
#define SLUICE_EVENTS_LOST_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} events_lost SEC(".maps");

static __always_inline void count_lost(void)
{
	__u32 zero = 0;
	__u64 *lost = bpf_map_lookup_elem(&events_lost, &zero);

	if (lost)
		*lost += 1;
}

#endif
