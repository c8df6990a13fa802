/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stages "classify" and "CGW" (cloud gateway, a term of LuoShen): the VPC of the packet, its
 * route, the peerings that the route follows, and the endpoint with its host.
 *
 * Contract: classify() expects vni, fills in vrf, counters and elephant_bytes, and clears nat. route() expects
 * these and the tenant's frame, and fills in routed, final_vni, mtu, peering, to_internet, and unless that is set endpoint,
 * endpoint_mac and next_hop; with `peering`, elephant_bytes is ELEPHANT_NEVER. Both return DROP_none or the reason to drop; error_type is then set if the sender gets an ICMP error.
 * Packet bytes are neither read nor changed. Reads only the map `cells`.
 */
#ifndef SLUICE_CGW_H
#define SLUICE_CGW_H

#include "common/icmp_error.h"
#include "common/lookup.h"
#include "common/services.h"
#include "gateway/packet.h"

/* Finds the VPC of the VNI in the VXLAN header. */
__attribute__((noinline)) enum drop_reason classify(struct packet *packet)
{
	struct vrf *vrf;
	__u32 cell;

	if (!packet)
		return DROP_stale_index;
	cell = find_index(packet->vni, 0);
	if (!cell)
		return DROP_unknown_vni;
	if (cell == INDEX_BUSY)
		return DROP_table_busy;
	vrf = vrf_at(cell, packet->vni);
	if (!vrf)
		return DROP_stale_index;
	packet->vrf = cell;
	packet->nat = 0;
	packet->counters = READ_ONCE(vrf->counters);
	packet->elephant_bytes = vrf_elephant_bytes(vrf);
	return DROP_none;
}

/* Takes the destination for the address of the instance that gets the packet. */
static __always_inline enum drop_reason deliver_to_destination(struct packet *packet)
{
	packet->endpoint[0] = packet->frame.destination[0];
	packet->endpoint[1] = packet->frame.destination[1];
	packet->endpoint_ipv6 = !!(packet->frame.flags & FRAME_IPV6);
	return DROP_none;
}

/* The packet goes to the Internet (internet_out.h). By a peer's route it does not: its source is of another VPC. */
static __always_inline enum drop_reason leave_to_internet(struct packet *packet)
{
	if (!packet->routed)
		return DROP_wrong_mac;
	if (packet->final_vni != packet->vni)
		return DROP_no_public_address;
	packet->to_internet = 1;
	return DROP_none;
}

/*
 * Reads the address of the instance to which a prefix of the VNI is delegated, from the argument of SCOPE_NEXT_HOP. A route to a
 * peer leads to no instance of the VNI.
 */
static __always_inline enum drop_reason read_next_hop(__u32 cell, __u32 vni, __u64 *address, __u8 *ipv6)
{
	const struct next_hop *hop = next_hop_at(cell & LEAF_ARGUMENT_MASK, NEXT_HOP_INSTANCE);

	if (!hop && peering_at(cell & LEAF_ARGUMENT_MASK))
		return DROP_no_endpoint;
	if (!hop || READ_ONCE(hop->vni) != vni)
		return DROP_stale_index;
	*ipv6 = !!(hop->flags & NEXT_HOP_IPV6);
	address[0] = 0;
	address[1] = bpf_ntohl(LOAD32(hop->address));
	if (*ipv6)
		load_halves(address, hop->address);
	return DROP_none;
}

/*
 * The VNI of the peer to which the argument of SCOPE_NEXT_HOP leads, through meters, from which the packet takes when it is sent
 * (peering_meters.h). No direct path may avoid them, so its flow is never an elephant. 0: the argument leads to no peer.
 */
static __always_inline __u32 follow_peering(struct packet *packet, __u32 cell, __u32 vni)
{
	const struct peering *peering = peering_at(cell & LEAF_ARGUMENT_MASK);

	if (!peering || READ_ONCE(peering->vni) != vni)
		return 0;
	/* A packet with one more is dropped. */
	packet->peering[packet->peerings % PEER_HOPS_MAX] = cell & LEAF_ARGUMENT_MASK;
	packet->peerings++;
	packet->elephant_bytes = ELEPHANT_NEVER;
	return READ_ONCE(peering->peer);
}

/* The route for an address, which is of IPv6 with FRAME_IPV6 in `flags`. */
static __always_inline __u32 find_leaf(const struct vrf *vrf, __u32 flags, const __u64 *address)
{
	if (flags & FRAME_IPV6)
		return find_route6(READ_ONCE(vrf->lpm6), address[0], address[1]);
	return find_route4(READ_ONCE(vrf->lpm4), address[1]);
}

