/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* ARP (RFC 826, 5227): questions are checked and answered in place. */
#ifndef SLUICE_ARP_H
#define SLUICE_ARP_H

#include "common/frame.h"
#include "layout/drops.h"

#define ARP_REQUEST 1
#define ARP_REPLY 2
/* Ethernet, IPv4, their lengths. */
#define ARP_HEAD 0x000108000604ull

/* Offset of the sender's IPv4 address behind the Ethernet header. */
#define ARP_SENDER 14

struct arp_question {
	__u64 sender_mac;
	__u32 sender; /* host order; 0 in a probe */
	__u32 target;
	__u32 operation;
};

/* start: a frame of ethertype ARP with ETH_HLEN + ARP_BYTES before the end. */
static __always_inline enum drop_reason parse_arp(const void *start, const struct frame *frame,
						  struct arp_question *arp)
{
	const void *at = start + ETH_HLEN;
	__u64 head = load_half(at);

	arp->operation = head & 0xffff;
	arp->sender_mac = load_mac(at + 8);
	arp->sender = bpf_ntohl(LOAD32(at + ARP_SENDER));
	arp->target = bpf_ntohl(LOAD32(at + 24));
	if (head >> 16 != ARP_HEAD || arp->sender_mac != frame->source_mac ||
	    arp->sender_mac & MAC_GROUP_BIT || !arp->sender_mac ||
	    (arp->operation != ARP_REQUEST && arp->operation != ARP_REPLY))
		return DROP_arp_malformed;
	if (ipv4_multicast(arp->sender) || arp->sender >> 24 == 127 || ipv4_multicast(arp->target))
		return DROP_arp_malformed;
	return DROP_none;
}

/* Turns the question at `start` into the answer that its target is at `mac`. */
static __always_inline void write_arp_reply(void *start, const struct arp_question *arp, __u64 mac)
{
	void *at = start + ETH_HLEN;

	store_mac(start, arp->sender_mac);
	store_mac(start + ETH_ALEN, mac);
	STORE16(at + 6, bpf_htons(ARP_REPLY));
	store_mac(at + 8, mac);
	STORE32(at + 14, bpf_htonl(arp->target));
	store_mac(at + 18, arp->sender_mac);
	STORE32(at + 24, bpf_htonl(arp->sender));
}

#endif
