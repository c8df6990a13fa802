/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Exact match in the tables of cells.h: (VNI, address) to MAC address and cell, (VNI, number) to cell.
 *
 * Contract: the includer provides cell_at(index): the cell, or NULL if the index is out of bounds.
 * Addresses are in host order, IPv6 as halves. The lookups write nothing, call no helper, and have
 * bounded loops. lookup.h has them as functions of packet programs.
 */
#ifndef SLUICE_EXACT_MATCH_H
#define SLUICE_EXACT_MATCH_H

#include "common/atomic.h"
#include "common/hash.h"
#include "layout/cells.h"

/* READ_ONCE loads are executed in program order: volatile for the compiler, x86 TSO for the processor. */

/* How often a lookup starts again because the writer moved entries. */
#define EXACT_RETRIES 4

struct exact_hit {
	__u64 mac;  /* as in EXACT_MAC_MASK */
	__u32 next; /* index of the cell that the entry refers to */
};

enum exact_answer {
	EXACT_MISS,
	EXACT_HIT,
	EXACT_BUSY, /* the writer changed the table too often: neither found nor missing */
};

/*
 * Digest of an IPv6 address. Its low 32 bits are the id of the key, its high 16 bits the check next to
 * the MAC address. Tenants choose addresses, so the sum is NH (RFC 4418 section 5.2.2): without the
 * seed, the probability that two chosen addresses have the same sum is at most 2^-32. The mixer
 * then spreads the sum over all bits.
 */
static __always_inline __u64 ipv6_digest(__u64 high, __u64 low, __u64 seed)
{
	__u64 other = ~seed * 0x9e3779b97f4a7c15ull;
	__u64 sum = (__u64)(__u32)(high + seed) * (__u32)((high >> 32) + (seed >> 32)) +
		    (__u64)(__u32)(low + other) * (__u32)((low >> 32) + (other >> 32));

	return exact_mix(sum, seed);
}

static __always_inline __u64 exact_key(__u64 kind, __u32 vni, __u32 id)
{
	return kind << EXACT_KIND_SHIFT | (__u64)vni << EXACT_VNI_SHIFT | id;
}

/* Searches one bucket. EXACT_BUSY: the entry changed while it was read. */
static __always_inline enum exact_answer exact_scan(const struct exact_bucket *bucket, __u64 key,
						    __u64 *value, __u32 *next)
{
#pragma unroll
	for (int i = 0; i < EXACT_SLOTS; i++) {
		__u64 seen = READ_ONCE(bucket->key[i]);

		if ((seen & EXACT_KEY_MASK) != key)
			continue;
		*value = READ_ONCE(bucket->value[i]);
		*next = READ_ONCE(bucket->next[i]);
		return READ_ONCE(bucket->key[i]) == seen ? EXACT_HIT : EXACT_BUSY;
	}
	return EXACT_MISS;
}

/* Finds the entry of `key`; `value` and `next` are its words as stored. */
static __always_inline enum exact_answer exact_lookup(const struct exact_root *root, __u64 key, __u64 *value,
						      __u32 *next)
{
	__u64 hash = exact_mix(key, root->seed);

	for (int i = 0; i < EXACT_RETRIES; i++) {
		__u64 buckets = READ_ONCE(root->buckets);
		__u32 first = (__u32)buckets, count = buckets >> 32;
		__u32 one = ((hash & 0xffffffff) * count) >> 32;
		__u32 two = ((hash >> 32) * count) >> 32;
		const struct exact_bucket *a, *b;
		__u32 version;
		enum exact_answer found;

		if (two == one)
			two = one + 1 == count ? 0 : one + 1;
		a = (const struct exact_bucket *)cell_at(first + one);
		b = (const struct exact_bucket *)cell_at(first + two);
		if (!a || !b)
			return EXACT_MISS;
		version = READ_ONCE(a->version);
		found = exact_scan(a, key, value, next);
		if (found == EXACT_MISS)
			found = exact_scan(b, key, value, next);
		if (found == EXACT_HIT)
			return EXACT_HIT;
		if (found == EXACT_MISS && READ_ONCE(a->version) == version)
			return EXACT_MISS;
	}
	return EXACT_BUSY;
}

/* 1 if the slot has the key, otherwise 0. Hidden from the compiler, which would make a branch of it. */
static __always_inline __u64 exact_slot_has(__u64 seen, __u64 key)
{
	__u64 has = (((seen ^ key) & EXACT_KEY_MASK) - 1) >> 63;

	asm volatile("" : "+r"(has));
	return has;
}

/* The two buckets of a key. */
struct exact_pair {
	__u32 first; /* their cells */
	__u32 second;
	const struct exact_bucket *a;
	const struct exact_bucket *b;
};

/* Finds the two buckets of a key. False: the tables are damaged. */
static __always_inline int exact_find_pair(const struct exact_root *root, __u64 key, struct exact_pair *pair)
{
	__u64 hash = exact_mix(key, root->seed), buckets = READ_ONCE(root->buckets);
	__u32 first = (__u32)buckets, count = buckets >> 32;
	__u32 one = ((hash & 0xffffffff) * count) >> 32, two = ((hash >> 32) * count) >> 32;

	if (two == one)
		two = one + 1 == count ? 0 : one + 1;
	pair->first = first + one;
	pair->second = first + two;
	pair->a = (const struct exact_bucket *)cell_at(pair->first);
	pair->b = (const struct exact_bucket *)cell_at(pair->second);
	return pair->a && pair->b;
}

/*
 * Reads the entry of `key` from its buckets, if the writer is not changing it. False says nothing about the table:
 * exact_lookup() searches as often as that takes. Without branches that depend on the slot: no branch predictor can
 * guess that of a random key, and a wrong guess takes longer than all of this.
 */
