/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Elastic credit (vswitch/credit.h): the maps by which the packet programs and the agent share what ports use, and what they may
 * use now.
 *
 * Contract: crates/tables binds this at build time.
 */
#ifndef SLUICE_CREDIT_LAYOUT_H
#define SLUICE_CREDIT_LAYOUT_H

#include <linux/types.h>

#define CREDIT_SENT 0	  /* direction: what the VM sends */
#define CREDIT_RECEIVED 1 /* direction: what the VM gets */

/* What an instance uses, each of which has its own credit. */
#define CREDIT_SENT_MBPS 0
#define CREDIT_RECEIVED_MBPS 1
#define CREDIT_SENT_KPPS 2
#define CREDIT_RECEIVED_KPPS 3
#define CREDIT_CPU 4 /* thousandths of a processor, both directions together */
#define CREDIT_DIMENSIONS 5

/* Values of port_credit.active. */
#define CREDIT_SHAPED \
	1 /* limits are enforced; the interface's queueing discipline has that of received bytes */
#define CREDIT_POLICED 2 /* limits are enforced; the packet program has that of received bytes, too */

/*
 * What a port uses and may use. In an array map, by the port's `scope`. Each line has one kind of writers: packets
 * take from the buckets, and count; only the agent writes limits and credit.
 */
struct port_credit {
	/* Buckets, as in meters.h; 0: full. That of the bytes which the VM sends is in struct port_meter. */
	__u64 packet_arrival[2]; /* by direction */
	__u64 cpu_arrival;
	__u64 dropped_packets[2]; /* over the packet rate, by direction */
	__u64 dropped_cpu[2];	  /* over the share of the processors, by direction */
	__u64 active;		  /* CREDIT_*; 0: nothing is counted and limited */

	/* What has passed since the port has its number. */
	__u64 bytes[2]; /* of IP packets, by direction */
	__u64 packets[2];
	__u64 cpu_ns;
	__u64 frames; /* for which `cpu_ns` was charged: one that is cut into packets later is one */
	__u64 received_arrival; /* a bucket: of received bytes, with CREDIT_POLICED */
	__u64 dropped_received; /* packets over the rate of received bytes, with CREDIT_POLICED */

	/* In Mbit/s, 1000 packets per second and thousandths of a processor; 0: not limited. */
	__u64 limit[CREDIT_DIMENSIONS];
	__u64 reserved_limit[3];

	/* Of the agent alone, whose successor goes on with it: in the unit of the limit, times milliseconds. */
	__s64 credit[CREDIT_DIMENSIONS];
	__u64 reserved_credit[3];
};

/* Classes of packets, by what they cost. */
#define COST_SENT 0
#define COST_SENT_JUDGED 1 /* a policy was asked, and perhaps a session begun */
#define COST_RECEIVED 2
#define COST_RECEIVED_JUDGED 3
#define COST_CLASSES 4

/* What packets cost. The one element of an array map, which the agent writes. */
struct packet_costs {
	__u32 packet_ns[COST_CLASSES];
	__u32 kib_ns; /* for each 1024 bytes besides */
	__u32 reserved[3];
};

/* One of so many packets on each processor is timed. A power of two. */
#define COST_SAMPLE 64

/* What packets have cost in the program itself. The one element of an array map per CPU. */
struct packet_times {
	__u64 started_ns; /* of the packet that is timed */
	__u64 ns[COST_CLASSES];
	__u64 packets[COST_CLASSES];
};

#endif
