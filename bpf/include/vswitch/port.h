/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: what all its stages share: verdicts, the memory of the parsed frame, and the ports of this
 * host.
 *
 * Contract: the first header of the vSwitch that a program includes: it chooses the context of tc
 * programs (context.h). Reads the map `cells`, and uses the map `frames` and those of count.h.
 */
#ifndef SLUICE_PORT_H
#define SLUICE_PORT_H

#define PROGRAM_TC

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "common/context.h"
#include "common/count.h"
#include "common/frame.h"
#include "common/icmp_error.h"
#include "common/lookup.h"
#include "common/neighbor_discovery.h"
#include "common/parse.h"

/*
 * What a stage decides about a frame. A program of a port or of the VXLAN device returns only the first three: a
 * frame is either sent, or it ends here. No frame reaches the host's own stack. TC_ACT_STOLEN would also end a
 * frame, but tcx does not support it and would pass the frame to the stack.
 */
enum verdict {
	VERDICT_DROPPED = TC_ACT_SHOT,	/* and counted */
	VERDICT_ABSORBED = TC_ACT_SHOT, /* no loss: a message to the network that needs no answer */
	VERDICT_SENT = TC_ACT_REDIRECT, /* as bpf_redirect() returns it */
	/* Only on an underlay interface: other programs and the host's stack go on with the packet. */
	VERDICT_PASSED = TC_ACT_UNSPEC,
	/* The caller goes on. */
	VERDICT_FORWARD = 256,		    /* the frame is valid: tunnel_to_group() (tunnel.h) */
	VERDICT_ND_ANSWER = 257,	    /* nd_answer() (vm_nd.h) with the decision */
	VERDICT_ROUTER_ADVERTISEMENT = 258, /* router_advertise() (router_advertisement.h) */
};

#define MLD_QUERY 130
#define MLD_DONE 132
#define MLD2_REPORT 143

/* Bytes that are made linear if the headers are not: more than all headers that are parsed. */
#define HEADERS_MAX 512

/*
 * The TCP header of a parsed frame that begins `at` bytes into the packet. NULL: it is not linear, or it is behind long
 * extension headers.
 */
static __always_inline const struct tcp_header *linear_tcp(struct __sk_buff *skb, __u32 at,
							   const struct frame *frame)
{
	struct cursor cursor = cursor_at(skb, at + (frame->transport_at & (HEADERS_MAX - 1)));
	const struct tcp_header *tcp = take_header(&cursor, struct tcp_header);

	return frame->transport_at < HEADERS_MAX ? tcp : NULL;
}

/* Counts the frame as dropped. `vni` is as for count_drop(). */
static __always_inline int port_drop(__u32 vni, enum drop_reason reason)
{
	count_drop(vni, reason);
	return VERDICT_DROPPED;
}

/*
 * The parsed frame: memory per CPU, because the verifier limits the stack of all functions of a call
 * chain together (docs/decisions/packet-memory.md). A CPU processes one frame at a time.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frame);
} frames SEC(".maps");

/* The memory of a new frame, undefined but for `judged` and `seen`. It is never NULL, but the verifier wants that to be handled. */
static __always_inline struct frame *frame_begin(void)
{
	struct frame *frame;
	__u32 zero = 0;

	frame = bpf_map_lookup_elem(&frames, &zero);
	if (frame)
		frame->judged = 0;
	return frame;
}

/*
 * The port in this cell, or NULL if the cell is not a port any more. A struct port has two cells, and
 * the verifier lets one lookup reach one: fields up to prefix6 are read here, those behind it by
 * vm_port_service_at().
 */
static __always_inline const struct port *vm_port_at(__u32 cell)
{
	const struct port *port = cell_at(cell & CELL_INDEX_MASK);

	return port && READ_ONCE(port->kind) == NEXT_HOP_PORT ? port : NULL;
}

/* The same port, for the fields from length4 on only. */
static __always_inline const struct port *vm_port_service_at(__u32 cell)
{
	const void *second = cell_at((cell + 1) & CELL_INDEX_MASK);

	return second ? second - CELL_BYTES : NULL;
}

/* The identity of the VM at a port of this host, which is in this cell. */
static __always_inline __u16 port_identity(const struct port *port, __u32 cell)
{
	const struct port *service;

	if (!(port->flags & PORT_IDENTIFIED))
		return 0;
	service = vm_port_service_at(cell);
	return service ? service->identity : 0;
}

_Static_assert(__builtin_offsetof(struct port, prefix6) + 16 == CELL_BYTES, "first cell of a port");
_Static_assert(__builtin_offsetof(struct node_config, port) == CELL_BYTES, "first cell of a node");

/* This node, for the fields up to vxlan_ifindex only. */
static __always_inline const struct node_config *node_at(void)
{
	return cell_at(CELL_NODE);
}

static __always_inline int port_has_ipv6(const struct port *port)
{
	return LOAD64(port->address6) || LOAD64(port->address6 + 8);
}

/* `address` is halves in host order. */
static __always_inline int is_port_address6(const struct port *port, const __u64 *address)
{
	return port_has_ipv6(port) && address[0] == load_half(port->address6) &&
	       address[1] == load_half(port->address6 + 8);
}

/* Whether it is fe80::1, or the first address of the port's subnet. */
static __always_inline int is_router6(const struct port *port, const __u64 *address)
{
	if (address[0] == ROUTER6_HIGH && address[1] == ROUTER6_LOW)
		return 1;
	return LOAD64(port->prefix6) && address[0] == load_half(port->prefix6) &&
	       address[1] == load_half(port->prefix6 + 8) + 1;
}

/* Whether the frame is a message between a VM and its network, which is never forwarded to other VMs. */
static __always_inline int is_control_icmp6(const struct frame *frame)
{
	__u8 type = frame->transport >> 24;

	if (!(frame->flags & FRAME_IPV6) || frame->protocol != IPPROTO_ICMPV6 || frame->flags & FRAME_LATER)
		return 0;
	return is_nd(frame) || (type >= MLD_QUERY && type <= MLD_DONE) || type == MLD2_REPORT;
}

/* Whether it is in fe80::/64. No host has an address in the rest of fe80::/10 (RFC 4291 section 2.5.6). */
static __always_inline int is_link_local64(const __u64 *address)
{
	return address[0] == ROUTER6_HIGH;
}

#endif
