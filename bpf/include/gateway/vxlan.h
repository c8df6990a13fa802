/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* VXLAN over UDP on the underlay. */
#ifndef SLUICE_VXLAN_H
#define SLUICE_VXLAN_H

#include "common/headers.h"

#define VXLAN_PORT 4789
#define VXLAN_FLAGS 0x08000000u /* a valid VNI, nothing else */
#define UDP_BYTES 8
#define VXLAN_BYTES 8
#define TUNNEL4_BYTES (ETH_HLEN + IPV4_BYTES + UDP_BYTES + VXLAN_BYTES)
#define TUNNEL6_BYTES (ETH_HLEN + IPV6_BYTES + UDP_BYTES + VXLAN_BYTES)
/* What an underlay interface's MTU must hold beside the tenant's IP packet. */
#define OVERHEAD4 (TUNNEL4_BYTES)
#define OVERHEAD6 (TUNNEL6_BYTES)

#endif
