/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: ICMP messages of the router to a VM: echo replies, and errors about packets that cannot be
 * forwarded (RFC 792, 1191, 4443).
 *
 * Contract: an IP packet of the VM, parsed into struct frame, with the port's own source. The packet is
 * overwritten by the message. Returns the verdict: the message was sent to the VM, or the packet was
 * dropped and counted. Uses the maps `cells`, `icmp_budget`, `quotes` and those of reply.h and count.h.
 */
#ifndef SLUICE_VM_ICMP_H
#define SLUICE_VM_ICMP_H

#include "vswitch/reply.h"

/* Bytes of a packet that an error quotes, from its IP header on. */
#define QUOTE_MAX 96

struct quote {
	__u8 bytes[QUOTE_MAX];
};

/* The beginning of the packet that an error is about: memory per CPU, as `frames` of port.h. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quote);
} quotes SEC(".maps");

/* Writes the headers in front of the quote. 0, or negative if the packet has no room. */
static __always_inline int write_vm_error(struct __sk_buff *skb, const struct frame *frame,
					  const struct icmp_error *error)
{
	struct cursor cursor = cursor_at(skb, 0);

	if (frame->flags & FRAME_IPV6) {
		if (!cursor_has(&cursor, ETH_HLEN + ICMP6_ERROR_BYTES))
			return -1;
		write_icmp6_error(&cursor, frame, error);
	} else {
		if (!cursor_has(&cursor, ETH_HLEN + ICMP4_ERROR_BYTES))
			return -1;
		write_icmp4_error(&cursor, frame, error);
	}
	return 0;
}

/* Of the cause of an error: the drop reason, and the MTU of "too big"; 0: that of the port. */
#define VM_ERROR_REASON 0xffff
#define VM_ERROR_MTU_SHIFT 16

/* Describes a "too big", or a "time exceeded". */
static __always_inline void describe_vm_error(struct icmp_error *error, const struct port *port,
					      const struct node_config *node, int ipv6, __u32 cause)
{
	error->router4 = port->router4 ? bpf_ntohl(port->router4) : DUMMY_ROUTER4;
	error->router6[0] = ROUTER6_HIGH;
	error->router6[1] = ROUTER6_LOW;
	if (LOAD64(port->prefix6)) {
		error->router6[0] = load_half(port->prefix6);
		error->router6[1] = load_half(port->prefix6 + 8) + 1;
	}
	error->router_mac = load_mac(node->router_mac);
	if ((cause & VM_ERROR_REASON) != DROP_too_big) {
		error->type = ipv6 ? ICMP6_TIME_EXCEEDED : ICMP4_TIME_EXCEEDED;
		return;
	}
	error->type = ipv6 ? ICMP6_TOO_BIG : ICMP4_UNREACHABLE;
	error->code = ipv6 ? 0 : ICMP4_NEEDS_FRAGMENTATION;
	error->mtu = cause >> VM_ERROR_MTU_SHIFT ?: port->mtu;
}

/*
 * Drops the VM's packet and sends the ICMP error. `cause` is VM_ERROR_*, of DROP_too_big or DROP_ttl_exceeded. The drop is
 * counted whether or not the error can be sent.
 */
__attribute__((noinline)) int send_vm_error(struct __sk_buff *skb, __u32 port_cell, struct frame *frame,
					    __u32 cause)
{
	const struct port *port = vm_port_at(port_cell);
	const struct node_config *node = node_at();
	__u32 zero = 0, headers, icmp_at, bytes = QUOTE_MAX;
	struct quote *quote = bpf_map_lookup_elem(&quotes, &zero);
	struct icmp_error error = {};
	enum drop_reason failed;
	const struct vrf *vrf;
	__u16 checksum;
	__u64 sum;

	if (!port || !node || !frame || !quote)
		return port_drop(0, DROP_stale_index);
	count_drop(port->vni, cause & VM_ERROR_REASON);
	if (!icmp_error_allowed(frame))
		return VERDICT_DROPPED;
	vrf = vrf_at(READ_ONCE(port->vrf), port->vni);
	if (!vrf) /* removed since the packet was received; the drop is counted already */
		return VERDICT_DROPPED;
	if (!icmp_within_budget(&icmp_budget, vrf->counters))
		return port_drop(port->vni, DROP_icmp_rate);
	if (frame->ip_bytes < QUOTE_MAX)
		bytes = frame->ip_bytes;
	if (bytes < IPV4_BYTES || context_load(skb, ETH_HLEN, quote, bytes))
		return port_drop(port->vni, DROP_inner_truncated);
	describe_vm_error(&error, port, node, frame->flags & FRAME_IPV6, cause);
	error.quoted = bytes;
	headers = ETH_HLEN + (frame->flags & FRAME_IPV6 ? ICMP6_ERROR_BYTES : ICMP4_ERROR_BYTES);
	failed = reply_begin(skb, headers + bytes);
	if (failed)
		return port_drop(port->vni, failed);
	if (write_vm_error(skb, frame, &error) || bpf_skb_store_bytes(skb, headers, quote, bytes, 0))
		return port_drop(port->vni, DROP_headroom);
	icmp_at = headers - ICMP_BYTES;
	sum = packet_sum(skb, icmp_at, ICMP_BYTES + bytes);
	checksum = icmp_error_checksum(frame, &error, sum);
	if (sum == SUM_FAILED ||
	    bpf_skb_store_bytes(skb, icmp_at + __builtin_offsetof(struct icmp_header, checksum), &checksum,
				sizeof(checksum), 0))
		return port_drop(port->vni, DROP_headroom);
	return reply_send(skb);
}

/* Whether the packet is an echo request that is not fragmented. */
static __always_inline int is_echo(const struct frame *frame)
{
	__u8 type = frame->transport >> 24;

	if (frame->flags & FRAME_FRAGMENT)
		return 0;
	if (frame->flags & FRAME_IPV6)
		return frame->protocol == IPPROTO_ICMPV6 && type == ICMP6_ECHO;
	return frame->protocol == IPPROTO_ICMP && type == ICMP4_ECHO;
}

/* Turns an echo request to the router into the reply, and sends it. */
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
	source_at = ETH_HLEN + (ipv6 ? __builtin_offsetof(struct ipv6_header, source)
				     : __builtin_offsetof(struct ipv4_header, source));
	bytes = ipv6 ? 16 : 4;
	type = ipv6 ? ICMP6_ECHO_REPLY : ICMP4_ECHO_REPLY;
	/* The word of the checksum that has the type. */
	before = bpf_htons((ipv6 ? ICMP6_ECHO : ICMP4_ECHO) << 8);
	after = bpf_htons(type << 8);
	__builtin_memcpy(macs, port->mac, ETH_ALEN);
	__builtin_memcpy(macs + ETH_ALEN, node->router_mac, ETH_ALEN);
	/* Addresses that change places do not change a checksum. */
	if (context_load(skb, source_at, addresses, ipv6 ? 32 : 8) ||
	    bpf_skb_store_bytes(skb, source_at, addresses + bytes, bytes, 0) ||
	    bpf_skb_store_bytes(skb, source_at + bytes, addresses, bytes, 0) ||
	    bpf_l4_csum_replace(skb, frame->transport_at + __builtin_offsetof(struct icmp_header, checksum),
				before, after, 2) ||
	    bpf_skb_store_bytes(skb, frame->transport_at, &type, 1, 0) ||
	    bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0))
		return port_drop(port->vni, DROP_headroom);
	return reply_send(skb);
}

#endif
