/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Events that packet programs post to the agent through ring buffers.
 *
 * Contract: crates/tables binds this at build time. Addresses are as in struct frame: halves in host order,
 * high half first, IPv4 in the low 32 bits of the second. Sizes of rings are in bytes.
 */
#ifndef SLUICE_EVENTS_H
#define SLUICE_EVENTS_H

#include <linux/types.h>

/*
 * A flow that has become an elephant: ring `flow_events` of the gateway, and of a vSwitch that counts
 * flows.
 */
struct flow_event {
	__u64 source[2];
	__u64 destination[2];
	__u64 outer_source[2]; /* underlay address of the node that sent the packet; vSwitch: 0 */
	__u64 time_ns;	       /* CLOCK_MONOTONIC, when the packet was counted */
	__u32 vni;	       /* in which the packet was received */
	__u8 ipv6;	       /* source and destination are IPv6 */
	__u8 outer_ipv6;       /* outer_source is IPv6 */
	__u8 reserved[2];
};
#define FLOW_EVENTS_BYTES (1 << 20)

/* A host sent a packet for an instance that is not here: ring `strays` of the vSwitch. */
struct stray_event {
	__u64 destination[2];
	__u64 sender[2]; /* underlay address */
	__u32 vni;	 /* in which the packet was received */
	__u8 ipv6;	 /* the destination is IPv6 */
	__u8 sender_ipv6;
	__u8 reserved[2];
};
#define STRAYS_BYTES (1 << 16)

/* A VM has announced an address of SOURCE_PAIR (cells.h): ring `claims` of the vSwitch. */
struct claim_event {
	__u64 address[2];
	__u64 instance; /* as in struct port */
	__u32 ipv6;	/* 1: the address is IPv6; otherwise 0 */
	__u32 at_ms;	/* CLOCK_MONOTONIC in milliseconds, which wrap after 49 days */
};
#define CLAIMS_BYTES (1 << 16)

/*
 * A packet was denied because its receiver, whose identity an egress rule may name, is not in the map `remote_identities`:
 * ring `unknown_receivers` of the vSwitch.
 */
struct unknown_receiver_event {
	__u64 destination[2];
	__u32 vni; /* of the port that sent the packet */
	__u8 ipv6; /* the destination is IPv6 */
	__u8 reserved[3];
};
#define UNKNOWN_RECEIVERS_BYTES (1 << 16)

#endif
