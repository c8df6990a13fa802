/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge, stage "meter": takes a packet from the meter of its public prefix, and then from that of its VPC.
 *
 * Contract: meter_packet() is the last thing that can refuse a packet here, so one that is dropped for another reason
 * takes nothing; after it, only DROP_headroom is possible. These packets take although they are dropped: those that another
 * gateway drops, in the ring of gateways or as the owner of another NAT gateway; and those from VM to VM that conform
 * outwards, and not inwards. It is asked once for each direction of a VPC: METER_OUT by the gateway that gives the packet its
 * public source, METER_IN by the one that finds the instance. It expects the parsed frame; for METER_OUT also source_public,
 * and `vrf` of `vni`; for METER_IN destination_public, and final_vrf of final_vni. DROP_none: the packet conforms to both
 * meters, or has none. Otherwise the reason, and the drop counts for the VPC whose meter it is, because `vni` is that one then.
 * The bytes that a meter lets pass and that it drops are counted for each meter that is asked: together they are what was
 * offered to it. Uses the maps `cells`, `meters` and `meter_counts`.
 */
#ifndef SLUICE_METER_STAGE_H
#define SLUICE_METER_STAGE_H

#include "common/lookup.h"
#include "common/meters.h"
#include "gateway/packet.h"

/* The meters and their names (meter_layout.h). The agent may set another number of cells before it loads the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * METERS_DEFAULT + 1);
	__type(key, __u32);
	__type(value, struct meter);
} meters SEC(".maps");

/* By the number of the meter. The agent may set another number of entries, as for `meters`. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, METERS_DEFAULT + 1);
	__type(key, __u32);
	__type(value, struct meter_count);
} meter_counts SEC(".maps");

/* The number of the meter of a VPC's Internet traffic. 0: it has none. */
static __always_inline __u32 vpc_meter(__u32 vrf_cell, __u32 vni)
{
	const struct vrf *vrf = vrf_at(vrf_cell, vni);
	const struct internet *internet;

	if (!vrf || !(READ_ONCE(vrf->flags) & VRF_METERED))
		return 0;
	internet = internet_of(vrf);
	return internet ? READ_ONCE(internet->meter) : 0;
}

/* The number of the meter of a public prefix. 0: the cell has none, or no prefix. */
static __always_inline __u32 prefix_meter(__u32 cell)
{
	const struct public_prefix *public = cell ? public_prefix_at(cell) : NULL;

	return public ? READ_ONCE(public->meter) : 0;
}

/* Whether a packet conforms to the meter with this number, which counts it; 0 stands for no meter. */
static __always_inline int conforms(__u32 number, __u32 direction, __u32 bytes, __u64 now)
{
	struct meter *meter = number ? bpf_map_lookup_elem(&meters, &number) : NULL;
	struct meter_count *count;
	int taken;

	if (!meter)
		return 1;
	taken = meter_take(meter, direction, bytes, now);
	count = bpf_map_lookup_elem(&meter_counts, &number);
	if (count && taken)
		count->passed[direction & 1] += bytes;
	else if (count)
		count->dropped[direction & 1] += bytes;
	return taken;
}

__attribute__((noinline)) enum drop_reason meter_packet(struct packet *packet, __u32 direction)
{
	__u32 prefix, vpc, bytes;
	__u64 now;

	if (!packet)
		return DROP_stale_index;
	if (direction == METER_OUT) {
		prefix = prefix_meter(packet->source_public);
		vpc = vpc_meter(packet->vrf, packet->vni);
	} else {
		prefix = prefix_meter(packet->destination_public);
		vpc = vpc_meter(packet->final_vrf, packet->final_vni);
	}
	if (!(prefix | vpc))
		return DROP_none;
	/* The coarse clock stands still for up to 10 ms, in which more than a small burst may pass. */
	now = bpf_ktime_get_ns();
	bytes = packet->frame.ip_bytes;
	/* A public prefix with the meter of its VPC takes from it once. */
	if (conforms(prefix, direction, bytes, now) &&
	    conforms(vpc == prefix ? 0 : vpc, direction, bytes, now))
		return DROP_none;
	if (direction == METER_OUT)
		return DROP_meter_out;
	packet->vni = packet->final_vni;
	return DROP_meter_in;
}

#endif
