/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: what a VM may send from besides the MAC address and the addresses of its port: secondary addresses,
 * delegated prefixes, addresses that it has in turn with other VMs, and, at an unprotected port, anything
 * (docs/decisions/address-checks.md).
 *
 * Contract: asked only about what is not the port's own. A port without such sources costs one test of its flags.
 * Addresses are as in struct frame. Nothing is written. Reads the map `cells`.
 */
#ifndef SLUICE_SOURCES_H
#define SLUICE_SOURCES_H

#include "vswitch/port.h"

/* What SOURCE_MAC says of a MAC address is found by this address: RFC 4291 appendix A. */
#define MAC_LINK_LOCAL(mac) ((((mac) ^ 0x020000000000ull) >> 24) << 40 | 0xfffeull << 24 | ((mac)&0xffffff))

/* The kind of a leaf. 0: the address is no source of the port. */
static __always_inline __u32 source_kind(__u32 leaf)
{
	__u32 kind = leaf >> LEAF_SCOPE_SHIFT;

	return kind == SOURCE_NEIGHBORS ? 0 : kind;
}

/* The kind (SOURCE_*) of an IPv4 address that is not the port's own. 0: it is no source of the port. */
static __always_inline __u32 further_source4(const struct port *port, __u32 port_cell, __u32 address)
{
	if (!(port->flags & PORT_SOURCES))
		return 0;
	port = vm_port_service_at(port_cell);
	return port ? source_kind(find_route4(port->sources[0], address)) : 0;
}

/* The kind of an IPv6 address that is not the port's own. */
static __always_inline __u32 further_source6(const struct port *port, __u32 port_cell, __u64 high, __u64 low)
{
	if (!(port->flags & PORT_SOURCES))
		return 0;
	port = vm_port_service_at(port_cell);
	return port ? source_kind(find_route6(port->sources[1], high, low)) : 0;
}

/* The kind of an IPv4 address; SOURCE_OWN for the port's own. */
static __always_inline __u32 source4(const struct port *port, __u32 port_cell, __u32 address)
{
	return address == bpf_ntohl(port->address4) ? SOURCE_OWN : further_source4(port, port_cell, address);
}

/* The kind of an IPv6 address; SOURCE_OWN for the port's own. */
static __always_inline __u32 source6(const struct port *port, __u32 port_cell, const __u64 *address)
{
	if (is_port_address6(port, address))
		return SOURCE_OWN;
	return further_source6(port, port_cell, address[0], address[1]);
}

/* Whether the VM gets the packets to an address of this kind. */
static __always_inline int is_received(__u32 kind)
{
	return kind == SOURCE_OWN || kind == SOURCE_HELD;
}

/* Whether the VM has an address of this kind in turn with other VMs. */
static __always_inline int is_shared(__u32 kind)
{
	return kind == SOURCE_PAIR || kind == SOURCE_HELD;
}

__attribute__((noinline)) int further_source(__u32 port_cell, const struct frame *frame)
{
	const struct port *port = vm_port_at(port_cell);

	if (!port || !frame || !source_valid(frame))
		return 0;
	/* Other VMs believe what the router says, such as a redirect. */
	if (frame->flags & FRAME_IPV6 ? is_router6(port, frame->source)
				      : port->router4 && frame->source[1] == bpf_ntohl(port->router4))
		return 0;
	if (port->flags & PORT_UNPROTECTED)
		return 1;
	if (frame->flags & FRAME_IPV6)
		return !!further_source6(port, port_cell, frame->source[0], frame->source[1]);
	return !!further_source4(port, port_cell, frame->source[1]);
}

/* Whether the VM may send an IP packet from this source, which is not the port's own address. */
static __always_inline int may_send(const struct port *port, __u32 port_cell, const struct frame *frame)
{
	return port->flags & (PORT_SOURCES | PORT_UNPROTECTED) && further_source(port_cell, frame);
}

__attribute__((noinline)) int further_mac(__u32 port_cell, __u64 mac)
{
	const struct port *port = vm_port_at(port_cell);

	if (!port || !mac || mac & MAC_GROUP_BIT)
		return 0;
	if (port->flags & PORT_UNPROTECTED)
		return 1;
	return further_source6(port, port_cell, ROUTER6_HIGH, MAC_LINK_LOCAL(mac)) == SOURCE_MAC;
}

/* Whether the VM may send from this MAC address, which is not the port's own. */
static __always_inline int may_send_from_mac(const struct port *port, __u32 port_cell, __u64 mac)
{
	return port->flags & (PORT_SOURCES | PORT_UNPROTECTED) && further_mac(port_cell, mac);
}

#endif
