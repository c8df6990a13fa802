/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: packets of VMs to the Internet.
 *
 * Contract: send_to_internet() expects a packet for which route() (cgw.h) has set to_internet, and returns the program's
 * verdict. The packet is sent by the Internet port that the kernel's FIB gives; or to a host, in the same pass, if its
 * destination is a public address of the cluster (hairpin). It is counted in `vni_traffic`, but not as part of a flow,
 * because there is no direct path to the Internet. No packet is sent from an address that has no public one. Otherwise it is
 * dropped and counted, or becomes an ICMP error to its sender. FOR_NAT_SOURCE or FOR_NAT_DESTINATION: source NAT has to
 * translate the packet first (nat_stage.h), and then this is called again. If another gateway owns the vIP of the NAT gateway,
 * the packet is passed on to it, unchanged in a tunnel of its VPC. FOR_RING: it could go on from here, but other gateways do not know its session, or that it is confirmed, and
 * pass_around() (nat_ring.h) sends it to the other gateways first. FOR_OWNER: as for internet_in() (internet_in.h). FOR_NAT64_OUT:
 * nat64_out() (nat64.h) turns the packet into one of IPv4, and leave_as_ipv4() sends it; FOR_TURNED is the result of that, if turn_over()
 * (internet_in.h) has to take it as one from the Internet, because its destination is public. FOR_NAT64_IN: as for enter_vpc()
 * (internet_in.h). What is passed on is not counted: its owner counts it. Uses the maps `cells`, `meters`, `internet_paths`, `vni_traffic`,
 * `icmp_budget`, `pass_budget`, `nat_config`, `sum_chunks` and those of count.h.
 */
#ifndef SLUICE_INTERNET_OUT_H
#define SLUICE_INTERNET_OUT_H

#include "gateway/answer_sender.h"
#include "gateway/deliver_inside.h"
#include "gateway/internet_port.h"
#include "gateway/meter_stage.h"
#include "gateway/nat_flow.h"
#include "gateway/nat64.h"
#include "gateway/pass_limit.h"

/*
 * Marks the packet at the cursor if the underlay has seen congestion (RFC 6040 section 4.2). A packet without ECN stays
 * as it is: its tunnel has a copy of its ECN field, so a correct underlay does not mark the tunnel.
 */
static __always_inline void mark_congestion(struct cursor *cursor, const struct packet *packet)
{
	struct ipv4_header *ip4 = cursor->at + ETH_HLEN;
	struct ipv6_header *ip6 = cursor->at + ETH_HLEN;
	__u16 before;

	if ((packet->traffic_class & ECN_MASK) != ECN_CE || !(packet->frame.traffic_class & ECN_MASK))
		return;
	if (packet->frame.flags & FRAME_IPV6) {
		ip6->version |= bpf_htonl(ECN_CE << IPV6_CLASS_SHIFT);
		return;
	}
	before = LOAD16(&ip4->version);
	ip4->traffic_class |= ECN_CE;
	ip4->checksum = checksum_update(ip4->checksum, before, LOAD16(&ip4->version));
}

/*
 * The longest IP packet that can come back to the sender, by the MTU of its VPC and the tunnel to its host. 0: the packet
 * came by no port.
 */
static __always_inline __u32 longest_back(struct xdp_md *ctx, const struct packet *packet)
{
	const struct underlay_port *port = ingress_port(ctx);

	/* What comes back to a packet of the ring passes the owner, whose tunnel to the host is not known here. */
	return port ? path_mtu(packet, port, packet->ipv6 || packet->ring) : 0;
}

/* Sends the packet, whose tunnel is `at` bytes long, by the Internet port that was found. */
static __always_inline enum drop_reason send_out(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	enum drop_reason reason = translate(ctx, packet, at);
	struct cursor cursor;

	/* The owner has metered what leaves the ring here. */
	if (!reason && !packet->ring)
		reason = meter_packet(packet, METER_OUT);
	if (reason)
		return reason;
	if (at && bpf_xdp_adjust_head(ctx, (int)at))
		return DROP_headroom;
	cursor = cursor_at(ctx, 0);
	if (!cursor_has(&cursor, ETH_HLEN + IPV4_BYTES))
		return DROP_headroom;
	mark_congestion(&cursor, packet);
	rewrite_frame(&cursor, packet, packet->internet_mac);
	count_traffic(packet->counters, packet->frame_bytes);
	packet->verdict = send_by(ctx, packet->internet_ifindex);
	return DROP_none;
}

