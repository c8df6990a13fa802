/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The maps of flow accounting: the table of flows.h, and the ring of events for the agent.
 *
 * Contract: the includer may define FLOW_CELLS, the size of the table. The agent may set another size
 * before it loads the program.
 */
#ifndef SLUICE_FLOW_MAPS_H
#define SLUICE_FLOW_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "common/events_lost.h"
#include "common/flows.h"
#include "layout/cells.h"
#include "layout/events.h"

#ifndef FLOW_CELLS
#define FLOW_CELLS (1 << 18)
#endif

_Static_assert(FLOW_NEVER == ELEPHANT_NEVER, "a flow has the threshold of its VRF");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FLOW_CELLS);
	__type(key, __u32);
	__type(value, struct cell);
} flow_cells SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FLOW_EVENTS_BYTES);
} flow_events SEC(".maps");

static __always_inline void *flow_cell_at(__u32 index)
{
	return bpf_map_lookup_elem(&flow_cells, &index);
}

#endif
