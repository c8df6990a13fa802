/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The packet that a program got, behind one interface for XDP (struct xdp_md) and tc (struct
 * __sk_buff), so that parsers and checksums are written once.
 *
 * Contract: the includer defines PROGRAM_XDP or PROGRAM_TC before its first include. A packet has a
 * linear part, between context_data() and context_end(), which programs access by pointers (cursor.h),
 * and perhaps more in fragments, which only context_load() reaches. Both addresses are invalid after
 * any helper that moves or resizes the packet, and are asked for again. Uses no map.
 */
#ifndef SLUICE_CONTEXT_H
#define SLUICE_CONTEXT_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#if defined(PROGRAM_XDP)
typedef struct xdp_md program_context;
#elif defined(PROGRAM_TC)
typedef struct __sk_buff program_context;
#else
#error "define PROGRAM_XDP or PROGRAM_TC before the first include"
#endif

/* The first byte of the linear part. */
static __always_inline void *context_data(const program_context *ctx)
{
	return (void *)(long)ctx->data;
}

/* The byte behind the linear part. */
static __always_inline void *context_end(const program_context *ctx)
{
	return (void *)(long)ctx->data_end;
}

/* Length of the packet in bytes, fragments included. */
static __always_inline __u32 context_bytes(program_context *ctx)
{
#ifdef PROGRAM_XDP
	return bpf_xdp_get_buff_len(ctx);
#else
	return ctx->len;
#endif
}

/*
 * Copies `bytes` (at least 1) from `offset` of the packet, linear or not. 0, or negative if they are not
 * there.
 */
static __always_inline long context_load(program_context *ctx, __u32 offset, void *to, __u32 bytes)
{
#ifdef PROGRAM_XDP
	return bpf_xdp_load_bytes(ctx, offset, to, bytes);
#else
	return bpf_skb_load_bytes(ctx, offset, to, bytes);
#endif
}

#endif