/*
 * Sends the packet by the Internet port, without its tunnel. FOR_RING in `verdict`: it goes to another gateway before; FOR_NAT64_OUT: it
 * becomes one of IPv4 before.
 */
static __always_inline enum drop_reason leave(struct xdp_md *ctx, struct packet *packet)
{
	__u32 shrinkage = packet->nat & PACKET_NAT64 ? nat64_shrinkage(&packet->frame) : 0;
	enum drop_reason reason = check_ttl(packet);
	__u32 back = longest_back(ctx, packet);

	if (!reason)
		reason = find_internet_port(ctx, packet);
	if (reason)
		return reason;
	if (!back)
		return DROP_stale_index;
	if (bytes_outside(packet) > packet->longest)
		return too_big(packet, packet->longest + shrinkage);
	if (packet->nat & PACKET_IN_RING) {
		packet->verdict = FOR_RING;
		return meter_packet(packet, METER_OUT);
	}
	if (packet->nat & PACKET_NAT64)
		back -= NAT64_BYTES;
	if (back < packet->longest)
		packet->longest = back;
	if (packet->nat & PACKET_NAT64) {
		packet->verdict = FOR_NAT64_OUT;
		return DROP_none;
	}
	return send_out(ctx, packet, tunnel_bytes(packet));
}

/* Sends the packet, whose destination is public, to the instance behind it. */
static __always_inline enum drop_reason turn_back(struct xdp_md *ctx, struct packet *packet)
{
	const struct public_prefix *public = public_prefix_at(packet->destination_public);
	enum drop_reason reason;
	__u32 vrf;

	if (!public)
		return DROP_stale_index;
	packet->final_vni = public->vni;
	vrf = find_index(packet->final_vni, 0);
	if (vrf == INDEX_BUSY)
		return DROP_table_busy;
	if (!vrf)
		return DROP_unknown_vni;
	packet->longest = longest_back(ctx, packet);
	if (!packet->longest)
		return DROP_stale_index;
	reason = find_inside(packet, vrf);
	if (reason)
		return reason;
	return packet->nat & PACKET_NAT64 ? prepare_nat64(ctx, packet)
					  : deliver_inside(ctx, packet, tunnel_bytes(packet));
}

/* Passes the packet on to the owner of the vIP in this cell, once, and not more than its VPC may have passed on. */
static __always_inline enum drop_reason pass_to_owner(struct xdp_md *ctx, struct packet *packet, __u32 vip)
{
	if (packet->nat & PACKET_FROM_GATEWAY || !next_hop_at(vip, NEXT_HOP_VIP))
		return DROP_not_owner;
	if (!may_pass_on(packet))
		return DROP_pass_limit;
	packet->nat |= PACKET_TO_OWNER;
	packet->next_hop = vip;
	/* As a frame that is bridged, it stays as it is. */
	packet->routed = 0;
	return forward_to_host(ctx, packet);
}

/* The cell of the vIP of the packet's NAT gateway. 0: that was removed. */
static __always_inline __u32 nat_vip(const struct packet *packet)
{
	const struct nat_gateway *gateway = nat_gateway_at(packet->nat_gateway);

	return gateway ? READ_ONCE(gateway->vip) : 0;
}

/*
 * Sets PACKET_NAT64 and new_destination if the destination of an IPv6 packet is in the prefix of the VPC's NAT gateway. Then the source
 * is translated even if it has a public address, which is of IPv6.
 */
static __always_inline enum drop_reason find_nat64(struct packet *packet, const struct vrf *vrf)
{
	const struct internet *internet = internet_of(vrf);
	__u32 cell = internet ? READ_ONCE(internet->nat) : 0;
	const struct nat_gateway *gateway = cell ? nat_gateway_at(cell) : NULL;
	const __u64 *prefix = gateway ? nat64_prefix(gateway, cell) : NULL;
	const __u64 *destination = packet->frame.destination;

	if (!prefix || destination[0] != prefix[0] || (destination[1] ^ prefix[1]) >> 32)
		return DROP_none;
	packet->nat |= PACKET_NAT64;
	packet->new_destination[0] = 0;
	packet->new_destination[1] = (__u32)destination[1];
	if (prefix[0] == NAT_REMOTE_HIGH && !prefix[1] && is_private4(destination[1]))
		return DROP_nat64_address;
	return DROP_none;
}

