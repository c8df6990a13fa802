/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: packets that come in by an Internet port. Those to public addresses go to the VMs behind them,
 * from any gateway of the cluster. ARP and neighbor discovery for public addresses are answered by the owner of their
 * vIP, with its vMAC. All else belongs to the kernel, which gets only what it does not route (pass.h), and
 * nothing for the node's underlay address: VXLAN and the nodes' own messages do not come from the Internet.
 *
 * Contract: internet_in() returns the program's verdict: XDP_TX for packets that were
 * answered, XDP_PASS for unchanged packets, XDP_DROP for counted drops. FOR_VPC: the packet is for an instance, and
 * enter_vpc() forwards it; FOR_NAT_DESTINATION: nat_destination() (nat_stage.h) finds the instance before; FOR_OWNER: another
 * gateway has the sessions, and pass_on() sends it there, in a tunnel with VNI 0. take_over() returns the same, except
 * FOR_OWNER. Drops are counted for the VNI once the public address is known. Uses the maps `cells`, `meters`, `packets`, `vni_traffic`,
 * `icmp_budget`, `internet_icmp_budget`, `pass_budget`, `nat_config`, `sum_chunks` and those of count.h.
 */
#ifndef SLUICE_INTERNET_IN_H
#define SLUICE_INTERNET_IN_H

#include "gateway/answer_sender.h"
#include "gateway/answer_underlay.h"
#include "gateway/deliver_inside.h"
#include "gateway/pass_limit.h"
#include "gateway/sender.h"

/* The low bits of a vMAC, which alone differ among the vMACs of a cluster (vip_mac() in crates/controller). */
#define VMAC_SLOT_BITS 16
/* The source may be a public address of the cluster, and no error goes back: the way to the sender is not the one that the packet came. */
#define PACKET_OF_CLUSTER (PACKET_FROM_GATEWAY | PACKET_TURNED)
/*
 * As icmp_budget (maps.h), for errors to the Internet about packets to the VPC's public addresses: such packets do not use
 * up the errors that the VPC's VMs need. A bucket is full again within 100 ms, so it is not reset when another VNI gets
 * the index.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VNI_COUNTERS_MAX);
	__type(key, __u32);
	__type(value, struct token_bucket);
} internet_icmp_budget SEC(".maps");

/* The vIP of a public prefix. NULL: this node does not have it. */
static __always_inline const struct next_hop *public_vip(__u32 cell)
{
	const struct public_prefix *public = public_prefix_at(cell);

	return public ? next_hop_at(READ_ONCE(public->vip), NEXT_HOP_VIP) : NULL;
}

/* The vMAC by which a public address is reached, if this node owns it; otherwise 0. */
static __always_inline __u64 owned_public_mac(struct packet *packet, __u32 flags, const __u64 *address)
{
	__u32 cell = find_public(packet, flags, address);
	const struct next_hop *vip = cell == INDEX_BUSY ? NULL : public_vip(cell);

	return vip && READ_ONCE(vip->flags) & NEXT_HOP_OWNED ? load_mac(vip->mac) : 0;
}

/* Answers an ARP request for an owned public address. XDP_PASS: it asks for another one, or nothing. */
__attribute__((noinline)) int answer_public_arp(struct xdp_md *ctx, struct packet *packet)
{
	struct cursor cursor = cursor_at(ctx, 0);
	struct ethernet_header *ethernet;
	struct arp_message question = {};
	struct arp_header *arp;
	__u64 target[2] = {}, mac;

	if (!packet || !cursor_has(&cursor, ETH_HLEN + ARP_BYTES))
		return XDP_PASS;
	ethernet = next_header(&cursor, struct ethernet_header);
	arp = next_header(&cursor, struct arp_header);
	packet->frame.source_mac = load_mac(ethernet->source);
	/* An announcement has the same sender and target. It asks nothing. */
	if (parse_arp(arp, &packet->frame, &question) || question.operation != ARP_REQUEST ||
	    question.sender == question.target)
		return XDP_PASS;
	target[1] = question.target;
	mac = owned_public_mac(packet, 0, target);
	if (!mac)
		return XDP_PASS;
	write_arp_reply(ethernet, arp, &question, mac);
	return XDP_TX;
}

