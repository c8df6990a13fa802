/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Reading the tables of cells.h from packet programs. The includer provides
 * cell_at(index): the cell, or NULL where the index is out of bounds. Nothing
 * here writes, loops without a bound, or calls a helper.
 */
#ifndef SLUICE_TABLES_H
#define SLUICE_TABLES_H

#include "cells.h"

#ifndef READ_ONCE
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#endif
/* READ_ONCE loads are taken in program order: volatile for the compiler, x86 TSO for the processor. */

/* How often a lookup starts again while the writer moves entries about. */
#define EXACT_RETRIES 4

struct exact_hit {
	__u64 mac;  /* as in EXACT_MAC_MASK */
	__u32 next; /* cell index */
};

enum exact_answer { EXACT_MISS, EXACT_HIT, EXACT_BUSY };

static __always_inline __u64 exact_mix(__u64 x, __u64 seed)
{
	x = (x ^ seed) * 0x9e3779b97f4a7c15ull;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	return x ^ (x >> 32);
}

/* address: host-order halves. Low 32 bits: the id of the key; top 16: the check beside the MAC. */
static __always_inline __u64 ipv6_digest(__u64 high, __u64 low, __u64 seed)
{
	return exact_mix(exact_mix(high, seed) ^ low, ~seed);
}

static __always_inline __u64 exact_key(__u64 kind, __u32 vni, __u32 id)
{
	return kind << EXACT_KIND_SHIFT | (__u64)vni << EXACT_VNI_SHIFT | id;
}

/* Searches one bucket. 1: found, with the raw value and next; 0: not here; -1: changed under us. */
static __always_inline int exact_scan(const struct exact_bucket *bucket, __u64 key, __u64 *value,
				      __u32 *next)
{
#pragma unroll
	for (int i = 0; i < EXACT_SLOTS; i++) {
		__u64 seen = READ_ONCE(bucket->key[i]);

		if ((seen & EXACT_KEY_MASK) != key)
			continue;
		*value = READ_ONCE(bucket->value[i]);
		*next = READ_ONCE(bucket->next[i]);
		return READ_ONCE(bucket->key[i]) == seen ? 1 : -1;
	}
	return 0;
}

/* Finds the raw entry of `key`. */
static __always_inline enum exact_answer exact_lookup(const struct exact_root *root, __u64 key,
						      __u64 *value, __u32 *next)
{
	__u64 hash = exact_mix(key, root->seed);

	for (int i = 0; i < EXACT_RETRIES; i++) {
		__u64 buckets = READ_ONCE(root->buckets);
		__u32 first = (__u32)buckets, count = buckets >> 32;
		__u32 one = ((hash & 0xffffffff) * count) >> 32;
		__u32 two = ((hash >> 32) * count) >> 32;
		const struct exact_bucket *a, *b;
		__u32 version;
		int found;

		if (two == one)
			two = one + 1 == count ? 0 : one + 1;
		a = (const struct exact_bucket *)cell_at(first + one);
		b = (const struct exact_bucket *)cell_at(first + two);
		if (!a || !b)
			return EXACT_MISS;
		version = READ_ONCE(a->version);
		found = exact_scan(a, key, value, next);
		if (!found)
			found = exact_scan(b, key, value, next);
		if (found > 0)
			return EXACT_HIT;
		if (!found && READ_ONCE(a->version) == version)
			return EXACT_MISS;
	}
	return EXACT_BUSY;
}

static __always_inline enum exact_answer exact_find4(const struct exact_root *root, __u32 vni,
						     __u32 address, struct exact_hit *hit)
{
	__u64 value = 0;
	__u32 next = 0;
	enum exact_answer answer =
		exact_lookup(root, exact_key(EXACT_IPV4, vni, address), &value, &next);

	hit->mac = value & EXACT_MAC_MASK;
	hit->next = next & CELL_INDEX_MASK;
	return answer;
}

static __always_inline enum exact_answer exact_find_index(const struct exact_root *root, __u32 vni,
							  __u32 id, __u32 *cell)
{
	__u64 value = 0;
	__u32 next = 0;
	enum exact_answer answer = exact_lookup(root, exact_key(EXACT_INDEX, vni, id), &value, &next);

	*cell = next & CELL_INDEX_MASK;
	return answer;
}

/* The conflict table: full keys, for the few addresses that share a digest within a VNI. */
static __always_inline enum exact_answer exact_conflict_find(const struct exact_root *root,
							     __u64 key, __u64 high, __u64 low,
							     struct exact_hit *hit)
{
	__u64 run = READ_ONCE(root->conflicts);
	__u32 first = (__u32)run, count = run >> 32;
	__u32 at = ((exact_mix(exact_mix(key ^ high, root->seed) ^ low, root->seed) >> 32) * count) >> 32;

	for (int i = 0; i < EXACT_CONFLICT_PROBES; i++) {
		const struct exact_conflict *entry = (const struct exact_conflict *)cell_at(first + at);
		__u64 seen;

		if (!entry || !count)
			return EXACT_MISS;
		seen = READ_ONCE(entry->key);
		if ((seen & EXACT_KEY_MASK) == key && READ_ONCE(entry->address[0]) == high &&
		    READ_ONCE(entry->address[1]) == low) {
			hit->mac = READ_ONCE(entry->value) & EXACT_MAC_MASK;
			hit->next = READ_ONCE(entry->next) & CELL_INDEX_MASK;
			/* A live entry never changes, so a changed one is not the one sought. */
			if (READ_ONCE(entry->key) == seen)
				return EXACT_HIT;
		}
		at = at + 1 == count ? 0 : at + 1;
	}
	return EXACT_MISS;
}