/* Finds the NAT gateway for a source without a public address. The verdict says what follows. */
static __always_inline enum drop_reason find_nat_gateway(struct xdp_md *ctx, struct packet *packet,
							 const struct vrf *vrf)
{
	const struct internet *internet = internet_of(vrf);
	int is_nat64 = packet->nat & PACKET_NAT64;
	const struct nat_gateway *gateway;
	enum drop_reason reason;

	packet->nat_gateway = internet ? READ_ONCE(internet->nat) : 0;
	if (!packet->nat_gateway || (packet->frame.flags & FRAME_IPV6 && !is_nat64))
		return DROP_no_public_address;
	gateway = nat_gateway_at(packet->nat_gateway);
	if (!gateway || gateway->vni != packet->vni)
		return DROP_stale_index;
	if (!internet_address_valid(0, is_nat64 ? packet->new_destination : packet->frame.destination))
		return DROP_no_internet_route;
	/* An expired packet begins no session. Whether there is a way out depends on the new source. */
	reason = check_ttl(packet);
	if (reason)
		return reason;
	packet->verdict = FOR_NAT_SOURCE;
	/* A packet of the ring has a session. */
	if (packet->ring)
		return DROP_none;
	return is_owned_vip(READ_ONCE(gateway->vip)) ? DROP_none
						     : pass_to_owner(ctx, packet, READ_ONCE(gateway->vip));
}

/*
 * Whether a packet from a source with a public address may belong to a session of source NAT, which began before that. It goes on
 * as it began, because the remote endpoint knows the other address. The verdict says what follows then.
 */
static __always_inline int may_have_old_session(struct packet *packet, const struct vrf *vrf)
{
	const struct internet *internet = internet_of(vrf);
	const struct nat_gateway *gateway;

	packet->nat_gateway = internet ? READ_ONCE(internet->nat) : 0;
	if (!packet->nat_gateway || packet->frame.flags & FRAME_IPV6)
		return 0;
	gateway = nat_gateway_at(packet->nat_gateway);
	if (!gateway || gateway->vni != packet->vni)
		return 0;
	packet->nat |= PACKET_OLD_SESSION;
	packet->source_public = 0;
	packet->verdict = FOR_NAT_SOURCE;
	return 1;
}

/* Finds what the source is translated to. The verdict says what follows, unless it is 0. */
static __always_inline enum drop_reason find_source(struct xdp_md *ctx, struct packet *packet)
{
	const struct vrf *vrf = vrf_at(packet->vrf, packet->vni);
	struct frame *frame = &packet->frame;
	__u32 cell;

	if (!vrf)
		return DROP_stale_index;
	packet->new_source[0] = frame->source[0];
	packet->new_source[1] = frame->source[1];
	packet->source_public = 0;
	if (frame->flags & FRAME_IPV6) {
		enum drop_reason reason = find_nat64(packet, vrf);

		if (reason)
			return reason;
		if (packet->nat & PACKET_NAT64)
			return find_nat_gateway(ctx, packet, vrf);
	}
	packet->source_public = find_public_source(vrf, frame->flags, frame->source);
	if (!packet->source_public || packet->ring)
		return find_nat_gateway(ctx, packet, vrf);
	if (packet->nat & PACKET_OWNED_ELSEWHERE)
		return pass_to_owner(ctx, packet, nat_vip(packet));
	if (!(packet->nat & PACKET_OLD_SESSION) && may_have_old_session(packet, vrf))
		return DROP_none;
	if (!to_outside(packet->source_public, packet->new_source))
		return unmapped_reason(packet->source_public, DROP_no_public_address);
	/* Another VPC may have a longer prefix with this address, and what comes back goes there. */
	cell = find_public(packet, frame->flags, packet->new_source);
	if (cell != packet->source_public)
		return cell == INDEX_BUSY ? DROP_table_busy : DROP_no_public_address;
	return DROP_none;
}

/* Whether the address that source NAT has chosen is still one of the VPC's NAT gateway. */
static __always_inline enum drop_reason check_nat_source(struct packet *packet)
{
	__u32 cell = find_public(packet, 0, packet->new_source);
	const struct public_prefix *public;

	if (cell == INDEX_BUSY)
		return DROP_table_busy;
	public = public_prefix_at(cell);
	return public && public->flags & PUBLIC_NAT && public->vni == packet->vni ? DROP_none
										  : DROP_no_public_address;
}

/* The packet goes to another gateway before it goes to the instance behind a public address. */
static __always_inline enum drop_reason visit_ring(struct packet *packet)
{
	enum drop_reason reason = check_ttl(packet);

	if (reason)
		return reason;
	packet->verdict = FOR_RING;
	return meter_packet(packet, METER_OUT);
}