/* Answers a neighbor solicitation for an owned public address. XDP_PASS: it asks for another one, or nothing. */
__attribute__((noinline)) int answer_public_solicit(struct xdp_md *ctx, struct packet *packet)
{
	__u64 target[2] = {};
	enum drop_reason reason;

	if (!packet || packet->frame.transport >> 24 != ICMP6_SOLICIT)
		return XDP_PASS;
	reason = parse_solicit(ctx, 0, &packet->frame, target);
	return answer_solicit(ctx, &packet->frame, target, reason,
			      owned_public_mac(packet, FRAME_IPV6, target));
}

/*
 * As drop_with_error() (answer_tenant.h), for a packet from the Internet. The error comes from the public address that the
 * packet was sent to.
 */
__attribute__((noinline)) int drop_with_public_error(struct xdp_md *ctx, struct packet *packet, __u32 reason)
{
	const struct underlay_port *port = ingress_port(ctx);
	struct icmp_error error = {};

	if (!packet)
		return XDP_DROP;
	if (!port)
		return drop(packet->vni, DROP_stale_index);
	count_drop(packet->vni, reason);
	if (!icmp_error_allowed(&packet->frame))
		return XDP_DROP;
	if (!icmp_within_budget(&internet_icmp_budget, packet->counters))
		return drop(packet->vni, DROP_icmp_rate);
	error.router4 = packet->frame.destination[1];
	error.router6[0] = packet->frame.destination[0];
	error.router6[1] = packet->frame.destination[1];
	error.router_mac = underlay_port_mac(port);
	return turn_into_error(ctx, packet, 0, &error) ? XDP_TX : drop(packet->vni, DROP_headroom);
}

/* Reads the destination and the protocol, without checking the header. 0: the packet is not IP, or too short. */
static __always_inline int read_destination(struct xdp_md *ctx, struct packet *packet)
{
	struct cursor cursor = cursor_at(ctx, 0);
	const struct ethernet_header *ethernet = take_header(&cursor, struct ethernet_header);
	const struct ipv4_header *ip4;
	const struct ipv6_header *ip6;

	if (!ethernet)
		return 0;
	packet->frame.destination_mac = load_mac(ethernet->destination);
	packet->frame.flags = 0;
	packet->frame.ethertype = bpf_ntohs(ethernet->type);
	packet->frame.ttl = 0;
	if (packet->frame.ethertype == ETH_P_IP) {
		ip4 = take_header(&cursor, struct ipv4_header);
		if (!ip4)
			return 0;
		packet->frame.protocol = ip4->protocol;
		packet->frame.destination[0] = 0;
		packet->frame.destination[1] = bpf_ntohl(ip4->destination);
		return 1;
	}
	ip6 = take_header(&cursor, struct ipv6_header);
	if (packet->frame.ethertype != ETH_P_IPV6 || !ip6)
		return 0;
	packet->frame.flags = FRAME_IPV6;
	packet->frame.protocol = ip6->next;
	packet->frame.ttl = ip6->hop_limit;
	load_halves(packet->frame.destination, ip6->destination);
	return 1;
}

/* Whether the destination is the node's own address on the underlay. */
static __always_inline int is_vtep(const struct frame *frame)
{
	const struct node_config *node = cell_at(CELL_NODE);

	if (!node)
		return 0;
	if (frame->flags & FRAME_IPV6)
		return node->flags & NODE_HAS_IPV6 && load_half(node->vtep6) == frame->destination[0] &&
		       load_half(node->vtep6 + 8) == frame->destination[1];
	return node->flags & NODE_HAS_IPV4 && bpf_ntohl(node->vtep4) == frame->destination[1];
}

/*
 * Whether the frame is for this node: to a vMAC of the cluster, or to the MAC address of the port. A switch floods others.
 * The vMAC may be that of another vIP than the address has now: neighbors learn of a change only by an announcement.
 */
static __always_inline int is_for_public(struct xdp_md *ctx, const struct packet *packet)
{
	const struct next_hop *vip = public_vip(packet->destination_public);

	return (vip && !((load_mac(vip->mac) ^ packet->frame.destination_mac) >> VMAC_SLOT_BITS)) ||
	       is_port_mac(ctx->ingress_ifindex, packet->frame.destination_mac);
}

