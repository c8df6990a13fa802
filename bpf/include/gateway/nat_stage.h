/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge, stage "NAT": the address and port that source NAT gives to the source of a packet of a VM, and the
 * instance that gets a packet to a public address of a NAT gateway. The owner of the vIP of a NAT gateway uses its sessions; the other gateways have copies.
 *
 * Contract: both stages expect the parsed frame, `at` bytes into the packet, and now_ns. It is of IPv4, or with PACKET_NAT64 of IPv6.
 *
 *   nat_source()       expects nat_gateway, of `vni`. Fills in new_source and new_source_port.
 *   nat_destination()  expects destination_public with PUBLIC_NAT, and new_source, with source_public or
 *                      PACKET_NAT_SOURCE if that is not the source in the frame. Fills in new_destination and
 *                      new_destination_port. If the inside address is one of IPv6, PACKET_NAT64 is set then.
 *
 * They return 0, with PACKET_NAT_SOURCE or PACKET_NAT_DESTINATION set in `nat`, and PACKET_NO_SESSION for a source that a port
 * forward gives; or the program's verdict, after the drop was counted. A session that exists comes before a port forward, and that
 * before a new session. With PACKET_OLD_SESSION, nat_source() begins none, and returns 0 with one of three results in `nat`:
 *
 *   PACKET_NAT_SOURCE       the packet belongs to a session, and this gateway owns it
 *   PACKET_OWNED_ELSEWHERE  it belongs to a session that another gateway owns
 *   neither                 it belongs to no session
 *
 * The frame is not changed: translate() (translate.h) then writes what is new. The program calls the stages itself, because nat.h needs the
 * stack. Uses the maps of nat_maps.h, `nat_packets`, `cells` and those of count.h.
 */
#ifndef SLUICE_NAT_STAGE_H
#define SLUICE_NAT_STAGE_H

#include "gateway/nat_forwards.h"
#include "gateway/nat_fragments.h"
#include "gateway/output.h"
#include "gateway/public.h"

/* Why a packet is not translated. `missing`: it belongs to no session, and begins none. */
static __always_inline enum drop_reason nat_drop_reason(enum nat_answer answer, enum drop_reason missing)
{
	switch (answer) {
	case NAT_TRANSLATED:
	case NAT_BEGUN:
		return DROP_none;
	case NAT_MISS:
	case NAT_NO_SESSION:
		return missing;
	case NAT_SESSIONS:
		return DROP_nat_session_limit;
	case NAT_VPC_SESSIONS:
		return DROP_nat_vpc_session_limit;
	case NAT_BLOCKS:
		return DROP_nat_port_limit;
	case NAT_EXHAUSTED:
		return DROP_nat_exhausted;
	case NAT_FULL:
		return DROP_sessions_full;
	case NAT_BUSY:
		return DROP_table_busy;
	default:
		return DROP_nat_protocol;
	}
}

/* Copies what both directions have in common. DROP_stale_index: the cell has no NAT gateway of the VNI. */
static __always_inline enum drop_reason describe_to_nat(const struct packet *packet, __u32 cell, __u32 vni,
							struct nat_memory *memory)
{
	const struct nat_gateway *gateway = nat_gateway_at(cell);
	struct nat_packet *nat = &memory->packet;

	if (!gateway || gateway->vni != vni)
		return DROP_stale_index;
	nat->pool = gateway->pool;
	nat->vni = vni;
	nat->protocol = memory->flow.protocol;
	nat->tcp_flags = memory->flow.tcp_flags;
	nat->flags = memory->flow.flags;
	nat->bytes = ETH_HLEN + packet->frame.ip_bytes;
	nat->now = session_ticks(packet->now_ns);
	return DROP_none;
}

/* Sets the inside endpoint to the source of the flow. */
static __always_inline void describe_inside(const struct packet *packet, struct nat_memory *memory)
{
	struct nat_packet *nat = &memory->packet;

	nat->inside[0] = 0;
	nat->inside[1] = memory->flow.source;
	if (packet->nat & PACKET_NAT64) {
		nat->vni |= NAT_INSIDE_IPV6;
		nat->inside[0] = memory->flow.source6[0];
		nat->inside[1] = memory->flow.source6[1];
	}
	nat->inside_port = memory->flow.source_port;
}