/* high, low: the address's halves in host order. */
static __always_inline enum exact_answer exact_find6(const struct exact_root *root, __u32 vni,
						     __u64 high, __u64 low, struct exact_hit *hit)
{
	__u64 digest = ipv6_digest(high, low, root->seed) & root->digest_mask;
	__u64 key = exact_key(EXACT_IPV6, vni, (__u32)digest);
	__u64 value = 0;
	__u32 next = 0;
	enum exact_answer answer = exact_lookup(root, key, &value, &next);

	if (answer != EXACT_HIT)
		return answer;
	if (next & EXACT_CONFLICT) {
		answer = exact_conflict_find(root, key, high, low, hit);
		if (answer != EXACT_MISS)
			return answer;
	}
	hit->mac = value & EXACT_MAC_MASK;
	hit->next = next & CELL_INDEX_MASK;
	return value >> EXACT_CHECK_SHIFT == digest >> EXACT_CHECK_SHIFT ? EXACT_HIT : EXACT_MISS;
}

/* The route words of one node along four bits of the address: the longest, or `best`. */
static __always_inline __u32 lpm_node_best(const __u32 *route, __u32 bits, __u32 best)
{
	__u32 leaf;

	if ((leaf = READ_ONCE(route[(8 | bits >> 1) & 15])))
		return leaf;
	if ((leaf = READ_ONCE(route[(4 | bits >> 2) & 7])))
		return leaf;
	if ((leaf = READ_ONCE(route[(2 | bits >> 3) & 3])))
		return leaf;
	leaf = READ_ONCE(route[1]);
	return leaf ? leaf : best;
}

static __always_inline __u32 lpm_trie_find(__u32 node, __u64 high, __u64 low, int strides)
{
	__u32 best = 0;

	for (int i = 0; i <= strides; i++) {
		const __u32 *child = (const __u32 *)cell_at(node);
		const __u32 *route = (const __u32 *)cell_at(node + 1);
		__u32 bits = high >> 60;

		if (!child || !route)
			break;
		best = lpm_node_best(route, bits, best);
		node = READ_ONCE(child[bits & 15]);
		if (!node)
			break;
		high = high << LPM_STRIDE | low >> 60;
		low <<= LPM_STRIDE;
	}
	return best;
}

static __always_inline __u32 lpm_scan4_find(__u32 first, __u32 address)
{
	for (int i = 0; i < (LPM_SCAN_MAX + LPM_SCAN4_PER_CELL - 1) / LPM_SCAN4_PER_CELL; i++) {
		const struct lpm_scan4 *entry = (const struct lpm_scan4 *)cell_at(first + i);

		if (!entry)
			return 0;
#pragma unroll
		for (int j = 0; j < LPM_SCAN4_PER_CELL; j++) {
			__u32 length = entry[j].length;

			if (!length)
				return 0;
			/* A shift by 32 - 0 is avoided by 64-bit arithmetic. */
			if (!(((__u64)(address ^ entry[j].address)) >> (33 - length)))
				return entry[j].leaf;
		}
	}
	return 0;
}

static __always_inline __u32 lpm_scan6_find(__u32 first, __u64 high, __u64 low)
{
	for (int i = 0; i < LPM_SCAN_MAX / LPM_SCAN6_PER_CELL; i++) {
		const struct lpm_scan6 *entry = (const struct lpm_scan6 *)cell_at(first + i);

		if (!entry)
			return 0;
#pragma unroll
		for (int j = 0; j < LPM_SCAN6_PER_CELL; j++) {
			__u32 length = entry[j].length;
			__u64 h, l;

			if (!length)
				return 0;
			length--;
			h = high ^ entry[j].address[0];
			l = low ^ entry[j].address[1];
			if (length == 0 || (length <= 64 && !(h >> (64 - length))) ||
			    (length > 64 && !h && !(l >> (128 - length))))
				return entry[j].leaf;
		}
	}
	return 0;
}

/* Longest prefix match of an IPv4 address in host order. 0: no route. */
static __always_inline __u32 lpm_find4(__u32 root, __u32 address)
{
	__u32 first = root & CELL_INDEX_MASK;

	if (root >> LPM_FORM_SHIFT == LPM_SCAN)
		return lpm_scan4_find(first, address);
	if (root >> LPM_FORM_SHIFT == LPM_TRIE)
		return lpm_trie_find(first, (__u64)address << 32, 0, 32 / LPM_STRIDE);
	return 0;
}

/* Longest prefix match of an IPv6 address, halves in host order. 0: no route. */
static __always_inline __u32 lpm_find6(__u32 root, __u64 high, __u64 low)
{
	__u32 first = root & CELL_INDEX_MASK;

	if (root >> LPM_FORM_SHIFT == LPM_SCAN)
		return lpm_scan6_find(first, high, low);
	if (root >> LPM_FORM_SHIFT == LPM_TRIE)
		return lpm_trie_find(first, high, low, 128 / LPM_STRIDE);
	return 0;
}

#endif
