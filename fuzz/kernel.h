/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The kernel, as far as the gateway program sees it: maps, and helpers for a
 * packet that has a linear part and may have a part in fragments of memory.
 * Everything else is the program itself.
 *
 * A packet's addresses have 32 bits in struct xdp_md, so the linear part lives
 * below 4 GiB; what is not packet is poisoned there, so that AddressSanitizer
 * sees an access one byte off.
 */
#ifndef SLUICE_FUZZ_KERNEL_H
#define SLUICE_FUZZ_KERNEL_H

#include <sanitizer/asan_interface.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <bpf/bpf_helpers.h>

#define ARENA ((uint8_t *)0x20000000)
#define ARENA_BYTES (64 * 1024)
#define HEADROOM 256
#define LINEAR_MAX 3520
#define TAILROOM 320
#define PACKET_MAX 16384
#define XDP_FRAME_BYTES 40

static struct {
	struct xdp_md ctx;
	uint32_t linear_room; /* end of the linear part's memory */
	uint8_t beyond[PACKET_MAX]; /* what lies in fragments */
	uint32_t beyond_bytes;
	uint64_t now_ns;
	int fib_answer;
	uint32_t fib_ifindex;
} kernel;

static void poison(void)
{
	ASAN_UNPOISON_MEMORY_REGION(ARENA, ARENA_BYTES);
	ASAN_POISON_MEMORY_REGION(ARENA, (uint8_t *)(uintptr_t)kernel.ctx.data - ARENA);
	ASAN_POISON_MEMORY_REGION((uint8_t *)(uintptr_t)kernel.ctx.data_end,
				  ARENA + ARENA_BYTES - (uint8_t *)(uintptr_t)kernel.ctx.data_end);
}

/* A packet of which `linear` bytes are linear. */
static void receive(const uint8_t *bytes, uint32_t length, uint32_t linear)
{
	uint32_t data = (uint32_t)(uintptr_t)ARENA + HEADROOM;

	ASAN_UNPOISON_MEMORY_REGION(ARENA, ARENA_BYTES);
	memcpy((void *)(uintptr_t)data, bytes, linear);
	memcpy(kernel.beyond, bytes + linear, length - linear);
	kernel.beyond_bytes = length - linear;
	kernel.ctx.data = kernel.ctx.data_meta = data;
	kernel.ctx.data_end = data + linear;
	kernel.linear_room = data + LINEAR_MAX + TAILROOM;
	poison();
}

static uint32_t linear_bytes(void)
{
	return kernel.ctx.data_end - kernel.ctx.data;
}

long bpf_xdp_adjust_head(struct xdp_md *ctx, int delta)
{
	int64_t data = (int64_t)ctx->data + delta;

	if (data < (int64_t)(uintptr_t)ARENA + XDP_FRAME_BYTES || data > (int64_t)ctx->data_end - 14)
		return -22;
	ctx->data = ctx->data_meta = (uint32_t)data;
	poison();
	return 0;
}

long bpf_xdp_adjust_tail(struct xdp_md *ctx, int delta)
{
	int64_t end;

	if (kernel.beyond_bytes) {
		/* As the kernel: fragments shrink first; the fuzzer's have no room to grow. */
		if (delta >= 0)
			return -22;
		if ((uint32_t)-delta <= kernel.beyond_bytes) {
			kernel.beyond_bytes -= -delta;
			return 0;
		}
		delta += kernel.beyond_bytes;
		kernel.beyond_bytes = 0;
	}
	end = (int64_t)ctx->data_end + delta;
	if (end > kernel.linear_room || end < (int64_t)ctx->data + 14)
		return -22;
	ASAN_UNPOISON_MEMORY_REGION(ARENA, ARENA_BYTES);
	if (delta > 0)
		memset((void *)(uintptr_t)ctx->data_end, 0, delta);
	ctx->data_end = (uint32_t)end;
	poison();
	return 0;
}

__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx)
{
	return ctx->data_end - ctx->data + kernel.beyond_bytes;
}

long bpf_xdp_load_bytes(struct xdp_md *ctx, __u32 offset, void *to, __u32 length)
{
	uint32_t linear = linear_bytes(), total = linear + kernel.beyond_bytes, first = 0;

	if (!length)
		abort(); /* the verifier would not have let it through */
	if (offset > total || length > total - offset)
		return -22;
	if (offset < linear) {
		first = length < linear - offset ? length : linear - offset;
		memcpy(to, (void *)(uintptr_t)(ctx->data + offset), first);
		offset += first;
	}
	if (first < length)
		memcpy((uint8_t *)to + first, kernel.beyond + (offset - linear), length - first);
	return 0;
}

__s64 bpf_csum_diff(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __wsum seed)
{
	uint64_t sum = seed;

	if (from || from_size || to_size % 4 || to_size > 512)
		abort();
	for (uint32_t i = 0; i < to_size / 4; i++)
		sum += to[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (uint32_t)((sum & 0xffffffff) + (sum >> 32));
}

__u64 bpf_ktime_get_ns(void)
{
	return kernel.now_ns;
}

__u64 bpf_ktime_get_coarse_ns(void)
{
	return kernel.now_ns;
}

long bpf_redirect(__u32 ifindex, __u64 flags)
{
	return ifindex && !flags ? XDP_REDIRECT : XDP_ABORTED;
}

long bpf_fib_lookup(void *ctx, struct bpf_fib_lookup *params, int size, __u32 flags)
{
	static const uint8_t neighbour[6] = { 2, 0, 0, 0, 0xbb, 1 };

	if (!ctx || size != sizeof(*params) || flags)
		abort();
	if (kernel.fib_answer)
		return kernel.fib_answer;
	params->ifindex = kernel.fib_ifindex;
	memcpy(params->dmac, neighbour, sizeof(neighbour));
	return BPF_FIB_LKUP_RET_SUCCESS;
}

#endif
