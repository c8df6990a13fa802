/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: composes its answers to a VM. The VM's own packet becomes an empty one of the wanted length,
 * is overwritten, and is sent back to the port that it came from.
 *
 * Contract: an answer that has the request's length and only changes fields (ARP, echo) calls just
 * reply_send(). For all others: first reply_begin(); then the caller writes all headers up to byte 54, and what else it
 * wants; then the checksum; last reply_send(). If one of them fails, the packet is unusable and must be
 * dropped. Uses the maps of packet_sum.h.
 */
#ifndef SLUICE_REPLY_H
#define SLUICE_REPLY_H

#include "common/ip_write.h"
#include "common/packet_sum.h"
#include "vswitch/pending_checksum.h"
#include "layout/qos_layout.h"
#include "vswitch/port.h"

#define REPLY_TTL 64

/*
 * The bytes that reply_begin() removes behind the Ethernet header. The kernel forgets a pending
 * transport checksum (CHECKSUM_PARTIAL) only when the place where it begins is removed. Otherwise a device
 * would later store a checksum in the middle of the answer. The kernel of a VM requests none that begins
 * so far behind in a packet that is answered.
 */
#define REPLY_STRIP 256
/* The bytes that the kernel insists on keeping: an IPv6 header. */
#define REPLY_KEEP IPV6_BYTES

/*
 * Makes an unshared, linear packet of `bytes`, at least 54, without offloads. Its bytes from 54 on are
 * zero. The packet must be IP. DROP_headroom: the kernel could not resize it. DROP_pending_checksum: a pending
 * checksum begins too far behind to be removed.
 */
static __always_inline enum drop_reason reply_begin(struct __sk_buff *skb, __u32 bytes)
{
	struct pending_checksum pending;
	long failed;

	if (pending_checksum(skb, &pending) && pending.begin >= REPLY_STRIP)
		return DROP_pending_checksum;
	failed = bpf_skb_change_tail(skb, ETH_HLEN + REPLY_STRIP + REPLY_KEEP, 0);
	if (!failed)
		failed = bpf_skb_adjust_room(skb, -REPLY_STRIP, BPF_ADJ_ROOM_MAC, 0);
	if (!failed)
		failed = bpf_skb_change_tail(skb, ETH_HLEN + REPLY_KEEP, 0);
	if (!failed)
		failed = bpf_skb_change_tail(skb, bytes, 0);
	return failed ? DROP_headroom : DROP_none;
}

/* Writes Ethernet: from the router to the VM. */
static __always_inline void reply_ethernet(struct ethernet_header *ethernet, const struct port *port,
					   const struct node_config *node, __u16 ethertype)
{
	__builtin_memcpy(ethernet->destination, port->mac, ETH_ALEN);
	__builtin_memcpy(ethernet->source, node->router_mac, ETH_ALEN);
	ethernet->type = bpf_htons(ethertype);
}

/*
 * Computes the checksum over `bytes` from `from` on and stores it at `field`, which holds zero. `sum`
 * is what else belongs to it, such as the rest of a pseudo header. 0, or negative if it failed.
 */
static __always_inline long reply_checksum(struct __sk_buff *skb, __u32 from, __u32 bytes, __u64 sum,
					   __u32 field)
{
	__u64 packet = packet_sum(skb, from, bytes);
	__u16 checksum = checksum_fold_udp(packet + sum);

	if (packet == SUM_FAILED)
		return -1;
	return bpf_skb_store_bytes(skb, field, &checksum, sizeof(checksum), 0);
}

/* Computes the checksum of an ICMPv6 message of `bytes`, which is directly behind the IPv6 header. */
static __always_inline long reply_checksum_icmp6(struct __sk_buff *skb, __u32 bytes)
{
	const __u32 addresses = ETH_HLEN + __builtin_offsetof(struct ipv6_header, source);
	const __u32 message = ETH_HLEN + IPV6_BYTES;

	return reply_checksum(skb, addresses, message + bytes - addresses,
			      (__u64)bpf_htonl(bytes) + bpf_htonl(IPPROTO_ICMPV6),
			      message + __builtin_offsetof(struct icmp_header, checksum));
}

/* Sends the packet to the VM, in front of what waits for it: a VM needs these answers when its port is full, too. */
static __always_inline int reply_send(struct __sk_buff *skb)
{
	skb->priority = QOS_PRIORITY_HIGH;
	return bpf_redirect(skb->ifindex, 0);
}

#endif
