/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Lookups in the tables of cells.h, in the map `cells`.
 *
 * Contract: addresses are in host order, IPv6 as halves. Lookups that are not inlined exist once, so that
 * the verifier processes each of them once and not for every caller. Nothing is written.
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

/* Finds an IPv4 address in a VNI; VNI 0 is the underlay. */
__attribute__((noinline)) enum exact_answer find_ipv4(__u32 vni, __u32 address, struct exact_hit *hit)
{
	const struct exact_root *root = cell_at(CELL_EXACT_ROOT);

	if (!root || !hit)
		return EXACT_MISS;
	return exact_find4(root, vni, address, hit);
}

/* Finds an IPv6 address in a VNI; VNI 0 is the underlay. */
__attribute__((noinline)) enum exact_answer find_ipv6(__u32 vni, __u64 high, __u64 low, struct exact_hit *hit)
{
	const struct exact_root *root = cell_at(CELL_EXACT_ROOT);

	if (!root || !hit)
		return EXACT_MISS;
	return exact_find6(root, vni, high, low, hit);
}

/*
 * The VRF in `cell`, or NULL if it is not this VNI's. Cell 0 is never a VRF. Callers read a link once and
 * pass the cell on: the link may change at any time, but the cell that it referred to keeps its content
 * until the program ends.
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

/* On a host: the first cell of the VRF's struct group. 0: none. */
static __always_inline __u32 vrf_group(const struct vrf *vrf)
{
	return READ_ONCE(vrf->by_role);
}

/* On a gateway: bytes per period from which a flow of the VRF is an elephant. 0: the flow table's threshold. */
static __always_inline __u32 vrf_elephant_bytes(const struct vrf *vrf)
{
	return READ_ONCE(vrf->by_role);
}

/* On a host: as vrf_elephant_bytes() on a gateway. */
static __always_inline __u32 vrf_sent_elephant_bytes(const struct vrf *vrf)
{
	__u32 code = READ_ONCE(vrf->flags) >> VRF_ELEPHANT_SHIFT;

	if (code == VRF_ELEPHANT_NEVER)
		return ELEPHANT_NEVER;
	return (code & ((1 << VRF_ELEPHANT_BITS) - 1)) << (code >> VRF_ELEPHANT_BITS);
}

/* The next hop in `cell`, or NULL if it is not of this kind. */
static __always_inline struct next_hop *next_hop_at(__u32 cell, __u8 kind)
{
	struct next_hop *hop = cell_at(cell);

	return hop && READ_ONCE(hop->kind) == kind ? hop : NULL;
}

/* On a gateway: the route to a peer in `cell`, or NULL if the cell has another kind of entry. */
static __always_inline struct peering *peering_at(__u32 cell)
{
	struct peering *peering = cell_at(cell);

	return peering && READ_ONCE(peering->kind) == NEXT_HOP_PEERING ? peering : NULL;
}

#define INDEX_BUSY 0xffffffffu

/* The cell that (EXACT_INDEX, vni, id) refers to. 0: the table has no such entry; INDEX_BUSY: as EXACT_BUSY. */
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

/* Whether the node with this underlay address may send in the VNI: exact_find_sender(). */
__attribute__((noinline)) enum exact_answer find_sender(__u32 vni, __u32 ipv6, __u64 high, __u64 low,
							struct exact_sender *sender)
{
	const struct exact_root *root = cell_at(CELL_EXACT_ROOT);

	if (!root || !sender)
		return EXACT_MISS;
	return exact_find_sender(root, vni, ipv6, high, low, sender);
}

/* The leaf of the longest route for an IPv4 address. 0: no route. */
__attribute__((noinline)) __u32 find_route4(__u64 root, __u32 address)
{
	return lpm_find4(root, address);
}

/* The leaf of the longest route for an IPv6 address. 0: no route. */
__attribute__((noinline)) __u32 find_route6(__u64 root, __u64 high, __u64 low)
{
	return lpm_find6(root, high, low);
}

