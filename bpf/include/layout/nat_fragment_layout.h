/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Datagrams whose first fragment a gateway has translated: later fragments have no ports, and are translated like the first.
 *
 * Contract: the map `nat_fragments` has NAT_FRAGMENTS elements on a gateway that translates, or one that nothing uses. Packets
 * alone write it, and gateway/nat_fragments.h explains how. No agent reads it.
 */
#ifndef SLUICE_NAT_FRAGMENT_LAYOUT_H
#define SLUICE_NAT_FRAGMENT_LAYOUT_H

#include <linux/types.h>

#define NAT_FRAGMENTS 65536 /* 1 MiB */

struct nat_fragment {
	__u64 word;    /* check in bits 24..63, time in ticks in 0..23; 0: none */
	__u32 address; /* host order: that the first fragment got instead of the inside or outside address */
	__u32 forwarded; /* 1: the first fragment came from the Internet to a forwarded port */
};

#endif
