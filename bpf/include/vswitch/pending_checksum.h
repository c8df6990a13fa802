/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Checksums that a VM leaves to its device (CHECKSUM_PARTIAL): two bytes that
 * change after the programs have looked at the packet, at a place that the VM
 * names, to a value that it can steer. Where they lie in what a program checks
 * or goes by, the packet would become another one.
 *
 * The context of a tc program has no field for them. It is the kernel's own skb,
 * though, whose fields are found by their names (CO-RE) on every kernel.
 */
#ifndef SLUICE_PENDING_CHECKSUM_H
#define SLUICE_PENDING_CHECKSUM_H

#include <bpf/bpf_core_read.h>

#include "common/frame.h"

#define CHECKSUM_PARTIAL 3

/* What the kernel's structure has of these names; see there for the rest. */
struct sk_buff {
	unsigned char *head;
	unsigned char *data;
	__u16 csum_start; /* from head */
	__u16 csum_offset;
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

/* The first byte behind what is checked of the frame: the ports or the ICMP type end before it. */
static __always_inline __s32 checked_end(const struct frame *frame)
{
	if (frame->ethertype == ETH_P_ARP)
		return ETH_HLEN + ARP_BYTES;
	if (frame->protocol == IPPROTO_ICMP || frame->protocol == IPPROTO_ICMPV6)
		return frame->transport_at + 2;
	return frame->transport_at + 4;
}

/* Whether a pending checksum will be written over what was checked. The frame is parsed. */
static __always_inline int checksum_misplaced(struct __sk_buff *skb, const struct frame *frame)
{
	const struct sk_buff *kernel = (const void *)skb;
	__s64 place;

	if (BPF_CORE_READ_BITFIELD_PROBED(kernel, ip_summed) != CHECKSUM_PARTIAL)
		return 0;
	place = BPF_CORE_READ(kernel, head) - BPF_CORE_READ(kernel, data);
	place += BPF_CORE_READ(kernel, csum_start) + BPF_CORE_READ(kernel, csum_offset);
	return place < checked_end(frame);
}

#endif
