/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: encapsulation of a VM's frame in front of the host's own stack (docs/decisions/vswitch.md).
 *
 * Contract: what is not encapsulated here is left to the VXLAN device, which can handle every packet: an IPv6
 * underlay, whose UDP checksum the kernel computes; frames that the kernel does not let a program encapsulate, which
 * are ARP and kinds of segmentation offload other than TCP's and UDP's; and next hops that are not resolved, or
 * not behind an underlay port of this node. A pending checksum and segmentation stay pending. Uses the map
 * `cells`.
 */
#ifndef SLUICE_VSWITCH_ENCAPSULATE_H
#define SLUICE_VSWITCH_ENCAPSULATE_H

#include "vswitch/port.h"

#include "common/encapsulate.h"
#include "common/resolve.h"

#define IPV4_LENGTH_MAX 0xffff
/* The packet was left as it is. */
#define NOT_ENCAPSULATED (-1)

/* No underlay port has this index. In `l2` of a next hop: its packets take the VXLAN device until `l2` expires. */
#define L2_BY_DEVICE ((__u64)UNDERLAY_PORTS_MAX << L2_PORT_SHIFT)

static __always_inline int can_encapsulate(const struct node_config *node, const struct next_hop *hop)
{
	return !(hop->flags & NEXT_HOP_IPV6) && node->flags & NODE_HAS_IPV4;
}

/* Resolves the next hop in the cell, or stores that its packets take the VXLAN device. */
static __always_inline void learn_l2(struct __sk_buff *skb, __u32 cell)
{
	struct next_hop *hop = cell_at(cell);

	if (resolve(skb, cell) == DROP_none || !hop)
		return;
	WRITE_ONCE(hop->l2, L2_BY_DEVICE);
	WRITE_ONCE(hop->l2_expires_ns, bpf_ktime_get_coarse_ns() + L2_LIFETIME_NS);
}

/*
 * Moves the tenant's Ethernet header, which bpf_skb_adjust_room() left in front of the room that it made, to the
 * front of the tenant's packet, and writes the outer headers.
 */
static __always_inline int write_outer_headers(struct __sk_buff *skb, const struct outer *outer)
{
	struct cursor cursor = cursor_at(skb, 0);
	struct ethernet_header *frame;

	if (!cursor_has(&cursor, TUNNEL4_BYTES + ETH_HLEN))
		return DROP_headroom;
	frame = cursor.at + TUNNEL4_BYTES;
	*frame = *(struct ethernet_header *)cursor.at;
	write_outer4(&cursor, outer);
	write_vxlan(&cursor, outer);
	return DROP_none;
}

/*
 * The identity that a packet takes to the next hop: it means something in the sender's own VNI only, and a host without a
 * vSwitch does not know its flag.
 */
static __always_inline __u16 carried_identity(const struct frame *frame, const struct next_hop *hop,
					      __u32 vni, __u32 own)
{
	return vni == own && !(READ_ONCE(hop->flags) & NEXT_HOP_FOREIGN) ? frame->identity : 0;
}

/*
 * Sends the frame to the next hop, whose `l2` is valid. VERDICT_SENT; VERDICT_DROPPED, which the caller counts as
 * DROP_headroom; or NOT_ENCAPSULATED.
 */
static __always_inline int encapsulate(struct __sk_buff *skb, const struct node_config *node,
				       const struct frame *frame, const struct next_hop *hop, __u32 vni,
				       __u16 identity, __u32 hash)
{
	__u64 l2 = READ_ONCE(hop->l2);
	const struct underlay_port *port = underlay_port_at(l2 >> L2_PORT_SHIFT);
	struct outer outer = {
		.node = node,
		.destination_mac = load_mac(&l2),
		.destination[1] = bpf_ntohl(LOAD32(hop->address)),
		.vni = vni,
		.hash = hash << 16 | hash >> 16, /* the upper bits have selected the vIP */
		.udp_bytes = TUNNEL_BYTES + skb->len,
		.traffic_class = outer_ecn(frame),
		.identity = identity,
	};

	if (l2 >> L2_PORT_SHIFT >= UNDERLAY_PORTS_MAX || !port || !port->ifindex ||
	    outer.udp_bytes > IPV4_LENGTH_MAX - IPV4_BYTES)
		return NOT_ENCAPSULATED;
	outer.source_mac = underlay_port_mac(port);
	if (bpf_skb_adjust_room(skb, TUNNEL4_BYTES, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 |
					BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
					BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN)))
		return NOT_ENCAPSULATED;
	if (write_outer_headers(skb, &outer))
		return VERDICT_DROPPED;
	/* A VM's device may have recorded a queue. Here it would choose the queue of the underlay interface. */
	skb->queue_mapping = 0;
	return bpf_redirect(port->ifindex, 0);
}

#endif
