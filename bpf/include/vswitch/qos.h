/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: quality of service of ports (docs/decisions/qos.md). What a VM sends gets the DSCP of its port, if that has
 * one, and is dropped over the port's rate. What a VM receives gets a priority, by which the interface's queueing
 * discipline serves it; the agent installs one that shapes to the port's rate.
 *
 * Contract: the frame is parsed and at the start of the packet, and its headers are linear. qos_send() is called once
 * for a packet that the port may send, after all checks that need no route, and qos_receive() for one that it may get. Uses the
 * maps `cells` and `port_meters`, and those of credit.h.
 */
#ifndef SLUICE_QOS_H
#define SLUICE_QOS_H

#include "vswitch/credit.h"
#include "vswitch/port.h"

#include "common/meters.h"
#include "common/neighbor_discovery.h"
#include "layout/qos_layout.h"

#define DSCP_SHIFT 2
/* The kernel's gso_size of a packet whose segments have sizes of their own. */
#define GSO_BY_FRAGS 0xffff

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORT_METERS);
	__type(key, __u32);
	__type(value, struct port_meter);
} port_meters SEC(".maps");

/* Without ARP and neighbor discovery, a VM whose port is full could not even answer. */
static __always_inline int has_high_priority(const struct frame *frame)
{
	return frame->traffic_class >> DSCP_SHIFT >= QOS_HIGH_DSCP || frame->ethertype == ETH_P_ARP ||
	       is_nd(frame);
}

/* Sets skb->priority of a packet to a VM. */
static __always_inline void set_priority(struct __sk_buff *skb, const struct frame *frame)
{
	skb->priority = has_high_priority(frame) ? QOS_PRIORITY_HIGH : 0;
}

/*
 * Writes the traffic class, ECN included. The sum of an IPv4 header stays the same. That of an IPv6 packet, which the
 * kernel may know, changes: no checksum balances the header. 0, or negative if the kernel refused.
 */
static __always_inline long write_traffic_class(struct __sk_buff *skb, int ipv6, __u8 traffic_class)
{
	struct cursor cursor = cursor_at(skb, ETH_HLEN);
	struct ipv4_header *ip = take_header(&cursor, struct ipv4_header);
	__u16 before, after;

	if (!ip)
		return -1;
	/* Version, traffic class, and of IPv6 the first bits of the flow label; of IPv4 the length of the header. */
	before = bpf_ntohs(LOAD16(ip));
	if (ipv6) {
		after = bpf_htons((before & 0xf00f) | traffic_class << 4);
		return bpf_skb_store_bytes(skb, ETH_HLEN, &after, sizeof(after), BPF_F_RECOMPUTE_CSUM);
	}
	after = (before & 0xff00) | traffic_class;
	ip->traffic_class = traffic_class;
	ip->checksum = checksum_update(ip->checksum, bpf_htons(before), bpf_htons(after));
	return 0;
}

/* Marks the packet with the port's DSCP. ARP has none. */
static __always_inline long mark_dscp(struct __sk_buff *skb, struct frame *frame, __u8 dscp)
{
	__u8 traffic_class = dscp << DSCP_SHIFT | (frame->traffic_class & ((1 << DSCP_SHIFT) - 1));

	if (frame->traffic_class == traffic_class || frame->ethertype == ETH_P_ARP)
		return 0;
	frame->traffic_class = traffic_class;
	return write_traffic_class(skb, frame->flags & FRAME_IPV6, traffic_class);
}

/* The byte of a TCP header that has its length. It is read without a call unless extension headers are in front. */
static __always_inline __u8 tcp_offset(struct __sk_buff *skb, const struct frame *frame)
{
	const struct tcp_header *tcp = linear_tcp(skb, 0, frame);
	__u8 offset = 0;

	if (tcp)
		return tcp->offset;
	context_load(skb, frame->transport_at + __builtin_offsetof(struct tcp_header, offset), &offset, 1);
	return offset;
}

/*
 * Length of the longest packet that the frame is or will be cut into, without the Ethernet header. Bytes
 * that a sender appends to the IP packet are sent too, and count.
 */
