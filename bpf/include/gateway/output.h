/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "SW": the next hop's way through the underlay, the outer
 * headers, and out.
 */
#ifndef SLUICE_OUTPUT_H
#define SLUICE_OUTPUT_H

#include "common/count.h"
#include "gateway/underlay_port.h"

#define L2_PORT_SHIFT 48
#define L2_LIFETIME_NS 1000000000ull
#define L2_REFUSED (1ull << 63) /* resolve(): low bits are the reason to drop */
#define AF_INET 2
#define AF_INET6 10


static __always_inline int drop(__u32 vni, __u32 reason)
{
	count_drop(vni, reason);
	return XDP_DROP;
}

static __always_inline int send_by(struct xdp_md *ctx, __u32 ifindex)
{
	return ifindex == ctx->ingress_ifindex ? XDP_TX : (int)bpf_redirect(ifindex, 0);
}

/* Asks the kernel's FIB for the way to a next hop; answers what `l2` of it shall be, or L2_REFUSED. */
__attribute__((noinline)) __u64 resolve(struct xdp_md *ctx, __u32 cell)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct next_hop *hop = cell_at(cell);
	struct bpf_fib_lookup fib = { .ifindex = ctx->ingress_ifindex };
	__u64 l2;
	__u32 port;
	int answer;

	if (!hop || !node)
		return L2_REFUSED | DROP_stale_index;
	if (hop->flags & NEXT_HOP_IPV6) {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, node->vtep6, 16);
		__builtin_memcpy(fib.ipv6_dst, hop->address, 16);
	} else {
		fib.family = AF_INET;
		fib.ipv4_src = node->vtep4;
		fib.ipv4_dst = LOAD32(hop->address);
	}
	answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	if (answer == BPF_FIB_LKUP_RET_NO_NEIGH)
		return L2_REFUSED | DROP_no_underlay_neighbour;
	port = underlay_port_index(fib.ifindex);
	if (answer != BPF_FIB_LKUP_RET_SUCCESS || port == UNDERLAY_PORTS_MAX)
		return L2_REFUSED | DROP_no_underlay_route;
	l2 = port;
	for (int i = 0; i < ETH_ALEN; i++)
		l2 = l2 << 8 | fib.dmac[i];
	/* Two CPUs may both be here: whichever comes last, each word is whole. */
	*(volatile __u64 *)&hop->l2 = l2;
	*(volatile __u64 *)&hop->l2_expires_ns = bpf_ktime_get_coarse_ns() + L2_LIFETIME_NS;
	return l2;
}

static __always_inline __u64 next_hop_l2(struct xdp_md *ctx, const struct next_hop *hop, __u32 cell,
					 __u64 now_ns)
{
	if (READ_ONCE(hop->l2_expires_ns) > now_ns)
		return READ_ONCE(hop->l2);
	return resolve(ctx, cell);
}

#endif
