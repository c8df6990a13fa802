/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: router advertisements (RFC 4861 section 4.2, RFC 4862). The answer to a router solicitation
 * tells a VM its prefix, MTU and router, and where its address comes from: derived from the prefix and the
 * VM's MAC, or from DHCPv6 (docs/decisions/ipv6-addresses.md).
 *
 * Contract: the packet is a valid solicitation of the VM, which is overwritten. Returns the verdict:
 * the advertisement was sent, or the packet was dropped and counted. Reads the map `cells`, and uses
 * those of reply.h and count.h.
 */
#ifndef SLUICE_ROUTER_ADVERTISEMENT_H
#define SLUICE_ROUTER_ADVERTISEMENT_H

#include "common/neighbor_discovery.h"
#include "vswitch/reply.h"

#define ND_OPTION_PREFIX 3
#define ND_OPTION_MTU 5
#define ND_PREFIX_ON_LINK 0x80
#define ND_PREFIX_AUTONOMOUS 0x40
#define ND_MANAGED 0x80 /* of the message: addresses are available by DHCPv6 */
/* The longest lifetime (RFC 8319): advertisements are sent on request, and by the agent every hour. */
#define ND_ROUTER_LIFETIME_S 65535
#define ND_INFINITE 0xffffffffu

/* RFC 4861 section 4.2. */
struct router_advertisement {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__u8 hop_limit; /* that VMs use */
	__u8 flags;
	__be16 lifetime_s;
	__be32 reachable_ms; /* 0: unspecified */
	__be32 retransmit_ms;
};

struct nd_mtu_option {
	__u8 type;
	__u8 units;
	__be16 reserved;
	__be32 mtu;
};

struct nd_prefix_option {
	__u8 type;
	__u8 units;
	__u8 bits; /* length of the prefix */
	__u8 flags;
	__be32 valid_s;
	__be32 preferred_s;
	__be32 reserved;
	__u8 prefix[16];
};

#define ROUTER_ADVERTISEMENT_BYTES                                                                           \
	(sizeof(struct router_advertisement) + sizeof(struct nd_mac_option) + sizeof(struct nd_mtu_option) + \
	 sizeof(struct nd_prefix_option))
#define ROUTER_ADVERTISEMENT_FRAME (ETH_HLEN + IPV6_BYTES + ROUTER_ADVERTISEMENT_BYTES)
_Static_assert(ROUTER_ADVERTISEMENT_BYTES == 64, "RFC 4861 sections 4.2 and 4.6");

/* Writes the message at the cursor. What it does not store is zero (reply_begin()). */
static __always_inline void write_router_advertisement(struct cursor *cursor, const struct port *port,
						       const struct port *service,
						       const struct node_config *node)
{
	struct router_advertisement *message = next_header(cursor, struct router_advertisement);
	struct nd_mac_option *source = next_header(cursor, struct nd_mac_option);
	struct nd_mtu_option *mtu = next_header(cursor, struct nd_mtu_option);
	struct nd_prefix_option *prefix = next_header(cursor, struct nd_prefix_option);

	message->type = ICMP6_ROUTER_ADVERT;
	message->hop_limit = REPLY_TTL;
	message->flags = port->flags & PORT_DHCP6 ? ND_MANAGED : 0;
	message->lifetime_s = bpf_htons(ND_ROUTER_LIFETIME_S);
	source->type = ND_OPTION_SOURCE_MAC;
	source->units = sizeof(*source) / ND_OPTION_UNIT;
	__builtin_memcpy(source->mac, node->router_mac, ETH_ALEN);
	mtu->type = ND_OPTION_MTU;
	mtu->units = sizeof(*mtu) / ND_OPTION_UNIT;
	mtu->mtu = bpf_htonl(port->mtu);
	prefix->type = ND_OPTION_PREFIX;
	prefix->units = sizeof(*prefix) / ND_OPTION_UNIT;
	prefix->bits = service->length6;
	prefix->flags =
		port->flags & PORT_DHCP6 ? ND_PREFIX_ON_LINK : ND_PREFIX_ON_LINK | ND_PREFIX_AUTONOMOUS;
	prefix->valid_s = ND_INFINITE;
	prefix->preferred_s = ND_INFINITE;
	__builtin_memcpy(prefix->prefix, port->prefix6, sizeof(prefix->prefix));
}

/*
 * Turns the packet into an advertisement and sends it: to the source of the solicitation, given as halves
 * in host order, or to all nodes if that is unspecified.
 */
__attribute__((noinline)) int router_advertise(struct __sk_buff *skb, __u32 port_cell, __u64 high, __u64 low)
{
	const struct port *port = vm_port_at(port_cell);
	const struct port *service = vm_port_service_at(port_cell);
	const struct node_config *node = node_at();
	__u64 source[2] = { ROUTER6_HIGH, ROUTER6_LOW };
	__u64 destination[2] = { high ? high : ALL_NODES_HIGH, high ? low : ALL_NODES_LOW };
	struct ethernet_header *ethernet;
	struct ipv6_header *ip;
	struct cursor cursor;
	enum drop_reason failed;

	if (!port || !service || !node)
		return port_drop(0, DROP_stale_index);
	failed = reply_begin(skb, ROUTER_ADVERTISEMENT_FRAME);
	if (failed)
		return port_drop(port->vni, failed);
	cursor = cursor_at(skb, 0);
	if (!cursor_has(&cursor, ROUTER_ADVERTISEMENT_FRAME))
		return port_drop(port->vni, DROP_headroom);
	ethernet = next_header(&cursor, struct ethernet_header);
	reply_ethernet(ethernet, port, node, ETH_P_IPV6);
	if (!high)
		store_mac(ethernet->destination, ALL_NODES_MAC);
	ip = next_header(&cursor, struct ipv6_header);
	write_ipv6(ip, &(struct ipv6_fields){
			       .bytes = ROUTER_ADVERTISEMENT_BYTES,
			       .next = IPPROTO_ICMPV6,
			       .hop_limit = ND_HOP_LIMIT,
		       });
	store_halves(ip->source, source);
	store_halves(ip->destination, destination);
	write_router_advertisement(&cursor, port, service, node);
	if (reply_checksum_icmp6(skb, ROUTER_ADVERTISEMENT_BYTES))
		return port_drop(port->vni, DROP_headroom);
	return reply_send(skb);
}

#endif
