/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Counters of dropped and forwarded packets.
 *
 * Contract: the packet is neither read nor changed. The maps `drops`, `vni_drops` and `vni_traffic` are per
 * CPU, so additions need not be atomic.
 */
#ifndef SLUICE_COUNT_H
#define SLUICE_COUNT_H

#include "common/maps.h"

/*
 * Counts a packet that was dropped for `reason`. `vni` is 0 until the packet's VNI was found in the tables:
 * otherwise a sender could fill the map with VNIs that do not exist.
 */
__attribute__((noinline)) int count_drop(__u32 vni, __u32 reason)
{
	struct vni_drop_key key = { .vni = vni, .reason = reason };
	__u64 first = 1, *count;

	count = bpf_map_lookup_elem(&drops, &reason);
	if (count)
		*count += 1;
	if (!vni)
		return 0;
	count = bpf_map_lookup_elem(&vni_drops, &key);
	if (!count) {
		if (!bpf_map_update_elem(&vni_drops, &key, &first, BPF_NOEXIST))
			return 0;
		/* Another CPU has just created the entry, or the map is full. */
		count = bpf_map_lookup_elem(&vni_drops, &key);
	}
	if (count)
		*count += 1;
	return 0;
}

/*
 * Counts a tenant's frame that was forwarded. `index` is vrf.counters; `bytes` include the Ethernet header.
 */
static __always_inline void count_traffic(__u32 index, __u32 bytes)
{
	struct traffic *traffic = bpf_map_lookup_elem(&vni_traffic, &index);

	if (traffic) {
		traffic->packets += 1;
		traffic->bytes += bytes;
	}
}

#endif
