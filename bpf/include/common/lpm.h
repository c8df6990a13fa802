/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Longest prefix match in the tables of cells.h: from a VRF's root word and an address to a leaf.
 *
 * Contract: the includer provides cell_at(index): the cell, or NULL if the index is out of bounds.
 * Addresses are in host order, IPv6 as halves. The lookups write nothing, call no helper, and have
 * bounded loops. lookup.h has them as functions of packet programs.
 */
#ifndef SLUICE_LPM_H
#define SLUICE_LPM_H

#include "common/atomic.h"
#include "layout/cells.h"

/* Lanes of 16 and 32 bits in a 64-bit word: the lowest bit of each, and all bits but the highest of each. */
#define LANES16 0x0001000100010001ull
#define LANES32 0x0000000100000001ull
#define LANE_REST16 0x7fff7fff7fff7fffull
#define LANE_REST32 0x7fffffff7fffffffull

/*
 * The lanes whose prefix matches `key`, marked by their highest bit. `one` has the lowest bit of each lane,
 * `rest` all bits but the highest. No lane is 0, so subtracting 1 from each lane borrows nothing from
 * the next.
 */
static __always_inline __u64 lpm_lanes(__u64 lanes, __u64 key, __u64 one, __u64 rest)
{
	__u64 differs = (lanes ^ key) & ~(lanes ^ (lanes - one));

	return ~(((differs & rest) + rest) | differs) & ~rest;
}

/*
 * Number of bits of `mask` below the lowest 1 of `found`. `mask` has up to four bits at the bottom of each
 * lane, `one` the lowest of them. BPF has no instruction that counts bits.
 */
static __always_inline __u64 lpm_before(__u64 found, __u64 one, __u64 mask)
{
	__u64 before = ((found & -found) - 1) & mask;

#ifdef __POPCNT__
	(void)one;
	return __builtin_popcountll(before);
#else
	/* In each lane, the n lowest bits are set: 2^n - 1 becomes n. */
	before -= (before >> 1 & one * 7) + (before >> 2 & one * 3) + (before >> 3 & one);
	return before * one >> (one == LANES16 ? 48 : 32);
#endif
}

/* The leaf for an address; `rest` has its bits from this bucket on, from the highest bit down. */
static __always_inline __u32 lpm_narrow_find(const struct lpm_narrow *node, __u64 rest)
{
	const __u64 *lanes = (const __u64 *)node->lane;
	__u64 key = (rest >> 48) * LANES16, found;

	found = lpm_lanes(lanes[0], key, LANES16, LANE_REST16) >> 15 |
		lpm_lanes(lanes[1], key, LANES16, LANE_REST16) >> 14 |
		lpm_lanes(lanes[2], key, LANES16, LANE_REST16) >> 13;
	/* Three bits at the bottom of each lane, the first entry lowest. */
	found = lpm_before(found, LANES16, LANES16 * 7);
	/* The cell has 16 words: the mask keeps the index within it. */
	return READ_ONCE(((const __u32 *)node)[(found + sizeof(node->lane) / 4) & 15]);
}

static __always_inline __u32 lpm_wide_find(const struct lpm_wide *node, __u64 rest)
{
	const __u64 *lanes = (const __u64 *)node->lane;
	__u64 key = (rest >> 32) * LANES32, found;

	found = lpm_lanes(lanes[0], key, LANES32, LANE_REST32) >> 31 |
		lpm_lanes(lanes[1], key, LANES32, LANE_REST32) >> 30 |
		lpm_lanes(lanes[2], key, LANES32, LANE_REST32) >> 29 |
		lpm_lanes(lanes[3], key, LANES32, LANE_REST32) >> 28;
	found = lpm_before(found, LANES32, LANES32 * 15) & LPM_WIDE_ROUTES;
	return READ_ONCE(node->leaf[found]);
}

static __always_inline __u32 lpm_long_find(const struct lpm_long *node, __u64 high, __u64 low)
{
	high = high << 1 | low >> 63;
	low <<= 1;
#pragma unroll
	for (int i = 0; i < LPM_LONG_ROUTES; i++) {
		__u64 h = node->high[i], l = node->low[i];
		/* Compares all bits above the marker, which is the lowest 1. */
		__u64 differs = l ? (h ^ high) | ((l ^ low) & ~(l ^ (l - 1))) : (h ^ high) & ~(h ^ (h - 1));

		if (!differs)
			return READ_ONCE(node->leaf[i]);
	}
	return READ_ONCE(node->leaf[LPM_LONG_ROUTES]);
}

/* Removes the first `depth` bits, 1 to 127, from an address. */
static __always_inline void lpm_shift(__u64 *high, __u64 *low, __u32 depth)
{
	if (depth >= 64) {
		*high = *low << (depth & 63);
		*low = 0;
	} else {
		*high = *high << depth | *low >> 1 >> (63 - depth);
		*low <<= depth;
	}
}