/* Whether another gateway owns the packet's NAT gateway. */
static __always_inline int is_nat_elsewhere(const struct packet *packet)
{
	const struct nat_gateway *gateway = nat_gateway_at(packet->nat_gateway);

	return gateway && !is_owned_vip(READ_ONCE(gateway->vip));
}

static __always_inline enum drop_reason find_nat_source(struct packet *packet, struct nat_memory *memory)
{
	struct nat_packet *nat = &memory->packet;
	enum drop_reason reason = describe_to_nat(packet, packet->nat_gateway, packet->vni, memory);
	__u64 forwarded;
	int answer;

	if (!reason && memory->flow.is_answer)
		reason = DROP_no_session;
	if (reason)
		return reason;
	describe_inside(packet, memory);
	nat->remote = memory->flow.destination;
	nat->remote_port = memory->flow.destination_port;
	/* A packet does not refresh the copy of a session: the owner counts it, and says how idle the session is. */
	if (packet->nat & PACKET_OLD_SESSION && is_nat_elsewhere(packet))
		nat->flags |= NAT_PEEK;
	answer = nat_find_out(nat);
	if (answer == NAT_SESSIONLESS && packet->nat & PACKET_OLD_SESSION)
		return DROP_no_session;
	if (answer == NAT_SESSIONLESS) {
		forwarded = packet->nat & PACKET_NAT64
				  ? 0
				  : nat_forward_of(packet->nat_gateway, nat->class, NAT_FORWARD_OUT,
						   nat->inside[1], nat->inside_port);
		if (forwarded) {
			packet->nat |= PACKET_NO_SESSION;
			packet->new_source[1] = nat_forward_address(forwarded);
			packet->new_source_port = forwarded;
			return DROP_none;
		}
		answer = nat_begin_out(nat);
	}
	reason = nat_drop_reason(answer, DROP_no_session);
	packet->new_source[1] = nat->outside;
	packet->new_source_port = nat->outside_port;
	return reason;
}

/* What follows if the source is not translated: a packet of no old session has another address. */
static __always_inline int without_nat_source(struct packet *packet, enum drop_reason reason)
{
	packet->nat &= ~PACKET_NAT_SOURCE;
	if (packet->nat & PACKET_OLD_SESSION && reason != DROP_stale_index)
		return 0;
	return drop(packet->vni, reason);
}

__attribute__((noinline)) int nat_source(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	struct nat_memory *memory = nat_memory();
	enum drop_reason reason;

	if (!packet || !memory)
		return drop(0, DROP_stale_index);
	packet->nat |= PACKET_NAT_SOURCE;
	packet->new_source[0] = 0;
	reason = read_nat_flow(ctx, packet, at);
	if (!reason && packet->frame.flags & FRAME_LATER) {
		packet->new_source[1] = find_nat_fragment(ctx, packet, at, NAT_FRAGMENT_OUT, packet->vni);
		if (packet->new_source[1])
			return 0;
		reason = DROP_unknown_fragment;
	} else if (!reason) {
		reason = find_nat_source(packet, memory);
	}
	if (reason)
		return without_nat_source(packet, reason);
	if (packet->frame.flags & FRAME_FRAGMENT)
		remember_nat_fragment(ctx, packet, at, NAT_FRAGMENT_OUT, packet->vni);
	/* Later fragments leave here, by the address that was remembered. */
	if (packet->nat & PACKET_OLD_SESSION && is_nat_elsewhere(packet)) {
		packet->nat |= PACKET_OWNED_ELSEWHERE;
		return without_nat_source(packet, DROP_not_owner);
	}
	return 0;
}

/* Reads the flow as it is after the translation of its source. */
static __always_inline enum drop_reason read_translated_flow(struct xdp_md *ctx, struct packet *packet,
							     __u32 at, struct nat_flow *flow)
{
	enum drop_reason reason;
	__u64 source[2] = {};

	if (packet->nat & PACKET_NAT_SOURCE) {
		flow->source = packet->new_source[1];
		flow->source_port = packet->new_source_port;
		return DROP_none;
	}
	reason = read_nat_flow(ctx, packet, at);
	if (packet->source_public) {
		source[1] = flow->source;
		to_outside(packet->source_public, source);
		flow->source = source[1];
	}
	return reason;
}

