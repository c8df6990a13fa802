/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch, last stage: into the port of an instance on this host.
 *
 * Contract: the caller has checked that the port may get the frame. route_headers() changes MAC
 * addresses and TTL, accept_mac() may change the destination MAC address, deliver() changes no bytes, and drops what is over the
 * limits of the port's class. Reads the map `cells`, and uses those of count.h and qos.h.
 */
#ifndef SLUICE_DELIVER_H
#define SLUICE_DELIVER_H

#include "vswitch/port.h"
#include "vswitch/qos.h"

/* The port that an exact match in a VNI found. NULL: the packet is dropped for `reason`. */
static __always_inline const struct port *local_port(enum exact_answer found, const struct exact_hit *hit,
						     __u32 vni, enum drop_reason *reason)
{
	const struct port *port;

	*reason = found == EXACT_BUSY ? DROP_table_busy : DROP_not_local;
	if (found != EXACT_HIT)
		return NULL;
	port = vm_port_at(hit->next);
	*reason = DROP_stale_index;
	return port && port->vni == vni ? port : NULL;
}

/*
 * Finds the path of an instance that migrates, to which a prefix with the destination is delegated. The cell is the argument of
 * the prefix's leaf. Packets with another MAC address than the instance's are for one that has left, whose address the
 * prefix covers.
 */
static __always_inline enum exact_answer find_moved(__u32 cell, __u32 vni, const struct frame *frame,
						    struct exact_hit *hit)
{
	const struct next_hop *hop = next_hop_at(cell, NEXT_HOP_INSTANCE);
	enum exact_answer found;

	if (!hop || !(READ_ONCE(hop->flags) & NEXT_HOP_MOVED) || READ_ONCE(hop->vni) != vni)
		return EXACT_MISS;
	if (READ_ONCE(hop->flags) & NEXT_HOP_IPV6)
		found = find_ipv6(vni, load_half(hop->address), load_half(hop->address + 8), hit);
	else
		found = find_ipv4(vni, bpf_ntohl(LOAD32(hop->address)), hit);
	if (found != EXACT_HIT)
		return found;
	hop = next_hop_at(hit->next, NEXT_HOP_DIRECT);
	return hop && READ_ONCE(hop->flags) & NEXT_HOP_MOVED && frame->destination_mac == hit->mac
		     ? EXACT_HIT
		     : EXACT_MISS;
}

/*
 * Finds the port at which the VM is to which a prefix with the destination is delegated, after an exact match that found
 * no port, or the path of a VM that migrates. `hit` is then as for the VM's own address.
 */
__attribute__((noinline)) enum exact_answer find_delegated(__u32 vrf_cell, __u32 vni,
							   const struct frame *frame, struct exact_hit *hit)
{
	const struct vrf *vrf = vrf_at(vrf_cell, vni);
	const struct port *port;
	__u32 leaf, cell;

	if (!vrf || !frame || !hit)
		return EXACT_MISS;
	if (frame->flags & FRAME_IPV6)
		leaf = find_route6(READ_ONCE(vrf->lpm6), frame->destination[0], frame->destination[1]);
	else
		leaf = find_route4(READ_ONCE(vrf->lpm4), frame->destination[1]);
	if (leaf >> LEAF_SCOPE_SHIFT == SCOPE_NEXT_HOP)
		return find_moved(leaf & LEAF_ARGUMENT_MASK, vni, frame, hit);
	if (leaf >> LEAF_SCOPE_SHIFT != SCOPE_PORT)
		return EXACT_MISS;
	cell = find_index(0, leaf & LEAF_ARGUMENT_MASK);
	if (cell == INDEX_BUSY)
		return EXACT_BUSY;
	port = cell ? vm_port_at(cell) : NULL;
	/*
	 * Gateways send packets for the prefix to the port's MAC address, and answers of neighbor discovery to that which has
	 * asked. Others are for an instance that has left, whose address the prefix covers.
	 */
	if (!port || (frame->destination_mac != load_mac(port->mac) && frame->ethertype != ETH_P_ARP &&
		      !is_control_icmp6(frame)))
		return EXACT_MISS;
	hit->mac = load_mac(port->mac);
	hit->next = cell;
	return EXACT_HIT;
}

