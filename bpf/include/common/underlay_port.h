/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The underlay interfaces of this node.
 *
 * Contract: they are in cells CELL_NODE + 1 and CELL_NODE + 2, which the agent writes. Reads only
 * the map `cells`.
 */
#ifndef SLUICE_UNDERLAY_PORT_H
#define SLUICE_UNDERLAY_PORT_H

#include "common/bytes.h"
#include "common/lookup.h"

/* The underlay port with this index. Indices wrap at UNDERLAY_PORTS_MAX, so that the bounds are known. */
static __always_inline struct underlay_port *underlay_port_at(__u32 index)
{
	struct underlay_port *ports = cell_at(CELL_NODE + 1 + ((index & 7) >> 2));

	return ports ? &ports[index & 3] : NULL;
}

static __always_inline __u32 port_index(__u32 ifindex, __u32 excluded)
{
	for (__u32 i = 0; i < UNDERLAY_PORTS_MAX; i++) {
		struct underlay_port *port = underlay_port_at(i);

		if (port && port->ifindex == ifindex && !(port->flags & excluded))
			return i;
	}
	return UNDERLAY_PORTS_MAX;
}

/* Index of the underlay port with this ifindex. UNDERLAY_PORTS_MAX: no port has it. */
__attribute__((noinline)) __u32 underlay_port_index(__u32 ifindex)
{
	return port_index(ifindex, 0);
}

/*
 * As underlay_port_index(), for ports that lead to other nodes only: no tunnel leaves by an Internet port, even if the
 * kernel's route does.
 */
__attribute__((noinline)) __u32 tunnel_port_index(__u32 ifindex)
{
	return port_index(ifindex, UNDERLAY_PORT_INTERNET);
}

/* The ifindex of a port that tunnels leave by. 0: it has none, or leads to the Internet. Without a branch, for the fast path. */
static __always_inline __u32 tunnel_ifindex(const struct underlay_port *port)
{
	return port->ifindex & ((port->flags & UNDERLAY_PORT_INTERNET) - 1);
}

static __always_inline __u64 underlay_port_mac(const struct underlay_port *port)
{
	return load_mac(port->mac);
}

#endif