/* Checks a packet to a public address. */
__attribute__((noinline)) enum drop_reason admit_from_internet(struct xdp_md *ctx, struct packet *packet)
{
	const struct underlay_port *port = ingress_port(ctx);
	enum drop_reason reason;
	__u32 cell;

	if (!packet || !port)
		return DROP_stale_index;
	packet->frame.identity = 0;
	reason = parse_frame(ctx, 0, context_bytes(ctx), &packet->frame);
	if (reason)
		return reason;
	if (!source_valid(&packet->frame) ||
	    !internet_address_valid(packet->frame.flags, packet->frame.source))
		return DROP_martian_source;
	/* What a VM sends to another public address goes on with its new source. */
	cell = packet->nat & PACKET_OF_CLUSTER
		     ? 0
		     : find_public(packet, packet->frame.flags, packet->frame.source);
	if (cell)
		return cell == INDEX_BUSY ? DROP_table_busy : DROP_martian_source;
	packet->new_source[0] = packet->frame.source[0];
	packet->new_source[1] = packet->frame.source[1];
	packet->source_public = 0;
	packet->final_vni = packet->vni;
	/* A tunnel from another gateway, or from a host, may have met congestion (RFC 6040): its mark goes on to the host. */
	if (!(packet->nat & PACKET_OF_CLUSTER))
		packet->traffic_class = outer_ecn(&packet->frame);
	packet->frame_bytes = ETH_HLEN + packet->frame.ip_bytes;
	packet->longest = port->mtu;
	return DROP_none;
}

/* Forwards a packet that was admitted to the instance behind the public address. FOR_NAT64_IN: the program does. */
__attribute__((noinline)) int enter_vpc(struct xdp_md *ctx, struct packet *packet)
{
	enum drop_reason reason;

	if (!packet)
		return drop(0, DROP_stale_index);
	reason = find_inside(packet, packet->vrf);
	/* Bytes behind the IP packet are not sent on. */
	if (!reason && resize(ctx, packet->frame_bytes))
		reason = DROP_headroom;
	if (!reason)
		reason = packet->nat & PACKET_NAT64 ? prepare_nat64(ctx, packet)
						    : deliver_inside(ctx, packet, 0);
	if (reason)
		return packet->error_type && !(packet->nat & PACKET_OF_CLUSTER)
			     ? drop_with_public_error(ctx, packet, reason)
			     : drop(packet->vni, reason);
	return packet->verdict;
}

/*
 * Passes a packet to an address of a NAT gateway on to the owner of its vIP, in a tunnel with VNI 0. The frame is `at` bytes into
 * the packet, as for deliver_inside().
 */
__attribute__((noinline)) int pass_on(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	const struct public_prefix *public;
	enum drop_reason reason;
	const struct vrf *vrf;
	__u32 vrf_cell;

	if (!packet)
		return drop(0, DROP_stale_index);
	public = public_prefix_at(packet->destination_public);
	if (!public)
		return drop(packet->vni, DROP_stale_index);
	vrf_cell = find_index(public->vni, 0);
	if (vrf_cell == INDEX_BUSY)
		return drop(packet->vni, DROP_table_busy);
	vrf = vrf_at(vrf_cell, public->vni);
	if (!vrf)
		return drop(packet->vni, DROP_stale_index);
	packet->next_hop = READ_ONCE(public->vip);
	if (!next_hop_at(packet->next_hop, NEXT_HOP_VIP))
		return drop(packet->vni, DROP_not_owner);
	if (!may_pass_on(packet))
		return drop(packet->vni, DROP_pass_limit);
	packet->nat |= PACKET_TO_OWNER;
	packet->final_vni = 0;
	packet->mtu = READ_ONCE(vrf->mtu);
	packet->new_destination[0] = packet->frame.destination[0];
	packet->new_destination[1] = packet->frame.destination[1];
	/* The owner does not know where the sender is. */
	reason = check_ttl(packet);
	if (!reason)
		reason = resize(ctx, at + packet->frame_bytes) ? DROP_headroom
							       : deliver_inside(ctx, packet, at);
	if (!reason)
		return packet->verdict;
	if (packet->nat & PACKET_TURNED)
		return drop(packet->vni, reason);
	return at || !packet->error_type ? drop_to_sender(ctx, packet, reason)
					 : drop_with_public_error(ctx, packet, reason);
}

