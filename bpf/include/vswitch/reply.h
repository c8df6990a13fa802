/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Answers of the vSwitch to its own VM: the VM's packet is turned into an empty
 * one of the wanted length, written anew, and sent back out of the port.
 */
#ifndef SLUICE_REPLY_H
#define SLUICE_REPLY_H

#include "vswitch/port.h"

#define REPLY_TTL 64
/* Neighbour discovery is believed only at this hop limit (RFC 4861). */
#define ND_HOP_LIMIT 255

/*
 * What reply_begin takes off behind the Ethernet header. The kernel forgets a
 * pending transport checksum (CHECKSUM_PARTIAL, which no program can see) only
 * when its place has been pulled off, so this is more than any offset at which
 * a VM's kernel asks for one. Without it a device would later "complete" two
 * bytes in the middle of the answer.
 */
#define REPLY_STRIP 256
/* What the kernel insists on keeping: an IPv6 header. */
#define REPLY_KEEP 40

struct ipv4_head {
	__u8 version;
	__u8 traffic_class;
	__be16 bytes;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__be32 source;
	__be32 destination;
} __attribute__((packed, aligned(2)));

struct ipv6_head {
	__be32 version;
	__be16 payload;
	__u8 next;
	__u8 hop_limit;
	__be64 source[2];
	__be64 destination[2];
} __attribute__((packed, aligned(2)));

_Static_assert(sizeof(struct ipv4_head) == IPV4_BYTES, "RFC 791");
_Static_assert(sizeof(struct ipv6_head) == IPV6_BYTES, "RFC 8200");

/*
 * Leaves an unshared, linear skb of `length` bytes without offloads, at least
 * 54, whose bytes from 54 on are zero. IP packets only. 0, or negative if
 * memory ran out.
 */
static __always_inline long reply_begin(struct __sk_buff *skb, __u32 length)
{
	long failed = bpf_skb_change_tail(skb, ETH_HLEN + REPLY_STRIP + REPLY_KEEP, 0);

	if (!failed)
		failed = bpf_skb_adjust_room(skb, -REPLY_STRIP, BPF_ADJ_ROOM_MAC, 0);
	if (!failed)
		failed = bpf_skb_change_tail(skb, ETH_HLEN + REPLY_KEEP, 0);
	if (!failed)
		failed = bpf_skb_change_tail(skb, length, 0);
	return failed;
}

static __always_inline void reply_ethernet(struct ethhdr *eth, const struct port *port,
					   const struct node_config *node, __u16 ethertype)
{
	__builtin_memcpy(eth->h_dest, port->mac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, node->router_mac, ETH_ALEN);
	eth->h_proto = bpf_htons(ethertype);
}

static __always_inline void reply_ipv4(struct ipv4_head *ip, __u32 bytes, __u8 protocol,
				       __be32 source, __be32 destination)
{
	ip->version = 0x45;
	ip->traffic_class = 0;
	ip->bytes = bpf_htons(bytes);
	ip->id = 0;
	ip->fragment = bpf_htons(0x4000);
	ip->ttl = REPLY_TTL;
	ip->protocol = protocol;
	ip->checksum = 0;
	ip->source = source;
	ip->destination = destination;
	ip->checksum = checksum_fold(ipv4_header_sum(ip));
}

/* The addresses are the caller's to write. */
static __always_inline void reply_ipv6(struct ipv6_head *ip, __u32 payload, __u8 next,
				       __u8 hop_limit)
{
	ip->version = bpf_htonl(6u << 28);
	ip->payload = bpf_htons(payload);
	ip->next = next;
	ip->hop_limit = hop_limit;
}

/*
 * Writes the checksum over `bytes` from `from` at `field`, which holds zero;
 * `sum` is what else belongs to it, such as the rest of a pseudo header.
 */
static __always_inline long reply_checksum(struct __sk_buff *skb, __u32 from, __u32 bytes,
					   __u64 sum, __u32 field)
{
	__u64 packet = packet_sum(skb, from, bytes);
	__u16 checksum = checksum_fold(packet + sum);

	if (packet == SUM_FAILED)
		return -1;
	/* UDP keeps zero for "none"; all ones means the same number. */
	if (!checksum)
		checksum = 0xffff;
	return bpf_skb_store_bytes(skb, field, &checksum, sizeof(checksum), 0);
}

/* ICMPv6 right behind the IPv6 header: the addresses before it belong to the sum. */
static __always_inline long reply_checksum_icmp6(struct __sk_buff *skb, __u32 bytes)
{
	return reply_checksum(skb, ETH_HLEN + 8, 32 + bytes,
			      (__u64)bpf_htonl(bytes) + bpf_htonl(IPPROTO_ICMPV6),
			      ETH_HLEN + IPV6_BYTES + 2);
}

/* Back to the VM: out of the host's side of the port. */
static __always_inline int reply_send(struct __sk_buff *skb)
{
	return bpf_redirect(skb->ifindex, 0);
}

#endif
