/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tunnel: VXLAN over UDP on the underlay (RFC 7348), with the identity of the sender as its group policy id
 * (docs/decisions/security-groups.md).
 *
 * Contract: lengths are in bytes, and identities in host order; 0: none. It would change with the encapsulation.
 */
#ifndef SLUICE_VXLAN_H
#define SLUICE_VXLAN_H

#include "common/headers.h"

/* From the UDP header to the tenant's frame. */
#define TUNNEL_BYTES (UDP_BYTES + VXLAN_BYTES)
/* Everything in front of the tenant's frame. */
#define TUNNEL4_BYTES (ETH_HLEN + IPV4_BYTES + TUNNEL_BYTES)
#define TUNNEL6_BYTES (ETH_HLEN + IPV6_BYTES + TUNNEL_BYTES)
/*
 * How much longer the outer IP packet is than the tenant's IP packet, for MTUs. The tenant's Ethernet header
 * is in the outer packet.
 */
#define OVERHEAD4 (IPV4_BYTES + TUNNEL_BYTES + ETH_HLEN)
#define OVERHEAD6 (IPV6_BYTES + TUNNEL_BYTES + ETH_HLEN)

/* First word of the VXLAN header of a packet whose sender has this identity, in host order. */
static __always_inline __u32 vxlan_flags(__u16 identity)
{
	return identity ? VXLAN_FLAGS | VXLAN_GROUP | identity : VXLAN_FLAGS;
}

/* Whether the first word of a VXLAN header, in host order, has no other flags. Its low 16 bits are then the identity. */
static __always_inline int vxlan_flags_valid(__u32 flags)
{
	return flags == VXLAN_FLAGS || (flags & ~VXLAN_GROUP_ID) == (VXLAN_FLAGS | VXLAN_GROUP);
}

#endif
