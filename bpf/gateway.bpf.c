/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The gateway: XDP on the underlay's interfaces. One packet's way:
 *
 *   parse (parse_underlay.h, parse.h) -> classify, route (cgw.h) -> forward (forward.h, output.h)
 *                                                          -> count (flow_accounting.h)
 *
 * with answers to tenants (answer.h) and to the underlay (local.h) aside. IGW
 * (SNAT, DNAT, meters) has its place between route() and forward_to_host().
 *
 * Verdicts: XDP_TX or XDP_REDIRECT for what is sent on or answered, XDP_PASS
 * for what is the kernel's, XDP_DROP for what a counter in `drops` names.
 */
#define SLUICE_CONTEXT struct xdp_md
#define packet_load bpf_xdp_load_bytes

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "common/parse.h"
#include "gateway/answer.h"
#include "gateway/cgw.h"
#include "gateway/forward.h"
#include "gateway/local.h"
#include "gateway/flow_accounting.h"
#include "gateway/parse_underlay.h"

SEC("xdp.frags")
int gateway(struct xdp_md *ctx)
{
	struct packet packet;
	int reason;

	/* All of it: the stages of their own functions get it as initialised memory. */
	__builtin_memset(&packet, 0, sizeof(packet));
	reason = parse_underlay(ctx, &packet);
	if (reason == NOT_TUNNEL)
		return local(ctx);
	if (reason)
		return drop(0, reason);
	reason = classify(&packet);
	if (reason)
		return drop(0, reason);
	reason = parse_frame(ctx, tunnel_bytes(&packet), packet.frame_bytes, &packet.frame);
	if (reason)
		return drop(packet.vni, reason);
	if (packet.frame.ethertype == ETH_P_ARP)
		return answer_arp(ctx, &packet);
	if (is_nd(&packet.frame))
		return answer_nd(ctx, &packet);
	reason = route(&packet);
	if (!reason) {
		packet.now_ns = bpf_ktime_get_coarse_ns();
		reason = forward_to_host(ctx, &packet);
		if (-reason == XDP_TX || -reason == XDP_REDIRECT)
			count_flow(&packet);
	}
	if (reason > 0)
		return packet.error_type ? refuse(ctx, &packet, reason) : drop(packet.vni, reason);
	return -reason;
}

char LICENSE[] SEC("license") = "GPL";
