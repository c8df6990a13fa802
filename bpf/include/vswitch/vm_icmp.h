/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * ICMP that the vSwitch itself says to a VM: the router's echo replies, and
 * errors about packets that cannot go on (RFC 792, 1191, 4443).
 */
#ifndef SLUICE_VM_ICMP_H
#define SLUICE_VM_ICMP_H

#include "vswitch/reply.h"

/* Bytes of the packet that an error quotes: its headers and what follows, as the stack allows. */
#define QUOTE_MAX 96

/* The first two bytes of an echo message, as they lie in memory. */
#define ECHO_WORD(type) bpf_htons((type) << 8)

static __always_inline int complain_write(struct __sk_buff *skb, const struct frame *frame,
					  const struct icmp_error *error)
{
	void *start = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (frame->flags & FRAME_IPV6) {
		if (start + ETH_HLEN + ICMP6_ERROR_BYTES > end)
			return -1;
		write_icmp6_error(start, frame, error);
	} else {
		if (start + ETH_HLEN + ICMP4_ERROR_BYTES > end)
			return -1;
		write_icmp4_error(start, frame, error);
	}
	return 0;
}

static __always_inline void complain_about(struct icmp_error *error, const struct port *port,
					   const struct node_config *node, int ipv6, int too_big)
{
	error->router4 = port->router4 ? bpf_ntohl(port->router4) : DUMMY_ROUTER4;
	error->router6[0] = ROUTER6_HIGH;
	error->router6[1] = ROUTER6_LOW;
	if (LOAD64(port->prefix6)) {
		error->router6[0] = load_half(port->prefix6);
		error->router6[1] = load_half(port->prefix6 + 8) + 1;
	}
	error->router_mac = load_mac(node->router_mac);
	if (!too_big) {
		error->type = ipv6 ? ICMP6_TIME_EXCEEDED : ICMP4_TIME_EXCEEDED;
		return;
	}
	error->type = ipv6 ? ICMP6_TOO_BIG : ICMP4_UNREACHABLE;
	error->code = ipv6 ? 0 : ICMP4_NEEDS_FRAGMENTATION;
	error->mtu = port->mtu;
}

/*
 * Tells the VM that its packet ended here: `reason` is DROP_too_big or
 * DROP_ttl_exceeded, which is counted whether or not the error can be sent.
 */
__attribute__((noinline)) int complain(struct __sk_buff *skb, __u32 port_cell, struct frame *frame,
				       __u32 reason)
{
	const struct port *port = vm_port_at(port_cell);
	const struct node_config *node = node_at();
	const struct vrf *vrf;
	__u64 quote[QUOTE_MAX / 8];
	struct icmp_error error = {};
	__u32 head, bytes = QUOTE_MAX;
	__u16 checksum;
	__u64 sum;

	if (!port || !node || !frame)
		return port_drop(0, DROP_stale_index);
	count_drop(port->vni, reason);
	if (!icmp_error_allowed(frame))
		return TC_ACT_SHOT;
	vrf = vrf_at(READ_ONCE(port->vrf), port->vni);
	if (!vrf) /* gone since the packet came, which is counted already */
		return TC_ACT_SHOT;
	if (!icmp_within_budget(vrf->counters))
		return port_drop(port->vni, DROP_icmp_rate);
	if (frame->ip_bytes < QUOTE_MAX)
		bytes = frame->ip_bytes;
	if (bytes < IPV4_BYTES || bpf_skb_load_bytes(skb, ETH_HLEN, quote, bytes))
		return port_drop(port->vni, DROP_inner_truncated);
	complain_about(&error, port, node, frame->flags & FRAME_IPV6, reason == DROP_too_big);
	error.quoted = bytes;
	head = ETH_HLEN + (frame->flags & FRAME_IPV6 ? ICMP6_ERROR_BYTES : ICMP4_ERROR_BYTES);
	if (reply_begin(skb, head + bytes) || complain_write(skb, frame, &error) ||
	    bpf_skb_store_bytes(skb, head, quote, bytes, 0))
		return port_drop(port->vni, DROP_headroom);
	sum = packet_sum(skb, head - ICMP_BYTES, ICMP_BYTES + bytes);
	checksum = icmp_error_checksum(frame, &error, sum);
	if (sum == SUM_FAILED ||
	    bpf_skb_store_bytes(skb, head - ICMP_BYTES + 2, &checksum, sizeof(checksum), 0))
		return port_drop(port->vni, DROP_headroom);
	return reply_send(skb);
}

static __always_inline int is_echo(const struct frame *frame)
{
	__u8 type = frame->transport >> 24;

	if (frame->flags & FRAME_FRAGMENT)
		return 0;
	if (frame->flags & FRAME_IPV6)
		return frame->protocol == IPPROTO_ICMPV6 && type == ICMP6_ECHO;
	return frame->protocol == IPPROTO_ICMP && type == ICMP4_ECHO;
}

/* The router's answer to an echo request: the request turned round. */
__attribute__((noinline)) int echo_answer(struct __sk_buff *skb, __u32 port_cell, struct frame *frame)
{
	const struct port *port = vm_port_at(port_cell);
	const struct node_config *node = node_at();
	__u32 ipv6, source_at, bytes;
	__u8 addresses[32], macs[2 * ETH_ALEN];
	__be16 before, after;
	__u8 type;

	if (!port || !node || !frame)
		return port_drop(0, DROP_stale_index);
	ipv6 = frame->flags & FRAME_IPV6;
	source_at = ETH_HLEN + (ipv6 ? 8 : 12);
	type = ipv6 ? ICMP6_ECHO_REPLY : ICMP4_ECHO_REPLY;
	before = ipv6 ? ECHO_WORD(ICMP6_ECHO) : ECHO_WORD(ICMP4_ECHO);
	after = ipv6 ? ECHO_WORD(ICMP6_ECHO_REPLY) : ECHO_WORD(ICMP4_ECHO_REPLY);
	bytes = ipv6 ? 16 : 4;
	__builtin_memcpy(macs, port->mac, ETH_ALEN);
	__builtin_memcpy(macs + ETH_ALEN, node->router_mac, ETH_ALEN);
	/* That the addresses change places changes no checksum. */
	if (bpf_skb_load_bytes(skb, source_at, addresses, ipv6 ? 32 : 8) ||
	    bpf_skb_store_bytes(skb, source_at, addresses + bytes, bytes, 0) ||
	    bpf_skb_store_bytes(skb, source_at + bytes, addresses, bytes, 0) ||
	    bpf_l4_csum_replace(skb, frame->transport_at + 2, before, after, 2) ||
	    bpf_skb_store_bytes(skb, frame->transport_at, &type, 1, 0) ||
	    bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0))
		return port_drop(port->vni, DROP_headroom);
	return reply_send(skb);
}

#endif
