/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The maps of a node's programs. Both programs of a node define the same ones,
 * and the agent shares what it pins between them by these names.
 */
#ifndef SLUICE_MAPS_H
#define SLUICE_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "common/token_bucket.h"
#include "layout/cells.h"
#include "layout/counter_layout.h"
#include "layout/drops.h"

/* The node's tables. The agent sets the size before it loads the program. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CELL_FIRST_FREE);
	__type(key, __u32);
	__type(value, struct cell);
} cells SEC(".maps");

/* Packets dropped, by reason. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROP_REASONS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} drops SEC(".maps");

/* The same by VNI, for VNIs that are in the tables. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, VNI_DROPS_MAX);
	__type(key, struct vni_drop_key);
	__type(value, __u64);
} vni_drops SEC(".maps");

/* Tenant frames sent on, by vrf.counters of the VNI they came with. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VNI_COUNTERS_MAX);
	__type(key, __u32);
	__type(value, struct traffic);
} vni_traffic SEC(".maps");

/* Token buckets of ICMP errors, by vrf.counters of the VNI they are about: see icmp.h. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VNI_COUNTERS_MAX);
	__type(key, __u32);
	__type(value, struct token_bucket);
} icmp_budget SEC(".maps");

#endif
