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
#define VNI_DROPS_MAX 65536
#define VNI_COUNTERS_MAX 16384

#endif
