/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Quality of service of ports (vswitch/qos.h): numbers that the packet programs and the agent must agree about, and the
 * layout of the map `port_meters`.
 *
 * Contract: crates/tables binds this at build time.
 */
#ifndef SLUICE_QOS_LAYOUT_H
#define SLUICE_QOS_LAYOUT_H

#include <linux/types.h>

/* Packets with this DSCP or a higher one have high priority: CS5, VOICE-ADMIT, EF, CS6 and CS7 (RFC 2474, 3246, 5865). */
#define QOS_HIGH_DSCP 40

/*
 * The agent's queueing discipline (HTB) on the interface of a port with a rate, and its classes, whose handles are
 * QOS_QDISC << 16 | minor. The kernel itself gives handles from 0x8000 on.
 */
#define QOS_QDISC 0x51ceu
#define QOS_ALL 0x1u
/*
 * The class that a packet of high priority names in skb->priority. Other disciplines use the low four bits: they are
 * TC_PRIO_INTERACTIVE, which pfifo_fast serves first. So the programs need not know what the interface has.
 */
#define QOS_HIGH 0x16u
#define QOS_NORMAL 0x20u /* the class of packets with priority 0 */
#define QOS_PRIORITY_HIGH (QOS_QDISC << 16 | QOS_HIGH)

/*
 * What a VM may send at once after a pause: what its rate sends in QOS_BURST_NS, and at least QOS_BURST_BYTES, in which
 * two packets fit that the VM leaves to its device to segment. A quarter of it is for packets of high priority only. TCP
 * that has lost its last segments pauses for 200 ms or more. If the other three quarters were full before, TCP could not
 * reach the rate.
 */
#define QOS_BURST_NS 400000000ull
#define QOS_BURST_BYTES 196608u

/* What a port with a rate has sent. In an array map, by the port's `scope`. A cache line: each port is another VM's. */
struct port_meter {
	__u64 arrival;	  /* of the bucket, as in meters.h; 0: full */
	__u64 dropped[2]; /* packets over the rate: of normal and of high priority */
	__u64 reserved[5];
};
#define PORT_METERS 65536

#endif