/* Follows the routes for the destination, from VPC to peered VPC, to the VNI and the address of an instance. */
static __always_inline enum drop_reason follow_route(struct packet *packet)
{
	__u32 vni = packet->vni, cell = packet->vrf;

	for (int hops = 0; hops <= PEER_HOPS_MAX; hops++) {
		struct vrf *vrf = vrf_at(cell, vni);
		__u32 leaf, peer;

		if (!vrf)
			return DROP_stale_index;
		leaf = find_leaf(vrf, packet->frame.flags, packet->frame.destination);
		packet->final_vni = vni;
		packet->mtu = READ_ONCE(vrf->mtu);
		switch (leaf >> LEAF_SCOPE_SHIFT) {
		case SCOPE_LOCAL:
			return deliver_to_destination(packet);
		case SCOPE_NEXT_HOP:
			peer = follow_peering(packet, leaf, vni);
			if (!peer)
				return read_next_hop(leaf, vni, packet->endpoint, &packet->endpoint_ipv6);
			break;
		case SCOPE_INTERNET:
			return leave_to_internet(packet);
		case SCOPE_PEER:
			peer = leaf & LEAF_ARGUMENT_MASK;
			break;
		case SCOPE_DROP:
			return DROP_route_drop;
		default:
			return leaf ? DROP_stale_index : DROP_no_route;
		}
		/* A frame to a neighbor's MAC address does not leave its VPC. */
		if (!packet->routed)
			return DROP_wrong_mac;
		vni = peer;
		cell = find_index(vni, 0);
		if (!cell)
			return DROP_unknown_vni;
		if (cell == INDEX_BUSY)
			return DROP_table_busy;
	}
	return DROP_peer_loop;
}

/* The MAC address and host of the instance with this address (the VM-NC mapping of Sailfish). */
static __always_inline enum drop_reason find_endpoint(__u32 vni, int ipv6, const __u64 *address,
						      struct exact_hit *hit)
{
	enum exact_answer answer;

	if (ipv6)
		answer = find_ipv6(vni, address[0], address[1], hit);
	else
		answer = find_ipv4(vni, address[1], hit);
	if (answer == EXACT_BUSY)
		return DROP_table_busy;
	return answer == EXACT_HIT ? DROP_none : DROP_no_endpoint;
}

/* If the endpoint is a service, takes the member of the packet's flow, by the table that hosts have as well (Achelous section 5.2). */
static __always_inline enum drop_reason choose_member(struct packet *packet)
{
	const struct next_hop *hop;
	__u64 member;

	if (!service_at(packet->next_hop))
		return DROP_none;
	member = find_member(packet->next_hop, &packet->frame, 0);
	hop = member ? next_hop_at(member, NEXT_HOP_VTEP) : NULL;
	if (!hop)
		return DROP_no_member;
	packet->endpoint_mac = load_mac(hop->mac);
	packet->next_hop = member;
	return DROP_none;
}

/* A router drops a packet that it would send with a TTL of 0 (RFC 1812 section 5.3.1). */
static __always_inline enum drop_reason check_ttl(struct packet *packet)
{
	if (packet->frame.ttl > 1)
		return DROP_none;
	packet->error_type = packet->frame.flags & FRAME_IPV6 ? ICMP6_TIME_EXCEEDED : ICMP4_TIME_EXCEEDED;
	return DROP_ttl_exceeded;
}

__attribute__((noinline)) enum drop_reason route(struct packet *packet)
{
	const struct node_config *node = cell_at(CELL_NODE);
	struct exact_hit hit = {};
	enum drop_reason reason;

	if (!packet || !node)
		return DROP_stale_index;
	if (!source_valid(&packet->frame))
		return DROP_inner_source;
	if (frame_multicast(&packet->frame))
		return DROP_multicast;
	packet->routed = packet->frame.destination_mac == load_mac(node->router_mac);
	/* Routers do not forward link-local addresses (RFC 4291 section 2.5.6). */
	if (packet->frame.flags & FRAME_IPV6 && packet->routed &&
	    (ipv6_link_local(packet->frame.source[0]) || ipv6_link_local(packet->frame.destination[0])))
		return DROP_link_local;
	packet->to_internet = 0;
	packet->peerings = 0;
	reason = follow_route(packet);
	if (reason || packet->to_internet)
		return reason;
	reason = find_endpoint(packet->final_vni, packet->endpoint_ipv6, packet->endpoint, &hit);
	if (reason)
		return reason;
	if (!packet->routed && hit.mac != packet->frame.destination_mac)
		return DROP_wrong_mac;
	if (packet->routed && check_ttl(packet))
		return DROP_ttl_exceeded;
	packet->endpoint_mac = hit.mac;
	packet->next_hop = hit.next;
	return choose_member(packet);
}

#endif
