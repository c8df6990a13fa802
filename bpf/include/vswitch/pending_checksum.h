/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: checksums that a VM leaves to its device (CHECKSUM_PARTIAL). The device stores two bytes
 * after the programs have examined the packet, at a place that the VM chooses, with a value that it can
 * influence. If they are among the bytes that a program checks, the packet would become another one.
 *
 * Contract: the frame was parsed. The packet is not changed. The context of a tc program has no field
 * for pending checksums. It is the kernel's own skb, though, whose fields are found by their names
 * (CO-RE) on every kernel. Uses no map.
 */
#ifndef SLUICE_PENDING_CHECKSUM_H
#define SLUICE_PENDING_CHECKSUM_H

#include <bpf/bpf_core_read.h>

#include "common/frame.h"

#define CHECKSUM_PARTIAL 3

/* The fields of the kernel's structure that are read here. */
struct sk_buff {
	__u16 csum_start;     /* where summing begins; from the start of the buffer */
	__u16 csum_offset;    /* where the checksum is stored; from csum_start */
	__u16 network_header; /* behind the Ethernet header, at tc ingress; from the start of the buffer */
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

/* Offset of the first byte that no program checks: behind the ports, or behind ICMP's type and code. */
static __always_inline __s32 checked_end(const struct frame *frame)
{
	if (frame->ethertype == ETH_P_ARP)
		return ETH_HLEN + ARP_BYTES;
	if (frame->protocol == IPPROTO_ICMP || frame->protocol == IPPROTO_ICMPV6)
		return frame->transport_at + 2;
	return frame->transport_at + 4;
}

/* Since Linux 6.2: the kernel's skb, whose fields are read by plain loads instead of a helper call for each. */
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/* What the kernel knows about a checksum that is still to be stored. */
struct pending_checksum {
	__s32 begin; /* offset in the packet at which summing begins; negative: in front of it */
	__s32 at;    /* offset at which the checksum is stored */
};

static __always_inline void pending_checksum_set(struct pending_checksum *pending, __u32 start, __u32 offset,
						 __u32 network_header)
{
	pending->begin = (__s32)(start - network_header) + ETH_HLEN;
	pending->at = pending->begin + offset;
}

/* Whether a checksum is pending. Then `pending` is filled in. */
static __always_inline int pending_checksum(struct __sk_buff *skb, struct pending_checksum *pending)
{
	const struct sk_buff *kernel = (const void *)skb;

	if (bpf_ksym_exists(bpf_cast_to_kern_ctx)) {
		kernel = bpf_cast_to_kern_ctx(skb);
		if (BPF_CORE_READ_BITFIELD(kernel, ip_summed) != CHECKSUM_PARTIAL)
			return 0;
		pending_checksum_set(pending, kernel->csum_start, kernel->csum_offset,
				     kernel->network_header);
		return 1;
	}
	if (BPF_CORE_READ_BITFIELD_PROBED(kernel, ip_summed) != CHECKSUM_PARTIAL)
		return 0;
	pending_checksum_set(pending, BPF_CORE_READ(kernel, csum_start), BPF_CORE_READ(kernel, csum_offset),
			     BPF_CORE_READ(kernel, network_header));
	return 1;
}

/* Whether a pending checksum will be stored over bytes that were checked. */
static __always_inline int checksum_misplaced(struct __sk_buff *skb, const struct frame *frame)
{
	struct pending_checksum pending;

	return pending_checksum(skb, &pending) && pending.at < checked_end(frame);
}

#endif
