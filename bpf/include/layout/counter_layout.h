/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Layout of the counters of the gateway's and the vSwitch's programs.
 *
 * Contract: crates/tables binds this at build time. All counters are per CPU.
 */
#ifndef SLUICE_COUNTER_LAYOUT_H
#define SLUICE_COUNTER_LAYOUT_H

#include <linux/types.h>

/* Forwarded frames of a VNI; bytes with the Ethernet header. */
struct traffic {
	__u64 packets;
	__u64 bytes;
};

/* Key of the drop counters by VNI. Their value is a number of packets, __u64. */
struct vni_drop_key {
	__u32 vni;
	__u32 reason;
};
/* Packets with a record of the ring of gateways, by what a gateway did with them; index of `nat_ring_counts`. */
enum nat_ring_count {
	NAT_RING_ENTERED, /* as the owner, it has sent them to the next gateway */
	NAT_RING_PASSED,  /* it has sent them on to the next gateway */
	NAT_RING_LEFT,	  /* as the last one, it has taken them for the Internet */
	/* Without having the session, of those that it has sent on or dropped. */
	NAT_RING_TAKEN, /* the outside port belongs to another inside endpoint, or the session has another one */
	NAT_RING_FULL,	  /* the session table is full */
	NAT_RING_BUSY,	  /* other packets won too many swaps */
	NAT_RING_UNKNOWN, /* it does not have the NAT gateway or the public address as the sender has it */
	NAT_RING_ASTRAY,  /* its position is not what the sender believes */
	NAT_RING_COUNTS
};

#define VNI_DROPS_MAX 65536
#define VNI_COUNTERS_MAX 16384

#endif
