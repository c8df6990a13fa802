/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What libbpf's header of this name declares, for programs compiled natively:
 * the kernel's side of the boundary is in kernel.h.
 */
#ifndef SLUICE_FUZZ_BPF_HELPERS_H
#define SLUICE_FUZZ_BPF_HELPERS_H

#include <stddef.h>
#include <string.h>
#include <linux/bpf.h>
#include <linux/types.h>

#define SEC(name)
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

void *bpf_map_lookup_elem(void *map, const void *key);
long bpf_map_update_elem(void *map, const void *key, const void *value, __u64 flags);
__u64 bpf_ktime_get_ns(void);
__u64 bpf_ktime_get_coarse_ns(void);
long bpf_xdp_adjust_head(struct xdp_md *ctx, int delta);
long bpf_xdp_adjust_tail(struct xdp_md *ctx, int delta);
__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx);
long bpf_xdp_load_bytes(struct xdp_md *ctx, __u32 offset, void *to, __u32 length);
__s64 bpf_csum_diff(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __wsum seed);
long bpf_redirect(__u32 ifindex, __u64 flags);
long bpf_fib_lookup(void *ctx, struct bpf_fib_lookup *params, int size, __u32 flags);

#endif
