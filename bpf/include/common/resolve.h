/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * MAC address and interface of an underlay next hop.
 *
 * Contract: both are cached in the next hop's cell for L2_LIFETIME_NS; the kernel's FIB is asked when they
 * have expired. The packet is not changed. Uses the map `cells`.
 */
#ifndef SLUICE_RESOLVE_H
#define SLUICE_RESOLVE_H

#include "common/context.h"
#include "common/underlay_port.h"
#include "layout/drops.h"

#define L2_PORT_SHIFT \
	48 /* index of the underlay port in `l2` of a next hop; its first bytes are the MAC address */
#define L2_LIFETIME_NS 1000000000ull
#define LOOPBACK_IFINDEX 1 /* in every network namespace */
#define AF_INET 2
#define AF_INET6 10

/*
 * Whether the next hop is a vIP on the link that the FIB has found. Then its vMAC is known: the owner answers for the vIP with
 * it, and the kernel need not ask.
 */
static __always_inline int is_vip_on_link(const struct next_hop *hop, const struct bpf_fib_lookup *fib)
{
	if (hop->kind != NEXT_HOP_VIP)
		return 0;
	if (fib->family == AF_INET)
		return fib->ipv4_dst == LOAD32(hop->address);
	return !((fib->ipv6_dst[0] ^ LOAD32(hop->address)) | (fib->ipv6_dst[1] ^ LOAD32(hop->address + 4)) |
		 (fib->ipv6_dst[2] ^ LOAD32(hop->address + 8)) |
		 (fib->ipv6_dst[3] ^ LOAD32(hop->address + 12)));
}

/*
 * Asks the kernel's FIB for the path to the next hop in a cell, and stores it there. The packet counts as one
 * of this node, which it is with its new outer header: so the FIB is asked as for a packet from the loopback
 * interface. The lookup demands that its interface forwards, and the underlay's interfaces need not.
 */
__attribute__((noinline)) enum drop_reason resolve(program_context *ctx, __u32 cell)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct next_hop *hop = cell_at(cell);
	struct bpf_fib_lookup fib = { .ifindex = LOOPBACK_IFINDEX };
	__u64 l2;
	int answer;

	if (!hop || !node)
		return DROP_stale_index;
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
	if (answer == BPF_FIB_LKUP_RET_NO_NEIGH) {
		if (!is_vip_on_link(hop, &fib))
			return DROP_no_underlay_neighbor;
		__builtin_memcpy(fib.dmac, hop->mac, ETH_ALEN);
		answer = BPF_FIB_LKUP_RET_SUCCESS;
	}
	l2 = tunnel_port_index(fib.ifindex);
	if (answer != BPF_FIB_LKUP_RET_SUCCESS || l2 == UNDERLAY_PORTS_MAX)
		return DROP_no_underlay_route;
	l2 <<= L2_PORT_SHIFT;
	for (int i = 0; i < ETH_ALEN; i++)
		l2 |= (__u64)fib.dmac[i] << (i * 8);
	/* Several CPUs may be here at once. Each word is stored as a whole, and any of theirs is right. */
	WRITE_ONCE(hop->l2, l2);
	WRITE_ONCE(hop->l2_expires_ns, bpf_ktime_get_coarse_ns() + L2_LIFETIME_NS);
	return DROP_none;
}

/* Makes sure that `l2` of the next hop, which is in this cell, is valid. */
static __always_inline enum drop_reason refresh_l2(program_context *ctx, const struct next_hop *hop,
						   __u32 cell, __u64 now_ns)
{
	return READ_ONCE(hop->l2_expires_ns) > now_ns ? DROP_none : resolve(ctx, cell);
}

#endif