/* As internet_out() for a packet to the prefix of NAT64, whose new addresses are of IPv4. */
static __always_inline enum drop_reason nat64_to_outside(struct xdp_md *ctx, struct packet *packet)
{
	packet->destination_public = find_public(packet, 0, packet->new_destination);
	if (packet->destination_public == INDEX_BUSY)
		return DROP_table_busy;
	if (!packet->destination_public)
		return leave(ctx, packet);
	if (packet->nat & PACKET_IN_RING)
		return visit_ring(packet);
	packet->longest = longest_back(ctx, packet);
	if (packet->longest <= NAT64_BYTES)
		return DROP_stale_index;
	packet->longest -= NAT64_BYTES;
	packet->verdict = FOR_NAT64_OUT;
	return check_ttl(packet);
}

/* Finds out whether the destination of a packet with a new source is in the Internet or behind a public address. */
static __always_inline enum drop_reason internet_out(struct xdp_md *ctx, struct packet *packet)
{
	struct frame *frame = &packet->frame;
	const struct public_prefix *public;

	if (!internet_address_valid(frame->flags, frame->destination))
		return DROP_no_internet_route;
	/* The new destination is that of the prefix which was found before. */
	if (packet->nat & PACKET_NAT_DESTINATION)
		return turn_back(ctx, packet);
	if (packet->nat & PACKET_NAT64)
		return nat64_to_outside(ctx, packet);
	packet->destination_public = find_public(packet, frame->flags, frame->destination);
	if (packet->destination_public == INDEX_BUSY)
		return DROP_table_busy;
	if (!packet->destination_public) {
		packet->new_destination[0] = frame->destination[0];
		packet->new_destination[1] = frame->destination[1];
		return leave(ctx, packet);
	}
	if (packet->nat & PACKET_IN_RING)
		return visit_ring(packet);
	public = public_prefix_at(packet->destination_public);
	if (!public || !(public->flags & PUBLIC_NAT))
		return turn_back(ctx, packet);
	packet->longest = longest_back(ctx, packet);
	packet->verdict = is_owned_vip(READ_ONCE(public->vip)) ? FOR_NAT_DESTINATION : FOR_OWNER;
	return check_ttl(packet);
}

__attribute__((noinline)) int send_to_internet(struct xdp_md *ctx, struct packet *packet)
{
	enum drop_reason reason;

	if (!packet)
		return drop(0, DROP_stale_index);
	coarse_now(packet);
	packet->verdict = 0;
	reason = packet->nat & PACKET_NAT_SOURCE ? check_nat_source(packet) : find_source(ctx, packet);
	if (!reason && packet->verdict)
		return packet->verdict;
	/* Bytes behind the IP packet are not sent on, and count for no MTU. */
	packet->frame_bytes = ETH_HLEN + packet->frame.ip_bytes;
	if (!reason && resize(ctx, tunnel_bytes(packet) + packet->frame_bytes))
		reason = DROP_headroom;
	if (!reason)
		reason = internet_out(ctx, packet);
	if (!reason)
		return packet->verdict;
	if (packet->nat & PACKET_IN_RING)
		uncount_nat_packet();
	return drop_to_sender(ctx, packet, reason);
}

/*
 * Sends a packet that nat64_out() has turned into one of IPv4, by the Internet port that was found. FOR_TURNED: its destination is a
 * public address, and it goes on without a tunnel.
 */
__attribute__((noinline)) int leave_as_ipv4(struct xdp_md *ctx, struct packet *packet)
{
	struct ethernet_header *ethernet;
	enum drop_reason reason;
	struct cursor cursor;

	if (!packet)
		return drop(0, DROP_stale_index);
	if (!packet->destination_public) {
		reason = send_out(ctx, packet, 0);
		return reason ? drop(packet->vni, reason) : packet->verdict;
	}
	reason = translate(ctx, packet, 0);
	if (!reason && !packet->ring)
		reason = meter_packet(packet, METER_OUT);
	if (reason)
		return drop(packet->vni, reason);
	cursor = cursor_at(ctx, 0);
	ethernet = take_header(&cursor, struct ethernet_header);
	if (!ethernet)
		return drop(packet->vni, DROP_headroom);
	store_mac(ethernet->destination, packet->frame.destination_mac);
	store_mac(ethernet->source, packet->frame.source_mac);
	count_traffic(packet->counters, packet->frame_bytes);
	return FOR_TURNED;
}

#endif
