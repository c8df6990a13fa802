/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The maps that the gateway's and the vSwitch's programs have in common.
 *
 * Contract: crates/datapath finds the maps by these names, sets the size of `cells` before it loads a
 * program, and pins what has to survive an agent.
 */
#ifndef SLUICE_MAPS_H
#define SLUICE_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "common/token_bucket.h"
#include "layout/cells.h"
#include "layout/counter_layout.h"
#include "layout/drops.h"

/* The node's tables (cells.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CELL_FIRST_FREE);
	__type(key, __u32);
	__type(value, struct cell);
} cells SEC(".maps");

/* Dropped packets by reason. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROP_REASONS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} drops SEC(".maps");

/* Dropped packets by VNI and reason, for VNIs that are in the tables. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, VNI_DROPS_MAX);
	__type(key, struct vni_drop_key);
	__type(value, __u64);
} vni_drops SEC(".maps");

/* Forwarded frames of tenants, by vrf.counters of the VNI that they were received in. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VNI_COUNTERS_MAX);
	__type(key, __u32);
	__type(value, struct traffic);
} vni_traffic SEC(".maps");

/* Token buckets of ICMP errors (icmp_error.h), by vrf.counters of the sender's VNI. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VNI_COUNTERS_MAX);
	__type(key, __u32);
	__type(value, struct token_bucket);
} icmp_budget SEC(".maps");

#endif
