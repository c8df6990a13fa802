/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Token buckets: how often something may be done that costs more than a packet. */
#ifndef SLUICE_TOKEN_BUCKET_H
#define SLUICE_TOKEN_BUCKET_H

#include <linux/types.h>

struct token_bucket {
	__u64 refilled_ns; /* CLOCK_MONOTONIC */
	__u64 tokens;
};

/* Takes a token, of which one is earned each `token_ns`, up to `burst`. False: there is none. */
static __always_inline int take_token(struct token_bucket *bucket, __u64 now_ns, __u64 token_ns,
				      __u64 burst)
{
	__u64 earned;

	if (now_ns > bucket->refilled_ns) {
		earned = (now_ns - bucket->refilled_ns) / token_ns;
		bucket->refilled_ns += earned * token_ns;
		bucket->tokens += earned;
		if (bucket->tokens > burst)
			bucket->tokens = burst;
	}
	if (!bucket->tokens)
		return 0;
	bucket->tokens -= 1;
	return 1;
}

#endif
