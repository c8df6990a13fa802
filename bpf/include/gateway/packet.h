/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the gateway knows of a packet. */
#ifndef SLUICE_PACKET_H
#define SLUICE_PACKET_H

#include "common/frame.h"

/* What is known of a packet: outer headers, the tenant's frame, and by and by where it goes. */
struct packet {
	struct frame frame;
	__u64 outer_source[2]; /* as in struct frame */
	__u64 outer_source_mac;
	__u64 endpoint_mac;
	__u64 now_ns;	   /* CLOCK_MONOTONIC, coarse: once for all stages */
	__u32 vni;	   /* it came with */
	__u32 vrf;	   /* its cell */
	__u32 frame_bytes; /* of the tenant's frame, padding included */
	__u32 final_vni;   /* of the endpoint, after peers */
	__u32 next_hop;	   /* cell */
	__u32 counters;
	__u32 elephant_bytes; /* of the VPC that it came with, as in struct vrf */
	__u16 mtu;	   /* of the endpoint's VPC; 0: any */
	__u16 error_mtu;   /* to name in an ICMP error */
	__u16 udp_checksum; /* as received */
	__u8 ipv6;	   /* the underlay it came over */
	__u8 traffic_class;
	__u8 routed;	   /* else bridged */
	__u8 error_type;   /* of the ICMP error to send */
};

#endif
