/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: passes underlay packets to the kernel, but none that it would route. Otherwise each machine of the
 * underlay could send by this node to wherever it has a route, if the machine forwards IP packets. The
 * kernel's FIB says what it would do with the packet.
 *
 * Contract: pass_to_kernel() returns the program's verdict: XDP_PASS for packets that are not IP, and for IP
 * packets to this node, to a broadcast or multicast address, or to another node's MAC address, which the
 * kernel ignores; XDP_DROP, counted as not_routed, for all others. The packet is neither read beyond its IP
 * header nor changed. Uses the maps `cells` and those of count.h.
 */
#ifndef SLUICE_PASS_H
#define SLUICE_PASS_H

#include "common/cursor.h"
#include "common/headers.h"
#include "gateway/address_owner.h"
#include "gateway/output.h"

/* The kernel's answer (BPF_FIB_LKUP_RET_*) for a packet that came in by the interface `ifindex`. */
static __always_inline int ask_fib(struct xdp_md *ctx, struct bpf_fib_lookup *fib, __u32 ifindex)
{
	fib->ifindex = ifindex;
	return bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
}

/*
 * Whether the kernel would route the packet. It neither routes packets to its own addresses (NOT_FWDED) nor
 * those of an interface that does not forward. IPv6 has one setting for all interfaces (`all.forwarding`),
 * and the lookup reads that of the interface: so it is repeated for the loopback interface, which forwards
 * on every gateway.
 */
static __always_inline int is_routed_by_kernel(struct xdp_md *ctx, struct bpf_fib_lookup *fib)
{
	int answer = ask_fib(ctx, fib, ctx->ingress_ifindex);

	if (answer == BPF_FIB_LKUP_RET_FWD_DISABLED && fib->family == AF_INET6)
		answer = ask_fib(ctx, fib, LOOPBACK_IFINDEX);
	return answer != BPF_FIB_LKUP_RET_NOT_FWDED && answer != BPF_FIB_LKUP_RET_FWD_DISABLED;
}

__attribute__((noinline)) int pass_to_kernel(struct xdp_md *ctx)
{
	struct cursor cursor = cursor_at(ctx, 0);
	const struct ethernet_header *ethernet = take_header(&cursor, struct ethernet_header);
	struct bpf_fib_lookup fib = {};

	/* Frames to all, and those to another MAC address that a switch floods, are not routed. */
	if (!ethernet || !is_port_mac(ctx->ingress_ifindex, load_mac(ethernet->destination)))
		return XDP_PASS;
	if (ethernet->type == bpf_htons(ETH_P_IP)) {
		const struct ipv4_header *ip = take_header(&cursor, struct ipv4_header);

		if (!ip || ipv4_multicast(bpf_ntohl(ip->destination)))
			return XDP_PASS;
		fib.family = AF_INET;
		fib.ipv4_src = ip->source;
		fib.ipv4_dst = ip->destination;
	} else if (ethernet->type == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6_header *ip = take_header(&cursor, struct ipv6_header);

		if (!ip || ipv6_multicast(load_half(ip->destination)))
			return XDP_PASS;
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, ip->source, 16);
		__builtin_memcpy(fib.ipv6_dst, ip->destination, 16);
	} else {
		return XDP_PASS;
	}
	return is_routed_by_kernel(ctx, &fib) ? drop(0, DROP_not_routed) : XDP_PASS;
}

#endif
