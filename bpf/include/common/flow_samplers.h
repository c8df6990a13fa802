/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * A struct flow_sampler for each processor, for programs that have no other memory per processor for it.
 *
 * Contract: as flow_queue.h states. Has the map `flow_samplers`.
 */
#ifndef SLUICE_FLOW_SAMPLERS_H
#define SLUICE_FLOW_SAMPLERS_H

#include "common/flow_queue.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_sampler);
} flow_samplers SEC(".maps");

/* This processor's sampler. It is never NULL, but the verifier wants that to be handled. */
static __always_inline struct flow_sampler *flow_sampler(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&flow_samplers, &zero);
}

#endif
