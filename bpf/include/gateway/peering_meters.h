/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, stage "meter" of packets between peered VPCs: takes a packet from the meters of the peerings that its routes followed,
 * in their order: from that of the sender's side outwards, then from that of the receiver's side inwards.
 *
 * Contract: meter_peerings() expects a packet that route() (cgw.h) accepted, and is the last thing that can refuse it here, so
 * one that is dropped for another reason takes nothing; after it, only DROP_headroom is possible. A packet that one meter
 * refuses has taken from those before it. DROP_none: it conforms to all. Otherwise the reason, and the drop counts for the VPC
 * on whose side of the peering the meter is, because `vni` is that one then. Uses the maps `cells` and `meters`.
 */
#ifndef SLUICE_PEERING_METERS_H
#define SLUICE_PEERING_METERS_H

#include "gateway/meter_stage.h"

/* A function, so that the verifier processes it once, and not for each peering. */
__attribute__((noinline)) enum drop_reason take_from_peering(struct packet *packet, __u32 at)
{
	const struct peering *peering;
	__u64 now;

	if (!packet || at >= PEER_HOPS_MAX)
		return DROP_stale_index;
	peering = peering_at(packet->peering[at]);
	if (!peering)
		return DROP_stale_index;
	now = bpf_ktime_get_ns();
	if (!conforms(READ_ONCE(peering->out_meter), METER_OUT, packet->frame.ip_bytes, now)) {
		packet->vni = peering->vni;
		return DROP_meter_peering;
	}
	if (!conforms(READ_ONCE(peering->in_meter), METER_IN, packet->frame.ip_bytes, now)) {
		packet->vni = peering->peer;
		return DROP_meter_peering;
	}
	return DROP_none;
}

static __always_inline enum drop_reason meter_peerings(struct packet *packet)
{
	enum drop_reason reason = DROP_none;

	for (__u32 at = 0; !reason && at < PEER_HOPS_MAX && at < packet->peerings; at++)
		reason = take_from_peering(packet, at);
	return reason;
}

#endif
