/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Router advertisements (RFC 4861 section 4.2, RFC 4862): the answer to a
 * solicitation tells a VM its prefix, MTU and router, and its address follows
 * from its MAC.
 */
#ifndef SLUICE_ROUTER_ADVERTISEMENT_H
#define SLUICE_ROUTER_ADVERTISEMENT_H

#include "common/neighbor_discovery.h"
#include "vswitch/reply.h"

#define ND_OPTION_PREFIX 3
#define ND_OPTION_MTU 5
#define ND_PREFIX_ON_LINK 0x80
#define ND_PREFIX_AUTONOMOUS 0x40
/* The longest there is (RFC 8319): advertisements come when asked for, and from the agent hourly. */
#define ND_ROUTER_LIFETIME_S 65535
#define ND_INFINITE 0xffffffffu

struct router_advertisement {
	struct ethhdr eth;
	struct ipv6_head ip;
	__u8 type;
	__u8 code;
	__u16 checksum;
	__u8 hop_limit;
	__u8 flags;
	__be16 lifetime_s;
	__be32 reachable_ms; /* 0: unspecified */
	__be32 retransmit_ms;
	struct {
		__u8 type, length;
		__u8 mac[6];
	} source;
	struct {
		__u8 type, length;
		__u16 reserved;
		__be32 mtu;
	} mtu;
	struct {
		__u8 type, length;
		__u8 bits, flags;
		__be32 valid_s, preferred_s, reserved;
		__u8 prefix[16];
	} prefix;
} __attribute__((packed, aligned(2)));

#define ND_ADVERTISEMENT_BYTES (sizeof(struct router_advertisement) - ETH_HLEN - IPV6_BYTES)
_Static_assert(ND_ADVERTISEMENT_BYTES == 64, "RFC 4861 sections 4.2 and 4.6");

static __always_inline void router_advertisement_write(struct router_advertisement *frame,
						       const struct port *port,
						       const struct port *service,
						       const struct node_config *node)
{
	frame->type = ICMP6_ROUTER_ADVERT;
	frame->hop_limit = REPLY_TTL;
	frame->lifetime_s = bpf_htons(ND_ROUTER_LIFETIME_S);
	frame->source.type = ND_SOURCE_MAC;
	frame->source.length = 1;
	__builtin_memcpy(frame->source.mac, node->router_mac, ETH_ALEN);
	frame->mtu.type = ND_OPTION_MTU;
	frame->mtu.length = 1;
	frame->mtu.mtu = bpf_htonl(port->mtu);
	frame->prefix.type = ND_OPTION_PREFIX;
	frame->prefix.length = 4;
	frame->prefix.bits = service->length6;
	frame->prefix.flags = ND_PREFIX_ON_LINK | ND_PREFIX_AUTONOMOUS;
	frame->prefix.valid_s = ND_INFINITE;
	frame->prefix.preferred_s = ND_INFINITE;
	__builtin_memcpy(frame->prefix.prefix, port->prefix6, 16);
}

/*
 * Turns the skb into an advertisement to the VM's link-local address `high`,
 * `low`, or to all nodes if that is zero, and sends it.
 */
__attribute__((noinline)) int router_advertise(struct __sk_buff *skb, __u32 port_cell, __u64 high,
					       __u64 low)
{
	const struct port *port = vm_port_at(port_cell);
	const struct port *service = vm_port_service_at(port_cell);
	const struct node_config *node = node_at();
	struct router_advertisement frame = {};

	if (!port || !service || !node)
		return port_drop(0, DROP_stale_index);
	reply_ethernet(&frame.eth, port, node, ETH_P_IPV6);
	reply_ipv6(&frame.ip, ND_ADVERTISEMENT_BYTES, IPPROTO_ICMPV6, ND_HOP_LIMIT);
	frame.ip.source[0] = bpf_cpu_to_be64(ROUTER6_HIGH);
	frame.ip.source[1] = bpf_cpu_to_be64(ROUTER6_LOW);
	if (!high) { /* ff02::1 */
		high = 0xff02ull << 48;
		low = 1;
		store_mac(frame.eth.h_dest, 0x333300000001ull);
	}
	frame.ip.destination[0] = bpf_cpu_to_be64(high);
	frame.ip.destination[1] = bpf_cpu_to_be64(low);
	router_advertisement_write(&frame, port, service, node);
	if (reply_begin(skb, sizeof(frame)) || bpf_skb_store_bytes(skb, 0, &frame, sizeof(frame), 0) ||
	    reply_checksum_icmp6(skb, ND_ADVERTISEMENT_BYTES))
		return port_drop(port->vni, DROP_headroom);
	return reply_send(skb);
}

#endif
