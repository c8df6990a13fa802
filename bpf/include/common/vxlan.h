/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Lengths of the tunnel: VXLAN over UDP on the underlay (RFC 7348).
 *
 * Contract: constants, in bytes. It would change with the encapsulation.
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

#endif