/* Admits a packet to the public address in destination_public. `of_cluster`: PACKET_FROM_GATEWAY, PACKET_TURNED, or 0. */
static __always_inline int admit_to_vpc(struct xdp_md *ctx, struct packet *packet, __u8 of_cluster)
{
	const struct public_prefix *public = public_prefix_at(packet->destination_public);
	enum drop_reason reason;

	if (!public)
		return drop(0, DROP_stale_index);
	packet->vni = public->vni;
	reason = classify(packet);
	if (reason)
		return drop(0, reason);
	packet->nat |= of_cluster;
	reason = admit_from_internet(ctx, packet);
	if (reason)
		return drop(packet->vni, reason);
	coarse_now(packet);
	if (!(public->flags & PUBLIC_NAT))
		return of_cluster & PACKET_FROM_GATEWAY ? drop(packet->vni, DROP_not_owner) : FOR_VPC;
	if (is_owned_vip(READ_ONCE(public->vip)))
		return FOR_NAT_DESTINATION;
	return of_cluster & PACKET_FROM_GATEWAY ? drop(packet->vni, DROP_not_owner) : FOR_OWNER;
}

/* Takes a packet that another gateway has passed on out of its tunnel, and admits it. */
__attribute__((noinline)) int take_over(struct xdp_md *ctx, struct packet *packet)
{
	enum drop_reason reason;
	__u32 cell;

	if (!packet)
		return drop(0, DROP_stale_index);
	packet->nat = 0;
	reason = check_gateway(packet);
	if (reason)
		return drop(0, reason);
	if (bpf_xdp_adjust_head(ctx, (int)tunnel_bytes(packet)))
		return drop(0, DROP_headroom);
	if (!read_destination(ctx, packet))
		return drop(0, DROP_inner_truncated);
	cell = find_public(packet, packet->frame.flags, packet->frame.destination);
	if (cell == INDEX_BUSY)
		return drop(0, DROP_table_busy);
	packet->destination_public = cell;
	return cell ? admit_to_vpc(ctx, packet, PACKET_FROM_GATEWAY) : drop(0, DROP_not_owner);
}

/* Admits a packet to a public address that NAT64 has turned into one of IPv4. */
__attribute__((noinline)) int turn_over(struct xdp_md *ctx, struct packet *packet)
{
	return packet ? admit_to_vpc(ctx, packet, PACKET_TURNED) : drop(0, DROP_stale_index);
}

/* Whether the packet may be neighbor discovery, which is never routed (RFC 4861 section 7.1). */
static __always_inline int may_be_nd(const struct frame *frame)
{
	return frame->flags & FRAME_IPV6 && frame->protocol == IPPROTO_ICMPV6 && frame->ttl == ND_HOP_LIMIT;
}

/* Answers what asks for a public address. XDP_PASS: the packet asks for none. */
static __always_inline int answer_internet(struct xdp_md *ctx, struct packet *packet, int is_ip)
{
	if (packet->frame.ethertype == ETH_P_ARP)
		return answer_public_arp(ctx, packet);
	if (is_ip && may_be_nd(&packet->frame) && !parse_underlay_frame(ctx, packet) && is_nd(&packet->frame))
		return answer_public_solicit(ctx, packet);
	return XDP_PASS;
}

__attribute__((noinline)) int internet_in(struct xdp_md *ctx, struct packet *packet)
{
	int is_ip, verdict;
	__u32 cell;

	if (!packet)
		return drop(0, DROP_stale_index);
	is_ip = read_destination(ctx, packet);
	verdict = answer_internet(ctx, packet, is_ip);
	if (verdict == XDP_TX)
		return send_answer(ctx, packet->frame.destination_mac);
	if (verdict != XDP_PASS)
		return verdict;
	if (!is_ip)
		return pass_to_kernel(ctx);
	cell = find_public(packet, packet->frame.flags, packet->frame.destination);
	if (cell == INDEX_BUSY)
		return drop(0, DROP_table_busy);
	packet->destination_public = cell;
	if (cell && is_for_public(ctx, packet))
		return admit_to_vpc(ctx, packet, 0);
	return is_vtep(&packet->frame) ? drop(0, DROP_not_routed) : pass_to_kernel(ctx);
}

#endif
