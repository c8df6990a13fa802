/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What packet programs tell the agent of, by ring buffers. Addresses are as in
 * struct frame: host-order halves, high half first, IPv4 in the low 32 bits of
 * the second. crates/tables binds this.
 */
#ifndef SLUICE_EVENTS_H
#define SLUICE_EVENTS_H

#include <linux/types.h>

/* Gateway, and the vSwitch where it counts flows: one that has become an elephant. Ring `flow_events`. */
struct flow_event {
	__u64 source[2];
	__u64 destination[2];
	__u64 outer_source[2]; /* of the node that sent the packet; vSwitch: 0 */
	__u64 time_ns;	       /* CLOCK_MONOTONIC, of counting */
	__u32 vni;	       /* the packet came with */
	__u8 ipv6;	       /* source and destination are */
	__u8 outer_ipv6;
	__u8 reserved[2];
};
#define FLOW_EVENTS_BYTES (1 << 20)

/* vSwitch: a host sent a packet for an instance that is not here. Ring `strays`. */
struct stray_event {
	__u64 destination[2];
	__u64 sender[2]; /* on the underlay */
	__u32 vni;	 /* the packet came with */
	__u8 ipv6;	 /* the destination is */
	__u8 sender_ipv6;
	__u8 reserved[2];
};
#define STRAYS_BYTES (1 << 16)

#endif