/*
 * Follows a root directory to the leaf. `high` and `low` have the address, of `width` bits, from the
 * highest bit down. A directory consumes at least LPM_STEP_BITS bits. A skip may consume one bit only, but a
 * directory is always behind it: so two steps consume at least LPM_STEP_BITS.
 */
#define LPM_STEP_BITS 2
static __always_inline __u32 lpm_directory_find(__u64 root, __u64 high, __u64 low, int width)
{
	__u32 bits = (root >> LPM_FORM_SHIFT) & 31, kind = 0;
	__u32 word = (__u32)root & CELL_INDEX_MASK, slot = high >> 1 >> (63 - bits);
	__u64 rest = high, rest_low = low;

	for (int i = 0; i < 2 * width / LPM_STEP_BITS; i++) {
		const __u32 *node = (const __u32 *)cell_at((word & CELL_INDEX_MASK) + (slot >> 4));

		if (!node)
			return 0;
		if (kind == LPM_NARROW)
			return lpm_narrow_find((const struct lpm_narrow *)node, rest);
		if (kind == LPM_WIDE)
			return lpm_wide_find((const struct lpm_wide *)node, rest);
		if (kind == LPM_LONG)
			return lpm_long_find((const struct lpm_long *)node, high, low);
		if (kind == LPM_SKIP) {
			const struct lpm_skip *skip = (const struct lpm_skip *)node;

			if ((high ^ skip->address[0]) & skip->mask[0] ||
			    (low ^ skip->address[1]) & skip->mask[1])
				return READ_ONCE(skip->inherited);
			rest = high;
			rest_low = low;
			lpm_shift(&rest, &rest_low, skip->depth & 127);
			word = READ_ONCE(skip->directory);
		} else {
			word = READ_ONCE(node[slot & 15]);
			rest = rest << bits | rest_low >> (64 - bits);
			rest_low <<= bits;
		}
		kind = word >> LPM_KIND_SHIFT;
		if (kind < LPM_SKIP)
			return word;
		slot = 0;
		if (kind >= LPM_DIRECTORY2) {
			bits = 1 << (kind - LPM_DIRECTORY2 + 1);
			slot = rest >> (64 - bits);
		}
	}
	return 0;
}

static __always_inline __u32 lpm_scan4_find(__u32 first, __u32 address)
{
	for (int i = 0; i < LPM_SCAN4_CELLS; i++) {
		const struct lpm_scan4 *list = (const struct lpm_scan4 *)cell_at(first + i);

		if (!list)
			return 0;
#pragma unroll
		for (int j = 0; j < LPM_SCAN4_ROUTES; j++) {
			__u32 length = list->length[j];

			if (!length)
				return 0;
			/* A shift by 32 - 0 is avoided by 64-bit arithmetic. */
			if (!(((__u64)(address ^ list->address[j])) >> (33 - length)))
				return list->leaf[j];
		}
	}
	return 0;
}

static __always_inline __u32 lpm_scan6_find(__u32 first, __u64 high, __u64 low)
{
	for (int i = 0; i < LPM_SCAN6_CELLS; i++) {
		const struct lpm_scan6 *list = (const struct lpm_scan6 *)cell_at(first + i);

		if (!list)
			return 0;
#pragma unroll
		for (int j = 0; j < LPM_SCAN6_ROUTES; j++) {
			__u32 length = list->length[j];
			__u64 h, l;

			if (!length)
				return 0;
			length--;
			h = high ^ list->high[j];
			l = low ^ list->low[j];
			if (length == 0 || (length <= 64 && !(h >> (64 - length))) ||
			    (length > 64 && !h && !(l >> (128 - length))))
				return list->leaf[j];
		}
	}
	return 0;
}

/* Longest prefix match of an IPv4 address in host order. 0: no route. */
static __always_inline __u32 lpm_find4(__u64 root, __u32 address)
{
	if (!root)
		return 0;
	if (root >> LPM_FORM_SHIFT == LPM_SCAN)
		return lpm_scan4_find((__u32)root & CELL_INDEX_MASK, address);
	return lpm_directory_find(root, (__u64)address << 32, 0, 32);
}

/* Longest prefix match of an IPv6 address, halves in host order. 0: no route. */
static __always_inline __u32 lpm_find6(__u64 root, __u64 high, __u64 low)
{
	if (!root)
		return 0;
	if (root >> LPM_FORM_SHIFT == LPM_SCAN)
		return lpm_scan6_find((__u32)root & CELL_INDEX_MASK, high, low);
	return lpm_directory_find(root, high, low, 128);
}

#endif
