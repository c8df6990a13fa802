/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Layout of the counters of both programs. */
#ifndef SLUICE_COUNTER_LAYOUT_H
#define SLUICE_COUNTER_LAYOUT_H

#include <linux/types.h>

/* Counters of both programs. All per CPU. */
struct traffic {
	__u64 packets;
	__u64 bytes;
};

/* Key of the per-VNI drop counters; value: packets, __u64. */
struct vni_drop_key {
	__u32 vni;
	__u32 reason;
};
#define VNI_DROPS_MAX 65536
#define VNI_COUNTERS_MAX 16384

#endif
