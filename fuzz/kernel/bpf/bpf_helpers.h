/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Replaces libbpf's header of this name for programs that are compiled natively.
 * kernel.h, xdp.h and skb.h implement the helpers.
 */
#ifndef SLUICE_FUZZ_BPF_HELPERS_H
#define SLUICE_FUZZ_BPF_HELPERS_H

#include <stddef.h>
#include <string.h>
#include <linux/bpf.h>
#include <linux/types.h>

#define SEC(name)
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define __kconfig
#define __ksym
#define __weak
/* The functions of a newer kernel. */
#define bpf_ksym_exists(symbol) 1
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

void *bpf_map_lookup_elem(void *map, const void *key);
long bpf_map_update_elem(void *map, const void *key, const void *value, __u64 flags);
__u64 bpf_ktime_get_ns(void);
__u64 bpf_ktime_get_coarse_ns(void);
__u32 bpf_get_prandom_u32(void);
long bpf_xdp_adjust_head(struct xdp_md *ctx, int delta);
long bpf_xdp_adjust_tail(struct xdp_md *ctx, int delta);
__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx);
long bpf_xdp_load_bytes(struct xdp_md *ctx, __u32 offset, void *to, __u32 length);
long bpf_xdp_store_bytes(struct xdp_md *ctx, __u32 offset, void *from, __u32 length);
__s64 bpf_csum_diff(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __wsum seed);
long bpf_redirect(__u32 ifindex, __u64 flags);
long bpf_clone_redirect(struct __sk_buff *skb, __u32 ifindex, __u64 flags);
long bpf_redirect_peer(__u32 ifindex, __u64 flags);
long bpf_skb_load_bytes(const void *skb, __u32 offset, void *to, __u32 length);
long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 offset, const void *from, __u32 length, __u64 flags);
long bpf_skb_pull_data(struct __sk_buff *skb, __u32 length);
long bpf_skb_change_tail(struct __sk_buff *skb, __u32 length, __u64 flags);
long bpf_skb_adjust_room(struct __sk_buff *skb, __s32 delta, __u32 mode, __u64 flags);
long bpf_skb_ecn_set_ce(struct __sk_buff *skb);
long bpf_csum_level(struct __sk_buff *skb, __u64 level);
long bpf_skb_change_type(struct __sk_buff *skb, __u32 type);
long bpf_l3_csum_replace(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 size);
long bpf_l4_csum_replace(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 flags);
long bpf_skb_get_tunnel_key(struct __sk_buff *skb, struct bpf_tunnel_key *key, __u32 size, __u64 flags);
long bpf_skb_set_tunnel_key(struct __sk_buff *skb, struct bpf_tunnel_key *key, __u32 size, __u64 flags);
void *bpf_ringbuf_reserve(void *ring, __u64 bytes, __u64 flags);
void bpf_ringbuf_submit(void *record, __u64 flags);
__u64 bpf_ringbuf_query(void *ring, __u64 flags);
long bpf_ringbuf_output(void *ring, void *data, __u64 bytes, __u64 flags);
long bpf_fib_lookup(void *ctx, struct bpf_fib_lookup *params, int size, __u32 flags);

#endif