/* On a gateway: the cell of the VPC's struct internet. 0: the VPC has no public address. */
static __always_inline __u32 vrf_internet(const struct vrf *vrf)
{
	return READ_ONCE(vrf->group_id);
}

/* The public prefix in `cell`. NULL: the cell has another kind of entry. */
static __always_inline struct public_prefix *public_prefix_at(__u32 cell)
{
	struct public_prefix *public = cell_at(cell);

	return public && READ_ONCE(public->kind) == NEXT_HOP_PUBLIC ? public : NULL;
}

/* The cell of the struct public_prefix that a leaf leads to. 0: it leads to none. */
static __always_inline __u32 public_cell(__u32 leaf)
{
	return leaf >> LEAF_SCOPE_SHIFT == SCOPE_PUBLIC ? leaf & LEAF_ARGUMENT_MASK : 0;
}

/* On a gateway: the cell of the VRF whose routes are the public addresses. 0: the node has none; INDEX_BUSY: as EXACT_BUSY. */
static __always_inline __u32 find_public_vrf(void)
{
	return find_index(0, 0);
}

/*
 * The cell of the struct public_prefix whose outside addresses include this one. `vrf_cell` is of find_public_vrf(). 0: it is no
 * public address of the cluster; INDEX_BUSY: as EXACT_BUSY.
 */
static __always_inline __u32 find_public4(__u32 vrf_cell, __u32 address)
{
	const struct vrf *vrf;

	if (vrf_cell == INDEX_BUSY)
		return INDEX_BUSY;
	vrf = vrf_at(vrf_cell, 0);
	return vrf ? public_cell(find_route4(READ_ONCE(vrf->lpm4), address)) : 0;
}

/* As find_public4() for an IPv6 address. */
static __always_inline __u32 find_public6(__u32 vrf_cell, __u64 high, __u64 low)
{
	const struct vrf *vrf;

	if (vrf_cell == INDEX_BUSY)
		return INDEX_BUSY;
	vrf = vrf_at(vrf_cell, 0);
	return vrf ? public_cell(find_route6(READ_ONCE(vrf->lpm6), high, low)) : 0;
}

/* On a gateway: the Internet side of a VPC, or NULL if it has none. */
static __always_inline const struct internet *internet_of(const struct vrf *vrf)
{
	__u32 cell = vrf_internet(vrf);
	const struct internet *internet;

	if (!cell)
		return NULL;
	internet = cell_at(cell);
	return internet && READ_ONCE(internet->kind) == NEXT_HOP_INTERNET ? internet : NULL;
}

/* On a gateway: the NAT gateway in `cell`. NULL: the cell has another kind of entry. */
static __always_inline const struct nat_gateway *nat_gateway_at(__u32 cell)
{
	const struct nat_gateway *gateway = cell_at(cell);

	return gateway && READ_ONCE(gateway->kind) == NEXT_HOP_NAT ? gateway : NULL;
}

/*
 * The NAT64 prefix of the NAT gateway in `cell`, as halves of which the lower one has no IPv4 address. NULL: it has none. A cell behind
 * the first one is as constant as that.
 */
static __always_inline const __u64 *nat64_prefix(const struct nat_gateway *gateway, __u32 cell)
{
	const struct nat_addresses *behind;

	if (!(gateway->flags & NAT_GATEWAY_64))
		return NULL;
	behind = cell_at(cell + 1);
	return behind ? behind->prefix64 : NULL;
}

/*
 * On a gateway: the cell of the struct public_prefix whose inside addresses, which are the VPC's own, include this one.
 * 0: the address has no public address.
 */
static __always_inline __u32 find_public_source4(const struct vrf *vrf, __u32 address)
{
	const struct internet *internet = internet_of(vrf);

	return internet ? public_cell(find_route4(READ_ONCE(internet->sources4), address)) : 0;
}

/* As find_public_source4() for an IPv6 address. */
static __always_inline __u32 find_public_source6(const struct vrf *vrf, __u64 high, __u64 low)
{
	const struct internet *internet = internet_of(vrf);

	return internet ? public_cell(find_route6(READ_ONCE(internet->sources6), high, low)) : 0;
}

#endif