/*
 * The MAC address with which the VM gets frames to an address: that by which neighbors reach the address, or, if that is
 * the router's, the port's own.
 */
static __always_inline __u64 delivered_mac(const struct exact_hit *hit, const struct port *port,
					   const struct node_config *node)
{
	return hit->mac == load_mac(node->router_mac) ? load_mac(port->mac) : hit->mac;
}

__attribute__((noinline)) int accept_further_mac(struct __sk_buff *skb, const struct frame *frame,
						 const struct exact_hit *hit)
{
	struct cursor cursor = cursor_at(skb, 0);
	const struct node_config *node = node_at();
	const struct port *port;
	__u64 mac;

	if (!frame || !hit || !node)
		return 0;
	port = vm_port_at(hit->next);
	if (!port || !(port->flags & (PORT_SOURCES | PORT_UNPROTECTED)))
		return 0;
	if (frame->destination_mac != hit->mac)
		return frame->ethertype == ETH_P_ARP || is_control_icmp6(frame);
	mac = delivered_mac(hit, port, node);
	if (mac != hit->mac) {
		if (!cursor_has(&cursor, ETH_HLEN))
			return 0;
		store_mac(next_header(&cursor, struct ethernet_header)->destination, mac);
	}
	return 1;
}

/*
 * Whether the port may get a frame from the underlay with this destination MAC address. It is the port's own, or that by
 * which neighbors reach the address, which is changed in the packet if it is the router's. Answers to ARP and neighbor
 * discovery come to the MAC address that has asked.
 */
static __always_inline int accept_mac(struct __sk_buff *skb, const struct frame *frame,
				      const struct port *port, const struct exact_hit *hit)
{
	return frame->destination_mac == load_mac(port->mac) || accept_further_mac(skb, frame, hit);
}

static __always_inline int deliver(struct __sk_buff *skb, struct frame *frame, const struct port *port,
				   const struct vrf *vrf)
{
	if (port->flags & PORT_QOS) {
		enum drop_reason reason = qos_receive(skb, frame, port->scope);

		if (reason)
			return port_drop(vrf->vni, reason);
	}
	count_traffic(vrf->counters, skb->len);
	/* A VM must not choose the queue of another one's interface. */
	skb->queue_mapping = 0;
	if (!(port->flags & PORT_PEER_REDIRECT)) {
		set_priority(skb, frame);
		return bpf_redirect(port->ifindex, 0);
	}
	/*
	 * The frame enters the VM's stack without passing the driver that sets the packet type, and the VM would
	 * drop a frame whose type says that it is for another machine.
	 */
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(port->ifindex, 0);
}

/*
 * Changes what a router changes: TTL or hop limit, and the MAC addresses, to those of router and instance. Only
 * bytes change, so that GSO packets and pending checksums stay as they are. The TTL is at least 2, and the
 * headers are linear. 0, or negative if the kernel refused.
 */
static __always_inline long route_headers(struct __sk_buff *skb, const struct frame *frame,
					  const struct node_config *node, __u64 mac)
{
	__u8 ttl = frame->ttl - 1;
	struct cursor cursor;

	/*
	 * The kernel may know the sum of the whole IP packet. It changes with the hop limit, because no checksum
	 * in IPv6's header balances that. The sum of an IPv4 header is always the same.
	 */
	if (frame->flags & FRAME_IPV6 &&
	    bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6_header, hop_limit), &ttl, 1,
				BPF_F_RECOMPUTE_CSUM))
		return -1;
	cursor = cursor_at(skb, 0);
	if (!cursor_has(&cursor, ETH_HLEN + IPV4_BYTES))
		return -1;
	if (!(frame->flags & FRAME_IPV6))
		ipv4_decrement_ttl(cursor.at + ETH_HLEN);
	store_macs(cursor.at, mac_in_packet_order(mac), node->router_mac);
	return 0;
}

#endif
