/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "SW" (switch): sends or drops the packet.
 *
 * Contract: the packet is not changed. Uses the maps of count.h.
 */
#ifndef SLUICE_OUTPUT_H
#define SLUICE_OUTPUT_H

#include "common/count.h"
#include "common/resolve.h"

/* Counts the packet as dropped. `vni` is as for count_drop(). Returns the program's verdict. */
static __always_inline int drop(__u32 vni, enum drop_reason reason)
{
	count_drop(vni, reason);
	return XDP_DROP;
}

/* The port that received the packet. NULL: its interface is no port, or no longer. */
static __always_inline struct underlay_port *ingress_port(struct xdp_md *ctx)
{
	struct underlay_port *port = underlay_port_at(underlay_port_index(ctx->ingress_ifindex));

	return port && port->ifindex == ctx->ingress_ifindex ? port : NULL;
}

/* Sends the packet out of an interface. Returns the program's verdict. */
static __always_inline int send_by(struct xdp_md *ctx, __u32 ifindex)
{
	return ifindex == ctx->ingress_ifindex ? XDP_TX : (int)bpf_redirect(ifindex, 0);
}

#endif
