/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Reasons to drop a packet: DROP(number, name, "explanation for operators").
 *
 * Contract: numbers are stable. A retired reason keeps its number, and a new one takes the next.
 * crates/tables reads the lines of this list at build time for the names in metrics and CLI.
 */
#ifndef SLUICE_DROPS_H
#define SLUICE_DROPS_H

/* clang-format off */
#define DROP_REASONS(DROP) \
	DROP(1, outer_truncated, "underlay packet ends within a header or disagrees with its length fields") \
	DROP(2, outer_fragment, "underlay packet to a VTEP is an IP fragment") \
	DROP(3, outer_options, "underlay packet to a VTEP has IP options or extension headers") \
	DROP(4, outer_checksum, "underlay IPv4 header checksum is wrong") \
	DROP(5, vxlan_flags, "VXLAN header without a valid VNI or with unknown flags") \
	DROP(6, unknown_vtep, "sender of the VXLAN packet is not a known node") \
	DROP(7, unknown_vni, "no VPC has this VNI here") \
	DROP(8, inner_truncated, "packet of a tenant, or from the Internet, ends within a header or disagrees with its length fields") \
	DROP(9, inner_vlan, "tenant frame has a VLAN tag") \
	DROP(10, inner_ethertype, "frame of a tenant, or from the Internet, is neither ARP, IPv4 nor IPv6") \
	DROP(11, inner_checksum, "IPv4 header checksum of a tenant, or from the Internet, is wrong") \
	DROP(12, inner_source, "tenant source address is unspecified, multicast, broadcast or loopback") \
	DROP(13, multicast, "tenant broadcast, multicast, ARP or ND message that needs no answer") \
	DROP(14, no_route, "no route in the VPC for the destination") \
	DROP(15, route_drop, "route of the VPC drops the packets") \
	DROP(16, peer_loop, "more than 8 peered VPCs in a row") \
	DROP(17, no_endpoint, "no instance has the destination address") \
	DROP(18, ttl_exceeded, "TTL or hop limit reached zero") \
	DROP(19, too_big, "packet is longer than the MTU of its path") \
	DROP(20, wrong_mac, "frame is addressed neither to the router nor to the endpoint's MAC") \
	DROP(21, no_underlay_route, "kernel has no route to the next hop") \
	DROP(22, no_underlay_neighbor, "next hop's MAC address is not resolved") \
	DROP(23, no_vtep_address, "node has no underlay address of the next hop's family") \
	DROP(24, stale_index, "table entry refers to a cell whose content has changed") \
	DROP(25, arp_malformed, "ARP packet is not Ethernet/IPv4 or its fields contradict each other") \
	DROP(26, nd_malformed, "neighbor discovery packet fails the checks of RFC 4861") \
	DROP(27, icmp_rate, "ICMP error not sent: over the rate limit") \
	DROP(28, headroom, "no room to change the packet's headers") \
	DROP(29, spoofed_mac, "port sent a source MAC that it may not have") \
	DROP(30, spoofed_ip, "port sent a source address that it may not have") \
	DROP(31, unknown_port, "interface is not an attached port") \
	DROP(32, no_group, "VPC has no gateway group") \
	DROP(33, not_local, "packet from the underlay is not for a port of this host") \
	DROP(34, dhcp_malformed, "DHCP packet fails the checks of RFC 2131 or RFC 8415, or is not a request of a client") \
	DROP(35, no_tunnel_key, "packet on the VXLAN device has no tunnel key") \
	DROP(36, redirect, "kernel refused to send the packet") \
	DROP(37, table_busy, "table was being reorganized for longer than a lookup retries") \
	DROP(38, forged_control, "tenant or the Internet sent what only the network may send: router advertisement, redirect, DHCP reply") \
	DROP(39, inner_options, "extension headers of a packet of a tenant, or from the Internet, are too many to follow") \
	DROP(40, hairpin, "destination is the sending port itself") \
	DROP(41, link_local, "packet from or to an IPv6 link-local address, which no VPC carries") \
	DROP(42, pending_checksum, "VM requested a checksum to be stored over headers that were checked") \
	DROP(43, not_routed, "packet from the underlay or the Internet to an address that this gateway does not route to") \
	DROP(44, foreign_sender, "sender of the VXLAN packet is a host that may not send in the VPC") \
	DROP(45, egress_denied, "security groups of the sending port permit no such packet") \
	DROP(46, ingress_denied, "security groups of the receiving port permit no such packet") \
	DROP(47, no_session, "packet of no connection that the port or the NAT gateway knows, and not the first one of a new connection") \
	DROP(48, session_limit, "port has all the sessions that one port may have") \
	DROP(49, sessions_full, "session table of the host, or of the gateway's source NAT, has no room for the packet's session") \
	DROP(50, unknown_fragment, "fragment whose first fragment was not permitted, or came later") \
	DROP(51, rate_limit, "port sent more than its rate") \
	DROP(52, receiver_unknown, "an egress rule that names a group may permit the packet, but the receiver's groups are not known yet") \
	DROP(53, no_public_address, "packet to the Internet from an address that has no public address and no NAT gateway") \
	DROP(54, no_internet_route, "kernel has no route by an Internet port to the destination") \
	DROP(55, martian_source, "packet to a public address with a source address that cannot be on the Internet") \
	DROP(56, not_owner, "another gateway has the sessions of the NAT gateway, and the packet cannot be passed on to it") \
	DROP(57, no_nat_session, "packet to an address of a NAT gateway that belongs to no session of an instance") \
	DROP(58, nat_protocol, "packet that a NAT gateway cannot translate: neither TCP nor UDP, nor a query, answer or error of ICMP") \
	DROP(59, nat_session_limit, "instance has all the sessions of its NAT gateway that one instance may have") \
	DROP(60, nat_port_limit, "instance uses all ports of its NAT gateway that one instance may have") \
	DROP(61, nat_exhausted, "public address of the NAT gateway has no free ports for the instance") \
	DROP(62, nat_vpc_session_limit, "VPC has all the sessions that the NAT gateway of one VPC may have") \
	DROP(63, nat_ring, "first packet of a session of source NAT, from another gateway that knows other public addresses of the NAT gateway, or whose public port belongs to another session here") \
	DROP(64, meter_in, "packet from the Internet above the rate of the meter of its public address or VPC") \
	DROP(65, meter_out, "packet to the Internet above the rate of the meter of its public address or VPC") \
	DROP(66, meter_peering, "packet to a peered VPC above the rate of a meter of the peering") \
	DROP(67, nat64_address, "packet to the NAT64 prefix with an IPv4 address that the well-known prefix must not represent") \
	DROP(68, nat64_packet, "packet that NAT64 cannot translate to the other family: options, extension headers, fragments of ICMP, messages of ICMP without an equivalent") \
	DROP(69, pass_limit, "packet for a NAT gateway that another gateway owns, above the rate at which packets of one VPC are passed on to the owner") \
	DROP(70, packet_rate, "port sent or would get more packets a second than its network class grants now") \
	DROP(71, cpu_limit, "packets of the port take more of the host's processors than its network class grants now") \
	DROP(72, no_member, "packet to an address of a service that has no member, or none on the host to which the packet was sent") \
	DROP(73, session_reset, "packet of a TCP connection that is to end because its instance has migrated; a segment gets a RST as answer")
/* clang-format on */

#define DROP_ENUM(number, name, text) DROP_##name = number,
enum drop_reason { DROP_none = 0, DROP_REASONS(DROP_ENUM) };
#define DROP_REASONS_MAX 128

#endif
