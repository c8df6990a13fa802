/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tables of tables.h over the map `cells`. The lookups are functions of
 * their own so that the verifier looks at each once, whoever calls it.
 */
#ifndef SLUICE_LOOKUP_H
#define SLUICE_LOOKUP_H

#include "common/maps.h"

static __always_inline void *cell_at(__u32 index)
{
	return bpf_map_lookup_elem(&cells, &index);
}

#include "common/exact_match.h"
#include "common/lpm.h"

/* enum exact_answer of (vni, IPv4 address in host order). */
__attribute__((noinline)) int find_ipv4(__u32 vni, __u32 address, struct exact_hit *hit)
{
	const struct exact_root *root = cell_at(CELL_EXACT_ROOT);

	if (!root || !hit)
		return EXACT_MISS;
	return exact_find4(root, vni, address, hit);
}

/* enum exact_answer of (vni, IPv6 address as host-order halves). */
__attribute__((noinline)) int find_ipv6(__u32 vni, __u64 high, __u64 low, struct exact_hit *hit)
{
	const struct exact_root *root = cell_at(CELL_EXACT_ROOT);

	if (!root || !hit)
		return EXACT_MISS;
	return exact_find6(root, vni, high, low, hit);
}

/*
 * The VRF at `cell`, if it is this VNI's; else NULL, so for cell 0, which stands
 * for none. A cell that a link led to is read once and handed on: the link may
 * change at any time, what was read stays good until the packet is done with.
 */
static __always_inline struct vrf *vrf_at(__u32 cell, __u32 vni)
{
	struct vrf *vrf;

	cell &= CELL_INDEX_MASK;
	if (!cell)
		return NULL;
	vrf = cell_at(cell);
	return vrf && READ_ONCE(vrf->vni) == vni ? vrf : NULL;
}

/* The cell if it is a next hop of that kind. */
static __always_inline struct next_hop *next_hop_at(__u32 cell, __u8 kind)
{
	struct next_hop *hop = cell_at(cell);

	return hop && READ_ONCE(hop->kind) == kind ? hop : NULL;
}

#define INDEX_BUSY 0xffffffffu

/* The cell that (EXACT_INDEX, vni, id) leads to; 0: none; INDEX_BUSY. */
__attribute__((noinline)) __u32 find_index(__u32 vni, __u32 id)
{
	const struct exact_root *root = cell_at(CELL_EXACT_ROOT);
	__u32 cell = 0;

	if (!root)
		return 0;
	switch (exact_find_index(root, vni, id, &cell)) {
	case EXACT_HIT:
		return cell;
	case EXACT_BUSY:
		return INDEX_BUSY;
	default:
		return 0;
	}
}

/* The leaf for an address; 0: no route. */
__attribute__((noinline)) __u32 find_route4(__u64 root, __u32 address)
{
	return lpm_find4(root, address);
}

__attribute__((noinline)) __u32 find_route6(__u64 root, __u64 high, __u64 low)
{
	return lpm_find6(root, high, low);
}

#endif
