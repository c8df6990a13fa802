/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: counts the frames of interfaces that are not ports, by interface.
 *
 * Contract: the frame is neither read nor changed; the caller drops it. The map `unknown_ports` is pinned, and
 * the programs of vswitch.bpf.c and guard.bpf.c share it. An entry is replaced when more interfaces than
 * UNKNOWN_PORTS_MAX send: the one that sent least recently.
 */
#ifndef SLUICE_UNKNOWN_PORT_H
#define SLUICE_UNKNOWN_PORT_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define UNKNOWN_PORTS_MAX 4096

/* Dropped frames by interface index. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, UNKNOWN_PORTS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} unknown_ports SEC(".maps");

static __always_inline void count_unknown_port(__u32 ifindex)
{
	__u64 first = 1, *count = bpf_map_lookup_elem(&unknown_ports, &ifindex);

	if (!count) {
		if (!bpf_map_update_elem(&unknown_ports, &ifindex, &first, BPF_NOEXIST))
			return;
		/* Another CPU has just created the entry. */
		count = bpf_map_lookup_elem(&unknown_ports, &ifindex);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
}

#endif
