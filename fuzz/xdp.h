/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The model of the kernel's helpers for XDP programs. */
#ifndef SLUICE_FUZZ_XDP_H
#define SLUICE_FUZZ_XDP_H

#include "kernel.h"

#define LINEAR_MAX 3520
#define TAILROOM 320
#define XDP_FRAME_BYTES 40

static struct {
	struct xdp_md ctx;
	uint32_t linear_end; /* end of the memory that the linear part may grow into */
	int fib_answer;
	uint32_t fib_ifindex;
	uint32_t redirected; /* interface that the packet is sent by; 0: by the one that it came in by */
} xdp;

/* Receives a packet whose first `linear` bytes are linear. */
static void receive(const uint8_t *bytes, uint32_t length, uint32_t linear)
{
	xdp.ctx.data = xdp.ctx.data_meta = lay_out(bytes, length, linear);
	xdp.ctx.data_end = xdp.ctx.data + linear;
	xdp.linear_end = xdp.ctx.data + LINEAR_MAX + TAILROOM;
	xdp.redirected = 0;
}

static uint32_t linear_bytes(void)
{
	return xdp.ctx.data_end - xdp.ctx.data;
}

long bpf_xdp_adjust_head(struct xdp_md *ctx, int delta)
{
	int64_t data = (int64_t)ctx->data + delta;

	if (data < (int64_t)(uintptr_t)ARENA + XDP_FRAME_BYTES || data > (int64_t)ctx->data_end - 14)
		return -22;
	ctx->data = ctx->data_meta = (uint32_t)data;
	poison(ctx->data, ctx->data_end);
	return 0;
}

long bpf_xdp_adjust_tail(struct xdp_md *ctx, int delta)
{
	int64_t end;

	if (kernel.fragment_bytes) {
		/* Like the kernel: fragments shrink first. The fragments of this model cannot grow. */
		if (delta >= 0)
			return -22;
		if ((uint32_t)-delta <= kernel.fragment_bytes) {
			kernel.fragment_bytes -= -delta;
			return 0;
		}
		delta += kernel.fragment_bytes;
		kernel.fragment_bytes = 0;
	}
	end = (int64_t)ctx->data_end + delta;
	if (end > xdp.linear_end || end < (int64_t)ctx->data + 14)
		return -22;
	ASAN_UNPOISON_MEMORY_REGION(ARENA, ARENA_BYTES);
	if (delta > 0)
		memset((void *)(uintptr_t)ctx->data_end, 0, delta);
	ctx->data_end = (uint32_t)end;
	poison(ctx->data, ctx->data_end);
	return 0;
}

__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx)
{
	return ctx->data_end - ctx->data + kernel.fragment_bytes;
}

long bpf_xdp_load_bytes(struct xdp_md *ctx, __u32 offset, void *to, __u32 length)
{
	return load_bytes(ctx->data, linear_bytes(), offset, to, length);
}

long bpf_xdp_store_bytes(struct xdp_md *ctx, __u32 offset, void *from, __u32 length)
{
	uint32_t linear = linear_bytes(), total = linear + kernel.fragment_bytes, first = 0;

	if (!length)
		abort();
	if (offset > total || length > total - offset)
		return -22;
	if (offset < linear) {
		first = length < linear - offset ? length : linear - offset;
		memcpy((void *)(uintptr_t)(ctx->data + offset), from, first);
		offset += first;
	}
	if (first < length)
		memcpy(kernel.fragments + (offset - linear), (uint8_t *)from + first, length - first);
	return 0;
}

long bpf_redirect(__u32 ifindex, __u64 flags)
{
	xdp.redirected = ifindex;
	return ifindex && !flags ? XDP_REDIRECT : XDP_ABORTED;
}

long bpf_fib_lookup(void *ctx, struct bpf_fib_lookup *params, int size, __u32 flags)
{
	static const uint8_t neighbor[6] = { 2, 0, 0, 0, 0xbb, 1 };

	if (!ctx || size != sizeof(*params) || flags)
		abort();
	if (xdp.fib_answer)
		return xdp.fib_answer;
	params->ifindex = xdp.fib_ifindex;
	/* As the kernel does, if it was told a length. */
	if (params->tot_len)
		params->mtu_result = 1500;
	memcpy(params->dmac, neighbor, sizeof(neighbor));
	return BPF_FIB_LKUP_RET_SUCCESS;
}

#endif
