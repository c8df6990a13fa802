/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What a vSwitch program knows of itself: verdicts, ports and their tables.
 *
 * Verdicts: a frame is either sent on, which is what a bpf_redirect helper
 * answers, or it ends here, TC_ACT_SHOT. Nothing ever reaches the host's own
 * stack. TC_ACT_STOLEN would say "ends here" as well, but tcx knows it not and
 * would pass the frame up.
 */
#ifndef SLUICE_PORT_H
#define SLUICE_PORT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define SLUICE_CONTEXT struct __sk_buff
#define packet_load bpf_skb_load_bytes

#include "common/count.h"
#include "common/lookup.h"
#include "common/frame.h"
#include "common/icmp_error.h"
#include "common/parse.h"

/* Done with, and no loss: what a VM says to its network without wanting an answer. */
#define ABSORBED TC_ACT_SHOT
/* A stage's answer to its caller: the frame is right, send it to the group. */
#define FORWARD TC_ACT_UNSPEC

static __always_inline int port_drop(__u32 vni, enum drop_reason reason)
{
	count_drop(vni, reason);
	return TC_ACT_SHOT;
}

/*
 * The port at `cell`, or NULL if it is one no more. A struct port is two cells,
 * and the verifier lets one lookup reach one: fields up to prefix6 are read
 * here, those behind it by vm_port_service_at().
 */
static __always_inline const struct port *vm_port_at(__u32 cell)
{
	const struct port *port = cell_at(cell & CELL_INDEX_MASK);

	return port && READ_ONCE(port->kind) == NEXT_HOP_PORT ? port : NULL;
}

/* For the fields from length4 on, no others. */
static __always_inline const struct port *vm_port_service_at(__u32 cell)
{
	const void *second = cell_at((cell + 1) & CELL_INDEX_MASK);

	return second ? second - CELL_BYTES : NULL;
}

_Static_assert(__builtin_offsetof(struct port, prefix6) + 16 == CELL_BYTES, "first cell of a port");
_Static_assert(__builtin_offsetof(struct node_config, port) == CELL_BYTES, "first cell of a node");

/* For the fields up to vxlan_ifindex. */
static __always_inline const struct node_config *node_at(void)
{
	return cell_at(CELL_NODE);
}

static __always_inline int port_has_ipv6(const struct port *port)
{
	return LOAD64(port->address6) || LOAD64(port->address6 + 8);
}

static __always_inline int is_port_address6(const struct port *port, const __u64 *address)
{
	return port_has_ipv6(port) && address[0] == load_half(port->address6) &&
	       address[1] == load_half(port->address6 + 8);
}

/* fe80::1, or the first address of the port's subnet. */
static __always_inline int is_router6(const struct port *port, const __u64 *address)
{
	if (address[0] == ROUTER6_HIGH && address[1] == ROUTER6_LOW)
		return 1;
	return LOAD64(port->prefix6) && address[0] == load_half(port->prefix6) &&
	       address[1] == load_half(port->prefix6 + 8) + 1;
}

/* fe80::/64; what RFC 4291 leaves unused of fe80::/10 is no station's address. */
static __always_inline int is_link_local64(const __u64 *address)
{
	return address[0] == ROUTER6_HIGH;
}

#endif
