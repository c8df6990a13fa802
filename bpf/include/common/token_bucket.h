/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Token buckets that limit how often a program does what costs more than forwarding a packet.
 *
 * Contract: a bucket belongs to one CPU, so there are no atomic accesses. Calls no helper and uses no
 * map.
 */
#ifndef SLUICE_TOKEN_BUCKET_H
#define SLUICE_TOKEN_BUCKET_H

#include <linux/types.h>

#define NS_PER_SECOND 1000000000ull

struct token_bucket {
	__u64 refilled_ns; /* CLOCK_MONOTONIC */
	__u64 tokens;
};

/* Adds the tokens that the bucket has gained: one every `token_ns`, up to `burst`. */
static __always_inline void refill_tokens(struct token_bucket *bucket, __u64 now_ns, __u64 token_ns,
					  __u64 burst)
{
	__u64 earned;

	if (now_ns <= bucket->refilled_ns)
		return;
	earned = (now_ns - bucket->refilled_ns) / token_ns;
	bucket->refilled_ns += earned * token_ns;
	bucket->tokens += earned;
	if (bucket->tokens > burst)
		bucket->tokens = burst;
}

/* Takes a token. The bucket gains one every `token_ns`, up to `burst`. False: the bucket is empty. */
static __always_inline int take_token(struct token_bucket *bucket, __u64 now_ns, __u64 token_ns, __u64 burst)
{
	refill_tokens(bucket, now_ns, token_ns, burst);
	if (!bucket->tokens)
		return 0;
	bucket->tokens -= 1;
	return 1;
}

#endif
