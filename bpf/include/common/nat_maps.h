/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The maps of source NAT with sessions, and the functions of nat.h for packet programs.
 *
 * Contract: the agent sets the sizes of `nat_groups`, `nat_ports`, `nat_tuples` and `nat_fragments`, and those of session_maps.h, before it
 * loads the program. Otherwise each has one element: a node that translates nothing has no memory for it.
 */
#ifndef SLUICE_NAT_MAPS_H
#define SLUICE_NAT_MAPS_H

#define SESSION_BUCKETS 1

#include "common/session_maps.h"
#include "layout/nat_fragment_layout.h"
#include "layout/nat_layout.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_config);
} nat_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_group);
} nat_groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_ports);
} nat_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_tuples);
} nat_tuples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_fragment);
} nat_fragments SEC(".maps");

static __always_inline struct nat_config *nat_config_at(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&nat_config, &zero);
}

static __always_inline struct nat_group *nat_group_at(__u32 index)
{
	return bpf_map_lookup_elem(&nat_groups, &index);
}

static __always_inline struct nat_ports *nat_ports_at(__u32 index)
{
	return bpf_map_lookup_elem(&nat_ports, &index);
}

static __always_inline struct nat_tuples *nat_tuples_at(__u32 index)
{
	return bpf_map_lookup_elem(&nat_tuples, &index);
}

#include "common/nat.h"

#endif
