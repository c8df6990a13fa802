/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The Internet checksum over a part of the packet, for transport checksums.
 *
 * Contract: the includer satisfies context.h. The part may be in fragments and of any length. The
 * packet is not changed. Uses the map `sum_chunks`.
 */
#ifndef SLUICE_PACKET_SUM_H
#define SLUICE_PACKET_SUM_H

#include "common/checksum.h"
#include "common/context.h"

/* Bytes that are summed by one helper call. The helper takes at most 512. */
#define SUM_CHUNK 256
/* No sum has this value: a sum is folded to 32 bits. */
#define SUM_FAILED 0xffffffffffffffffull

struct sum_chunk {
	__u64 words[SUM_CHUNK / 8];
};

/* A copy of the part that is being summed: memory per CPU, because it is too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sum_chunk);
} sum_chunks SEC(".maps");

/* Sum of `length` bytes from `offset` of the packet; SUM_FAILED if they are not there. */
__attribute__((noinline)) __u64 packet_sum(program_context *ctx, __u32 offset, __u32 length)
{
	__u32 zero = 0, sum = 0;
	struct sum_chunk *chunk = bpf_map_lookup_elem(&sum_chunks, &zero);

	if (!chunk)
		return SUM_FAILED;
	for (int i = 0; i < 65536 / SUM_CHUNK; i++) {
		if (length < SUM_CHUNK)
			break;
		if (context_load(ctx, offset, chunk, SUM_CHUNK))
			return SUM_FAILED;
		sum = bpf_csum_diff(0, 0, (__be32 *)chunk, SUM_CHUNK, sum);
		offset += SUM_CHUNK;
		length -= SUM_CHUNK;
	}
	if (!length || length >= SUM_CHUNK)
		return length ? SUM_FAILED : sum;
	__builtin_memset(chunk, 0, sizeof(*chunk));
	/* The verifier of Linux 6.1 does not learn from a comparison with zero that a number is not zero. */
	length -= 1;
	asm volatile("" : "+r"(length));
	if (context_load(ctx, offset, chunk, (length & (SUM_CHUNK - 1)) + 1))
		return SUM_FAILED;
	return (__u32)bpf_csum_diff(0, 0, (__be32 *)chunk, SUM_CHUNK, sum);
}

#endif
