/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * ARP (RFC 826, 5227): checks a message, and turns a request into its reply in place. Tenants' frames
 * and the underlay's own use the same functions.
 *
 * Contract: the caller has parsed the Ethernet header into struct frame and has checked the bounds of
 * both headers. The caller decides who may ask for which address. Uses no map.
 */
#ifndef SLUICE_ARP_H
#define SLUICE_ARP_H

#include "common/frame.h"
#include "layout/drops.h"

/* A valid ARP message. Addresses are in host order. */
struct arp_message {
	__u64 sender_mac;
	__u32 sender; /* 0 in a probe */
	__u32 target;
	__u32 operation; /* ARP_REQUEST or ARP_REPLY */
};

/* Reads and checks a message of the frame. */
static __always_inline enum drop_reason parse_arp(const struct arp_header *header, const struct frame *frame,
						  struct arp_message *arp)
{
	arp->operation = bpf_ntohs(header->operation);
	arp->sender_mac = load_mac(header->sender_mac);
	arp->sender = bpf_ntohl(LOAD32(header->sender));
	arp->target = bpf_ntohl(LOAD32(header->target));
	if (header->hardware != bpf_htons(ARP_ETHERNET) || header->protocol != bpf_htons(ETH_P_IP) ||
	    header->hardware_bytes != ETH_ALEN || header->protocol_bytes != sizeof(header->sender))
		return DROP_arp_malformed;
	if (arp->sender_mac != frame->source_mac || arp->sender_mac & MAC_GROUP_BIT || !arp->sender_mac ||
	    (arp->operation != ARP_REQUEST && arp->operation != ARP_REPLY))
		return DROP_arp_malformed;
	if (ipv4_multicast(arp->sender) || arp->sender >> 24 == 127 || ipv4_multicast(arp->target))
		return DROP_arp_malformed;
	return DROP_none;
}

/* Turns a request, with its Ethernet header, into the reply that its target is at `mac`. */
static __always_inline void write_arp_reply(struct ethernet_header *ethernet, struct arp_header *header,
					    const struct arp_message *arp, __u64 mac)
{
	store_mac(ethernet->destination, arp->sender_mac);
	store_mac(ethernet->source, mac);
	header->operation = bpf_htons(ARP_REPLY);
	store_mac(header->sender_mac, mac);
	STORE32(header->sender, bpf_htonl(arp->target));
	store_mac(header->target_mac, arp->sender_mac);
	STORE32(header->target, bpf_htonl(arp->sender));
}

#endif
