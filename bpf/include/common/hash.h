/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The mixing function of the hashes of tables and frames.
 *
 * Contract: a pure function, which crates/tables repeats in Rust: a change of it changes the layout of
 * the tables.
 */
#ifndef SLUICE_HASH_H
#define SLUICE_HASH_H

#include <linux/types.h>

static __always_inline __u64 exact_mix(__u64 x, __u64 seed)
{
	x = (x ^ seed) * 0x9e3779b97f4a7c15ull;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	return x ^ (x >> 32);
}

#endif