/* Sets the new destination to the inside address. */
static __always_inline void enter_inside(struct packet *packet, const struct nat_packet *nat)
{
	packet->new_destination[0] = nat->inside[0];
	packet->new_destination[1] = nat->inside[1];
	if (nat->vni & NAT_INSIDE_IPV6)
		packet->nat |= PACKET_NAT64;
}

/* Sets `direction` to that of fragments to a forwarded port, if the packet goes to one. */
static __always_inline enum drop_reason find_nat_destination(struct packet *packet,
							     const struct public_prefix *public,
							     struct nat_memory *memory, __u32 *direction)
{
	struct nat_packet *nat = &memory->packet;
	enum drop_reason reason = describe_to_nat(packet, LOAD32(public->inside), public->vni, memory);
	__u64 forwarded;
	int answer;

	/* Queries of the Internet have their own identifiers. */
	if (!reason && memory->flow.flags & NAT_QUERY)
		reason = DROP_no_nat_session;
	if (reason)
		return reason;
	nat->address = LOAD16(public->inside + 4);
	nat->outside_port = memory->flow.destination_port;
	nat->remote = memory->flow.source;
	nat->remote_port = memory->flow.source_port;
	answer = nat_find_in(nat);
	if (answer == NAT_SESSIONLESS || answer == NAT_MISS) {
		forwarded = nat_forward_of(LOAD32(public->inside), nat->class, 0,
					   packet->frame.destination[1], nat->outside_port);
		if (forwarded) {
			*direction |= NAT_FRAGMENT_FORWARDED;
			packet->new_destination[1] = nat_forward_address(forwarded);
			packet->new_destination_port = forwarded;
			return DROP_none;
		}
	}
	if (answer == NAT_SESSIONLESS)
		answer = nat_begin_in(nat);
	reason = nat_drop_reason(answer, DROP_no_nat_session);
	/* After a change of the pool, the number in `inside` may be that of another public address for a moment. */
	if (!reason && nat->outside != packet->frame.destination[1])
		reason = DROP_no_nat_session;
	packet->new_destination_port = nat->inside_port;
	enter_inside(packet, nat);
	return reason;
}

/* The first word of what nat_fragments has for a datagram of NAT64 to an instance: its outside port, which is no address. */
#define NAT_FRAGMENT_PORT_MAX 0xffff

/* Finds the instance that gets a later fragment, by the address or the outside port that the first one of its datagram had. */
static __always_inline enum drop_reason find_later_destination(struct packet *packet,
							       const struct public_prefix *public,
							       struct nat_memory *memory, __u32 found)
{
	struct nat_packet *nat = &memory->packet;

	packet->new_destination[1] = found;
	if (found > NAT_FRAGMENT_PORT_MAX)
		return DROP_none;
	nat->vni = public->vni;
	nat->address = LOAD16(public->inside + 4);
	nat->outside_port = found;
	nat->protocol = packet->frame.protocol;
	if (!found || !nat_prepare(nat) || !nat_find_owner(nat))
		return DROP_unknown_fragment;
	enter_inside(packet, nat);
	return DROP_none;
}

__attribute__((noinline)) int nat_destination(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	struct nat_memory *memory = nat_memory();
	const struct public_prefix *public;
	__u32 direction = NAT_FRAGMENT_IN;
	enum drop_reason reason;

	if (!packet || !memory)
		return drop(0, DROP_stale_index);
	public = public_prefix_at(packet->destination_public);
	if (!public)
		return drop(packet->vni, DROP_stale_index);
	packet->nat |= PACKET_NAT_DESTINATION;
	packet->new_destination[0] = 0;
	reason = read_translated_flow(ctx, packet, at, &memory->flow);
	if (!reason && packet->frame.flags & FRAME_LATER) {
		reason = find_later_destination(packet, public, memory,
						find_nat_fragment(ctx, packet, at, direction, public->vni));
		return reason ? drop(packet->vni, reason) : 0;
	}
	if (!reason)
		reason = find_nat_destination(packet, public, memory, &direction);
	if (reason)
		return drop(packet->vni, reason);
	if (packet->frame.flags & FRAME_FRAGMENT)
		remember_nat_fragment(ctx, packet, at, direction, public->vni);
	return 0;
}

#endif