static __always_inline __u32 longest_packet(struct __sk_buff *skb, const struct frame *frame)
{
	__u32 headers = frame->transport_at - ETH_HLEN + UDP_BYTES;

	if (!skb->gso_size)
		return skb->len - ETH_HLEN;
	/* SCTP: the segments are packets already, and the VM's stack chose their sizes. */
	if (skb->gso_size == GSO_BY_FRAGS)
		return 0;
	/* TCP: the length of the header was not parsed. A GSO packet has the whole header. */
	if (frame->protocol == IPPROTO_TCP)
		headers = frame->transport_at - ETH_HLEN + (tcp_offset(skb, frame) >> 4) * 4;
	return headers + skb->gso_size;
}

/* IP packets that a packet is or will be cut into, or one of ARP. */
struct wire_packets {
	__u32 packets;
	__u32 bytes; /* of all together; of ARP, those behind the Ethernet header */
};

/*
 * `longest` is the length of the longest of the packets (longest_packet()): the headers of each, and gso_size. 0: it is SCTP, of whose
 * segments only the first IP header counts.
 */
static __always_inline struct wire_packets wire_packets(struct __sk_buff *skb, __u32 longest)
{
	__u32 bytes = skb->len - ETH_HLEN, size = skb->gso_size, headers = longest - size, more;

	if (size && !longest)
		return (struct wire_packets){ skb->gso_segs ? skb->gso_segs : 1, bytes };
	if (!size || bytes <= longest)
		return (struct wire_packets){ 1, bytes };
	more = (bytes - headers - 1) / size;
	return (struct wire_packets){ 1 + more, bytes + more * headers };
}

/* Marks and meters a packet that the VM at the port in `port_cell` sends. DROP_none, or why it is dropped. */
__attribute__((noinline)) enum drop_reason qos_send(struct __sk_buff *skb, struct frame *frame,
						    __u32 port_cell, __u32 longest)
{
	const struct port *port = vm_port_at(port_cell), *service = vm_port_service_at(port_cell);
	struct port_credit *credit = NULL;
	struct wire_packets wire;
	struct port_meter *meter;
	__u32 scope, rate_mbps, limit_mbps;
	__u64 now = 0;
	int high;

	if (!port || !service || !frame)
		return DROP_stale_index;
	scope = port->scope;
	rate_mbps = service->rate_mbps;
	if (service->qos & PORT_QOS_MARKS && mark_dscp(skb, frame, service->qos & PORT_QOS_DSCP))
		return DROP_headroom;
	wire = wire_packets(skb, longest);
	if (service->qos & PORT_QOS_CREDIT)
		credit = port_credit_at(scope);
	if (credit) {
		now = time_if(READ_ONCE(credit->limit[CREDIT_SENT_KPPS]));
		/* Without a class, the rate of the port stays. */
		limit_mbps = READ_ONCE(credit->limit[CREDIT_SENT_MBPS]);
		if (limit_mbps)
			rate_mbps = limit_mbps;
		if (!has_packets(credit, CREDIT_SENT, wire.packets, now)) {
			ADD(&credit->dropped_packets[CREDIT_SENT], 1);
			return DROP_packet_rate;
		}
	}
	meter = bpf_map_lookup_elem(&port_meters, &scope);
	high = has_high_priority(frame);
	if (rate_mbps && meter && !within_rate(&meter->arrival, rate_mbps, wire.bytes, high)) {
		ADD(&meter->dropped[high], 1);
		return DROP_rate_limit;
	}
	if (credit)
		take_packets(credit, CREDIT_SENT, wire.packets, wire.bytes, now);
	return DROP_none;
}

/* Whether a port with PORT_QOS may get the frame. DROP_none, or why not. */
__attribute__((noinline)) enum drop_reason qos_receive(struct __sk_buff *skb, struct frame *frame,
						       __u32 scope)
{
	struct wire_packets wire;

	if (!frame || !port_credit_at(scope))
		return DROP_none;
	wire = wire_packets(skb, longest_packet(skb, frame));
	return credit_receive(scope, wire.packets, wire.bytes, frame->judged & 1, has_high_priority(frame));
}

#endif