static __always_inline int exact_read_entry(const struct exact_pair *pair, __u64 key, __u64 *value,
					    __u32 *next)
{
	__u64 a1 = exact_slot_has(READ_ONCE(pair->a->key[1]), key);
	__u64 a2 = exact_slot_has(READ_ONCE(pair->a->key[2]), key);
	__u64 a = exact_slot_has(READ_ONCE(pair->a->key[0]), key) | a1 | a2;
	__u64 b1 = exact_slot_has(READ_ONCE(pair->b->key[1]), key);
	__u64 b2 = exact_slot_has(READ_ONCE(pair->b->key[2]), key);
	__u64 slot = (a1 | b1) + 2 * (a2 | b2);
	const struct exact_bucket *bucket = (const struct exact_bucket *)cell_at(
		pair->second ^ ((pair->first ^ pair->second) & -(__u32)a));
	__u64 seen;

	/* While the writer moves the entry, both buckets may have it, in different slots. */
	if (!bucket || slot >= EXACT_SLOTS)
		return 0;
	seen = READ_ONCE(bucket->key[slot]);
	*value = READ_ONCE(bucket->value[slot]);
	*next = READ_ONCE(bucket->next[slot]);
	return (seen & EXACT_KEY_MASK) == key && READ_ONCE(bucket->key[slot]) == seen;
}

/* The key of an IPv6 address. `check` is the check of its digest. */
static __always_inline __u64 exact_key6(const struct exact_root *root, __u32 vni, __u64 high, __u64 low,
					__u64 *check)
{
	__u64 digest = ipv6_digest(high, low, root->seed) & root->digest_mask;

	*check = digest >> EXACT_CHECK_SHIFT;
	return exact_key(EXACT_IPV6, vni, (__u32)digest);
}

/* Whether an entry is that of an address with this check, 0 for IPv4. If others have its digest, it may not be. */
static __always_inline int exact_is_address(__u64 value, __u32 next, __u64 check)
{
	return !(next & EXACT_CONFLICT) && value >> EXACT_CHECK_SHIFT == check;
}

/* As exact_read_entry(), for a key whose buckets were not found before. */
static __always_inline int exact_find_entry(const struct exact_root *root, __u64 key, __u64 *value,
					    __u32 *next)
{
	struct exact_pair pair;

	return exact_find_pair(root, key, &pair) && exact_read_entry(&pair, key, value, next);
}

static __always_inline enum exact_answer exact_find4(const struct exact_root *root, __u32 vni, __u32 address,
						     struct exact_hit *hit)
{
	__u64 value = 0;
	__u32 next = 0;
	enum exact_answer answer = exact_lookup(root, exact_key(EXACT_IPV4, vni, address), &value, &next);

	hit->mac = value & EXACT_MAC_MASK;
	hit->next = next & CELL_INDEX_MASK;
	return answer;
}

static __always_inline enum exact_answer exact_find_index(const struct exact_root *root, __u32 vni, __u32 id,
							  __u32 *cell)
{
	__u64 value = 0;
	__u32 next = 0;
	enum exact_answer answer = exact_lookup(root, exact_key(EXACT_INDEX, vni, id), &value, &next);

	*cell = next & CELL_INDEX_MASK;
	return answer;
}

/* Searches the conflict table: full keys, for the few addresses that share a digest within a VNI. */
static __always_inline enum exact_answer exact_conflict_find(const struct exact_root *root, __u64 key,
							     __u64 high, __u64 low, struct exact_hit *hit)
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
			/* A live entry never changes. A changed one is another entry. */
			if (READ_ONCE(entry->key) == seen)
				return EXACT_HIT;
		}
		at = at + 1 == count ? 0 : at + 1;
	}
	return EXACT_MISS;
}

static __always_inline enum exact_answer exact_find6(const struct exact_root *root, __u32 vni, __u64 high,
						     __u64 low, struct exact_hit *hit)
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

/* What the entry of a sender leads to. */
struct exact_sender {
	__u32 vrf; /* cell of the VNI's VRF; 0: it is not known here */
	__u32 hop; /* cell of the node's struct next_hop; that of another node if both have the same id (SENDER_ANY) */
};

/*
 * Finds out whether the node with this underlay address may send in the VNI (EXACT_INDEX in cells.h). The
 * address is halves in host order; IPv4 is in `low`. If it may, `sender` is filled in. An address that is
 * not in the table is mistaken for one with a probability of 2^-51 for each IPv6 VTEP of the VNI, if it was not chosen
 * with regard to that one (ipv6_digest()).
 */
static __always_inline enum exact_answer exact_find_sender(const struct exact_root *root, __u32 vni,
							   __u32 ipv6, __u64 high, __u64 low,
							   struct exact_sender *sender)
{
	__u64 value = 0, check = SENDER_IPV4;
	__u32 next = 0, id = low;
	enum exact_answer answer;

	if (ipv6) {
		__u64 digest = ipv6_digest(high, low, root->seed) & root->digest_mask;

		id = digest;
		check = (digest >> 16 & SENDER_CHECK_MASK) | SENDER_IPV6;
	}
	answer = exact_lookup(root, exact_key(EXACT_INDEX, vni, id ? id : 1), &value, &next);
	if (answer != EXACT_HIT)
		return answer;
	sender->vrf = value & CELL_INDEX_MASK;
	sender->hop = next & CELL_INDEX_MASK;
	value &= SENDER_CHECK_MASK;
	return value == check || value == SENDER_ANY ? EXACT_HIT : EXACT_MISS;
}

#endif
