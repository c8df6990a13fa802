/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: decapsulation in front of the host's own stack, on the underlay interface (docs/decisions/vswitch.md).
 *
 * Contract: it accepts only what it is sure of. Everything else is left to the host's stack, which passes VXLAN to
 * the VXLAN device, where uplink_ingress decides about it and counts drops: an IPv6 underlay, a UDP checksum,
 * fragments, options, and TCP segments with data. A NIC's driver may merge these, and only the VXLAN device can handle
 * merged packets. Segments of one flow must not take both paths, because the device delivers later than the program:
 * they would overtake each other. Uses the map `cells`.
 */
#ifndef SLUICE_DECAPSULATE_H
#define SLUICE_DECAPSULATE_H

#include "vswitch/tunnel.h"

/* libbpf sets it when it loads the program, so that the verifier removes code for other kernels. */
extern int LINUX_KERNEL_VERSION __kconfig;

/* Of bpf_skb_adjust_room(), since Linux 6.3: the packet is IPv6 behind the headers that are removed. */
#define ADJUST_ROOM_DECAP_IPV6 (1ull << 8)
#define DECAP_IPV6_SINCE (6 << 16 | 3 << 8)

/* Whether the UDP header is VXLAN's, without a checksum, and without flags of extensions but an identity. */
static __always_inline int is_plain_vxlan(const struct udp_header *udp, const struct vxlan_header *vxlan)
{
	return udp->destination == bpf_htons(VXLAN_PORT) && !udp->checksum &&
	       vxlan_flags_valid(bpf_ntohl(vxlan->flags)) && !(vxlan->vni & bpf_htonl(0xff));
}

/* Bytes that are made linear: all headers but IPv4 options and IPv6 extension headers. */
#define DECAPSULATE_BYTES (TUNNEL4_BYTES + ETH_HLEN + IPV6_BYTES + (int)sizeof(struct tcp_header))

/*
 * Whether the packet is to VXLAN's port. Then all its headers are linear. Some drivers make no more linear than the
 * headers that they know, and the host's other packets need not be touched.
 */
static __always_inline int pull_vxlan(struct __sk_buff *skb)
{
	struct cursor cursor = cursor_at(skb, ETH_HLEN + IPV4_BYTES);
	const struct udp_header *udp = take_header(&cursor, struct udp_header);
	__u32 bytes = skb->len < DECAPSULATE_BYTES ? skb->len : DECAPSULATE_BYTES;

	if (!udp || udp->destination != bpf_htons(VXLAN_PORT))
		return 0;
	cursor = cursor_at(skb, 0);
	return cursor_has(&cursor, bytes) || !bpf_skb_pull_data(skb, bytes);
}

/*
 * Whether the packet is plain VXLAN over IPv4 to this node: unfragmented, not merged, with valid lengths and
 * header checksum. Then VNI, sender and identity are set.
 */
static __always_inline int read_underlay(struct __sk_buff *skb, const struct node_config *node, __u32 *vni,
					 struct tunnel_sender *from)
{
	const struct ethernet_header *ethernet;
	const struct vxlan_header *vxlan;
	const struct ipv4_header *ip;
	const struct udp_header *udp;
	struct cursor cursor;

	if (skb->gso_size || skb->pkt_type != PACKET_HOST || skb->vlan_present ||
	    !(node->flags & NODE_HAS_IPV4) || !pull_vxlan(skb))
		return 0;
	cursor = cursor_at(skb, 0);
	if (!cursor_has(&cursor, TUNNEL4_BYTES))
		return 0;
	ethernet = next_header(&cursor, struct ethernet_header);
	ip = next_header(&cursor, struct ipv4_header);
	udp = next_header(&cursor, struct udp_header);
	vxlan = next_header(&cursor, struct vxlan_header);
	if (ethernet->type != bpf_htons(ETH_P_IP) || ip->version != IPV4_VERSION ||
	    ip->protocol != IPPROTO_UDP || ip->fragment & bpf_htons(IPV4_MORE | IPV4_OFFSET) ||
	    ip->destination != node->vtep4)
		return 0;
	if (!is_plain_vxlan(udp, vxlan) || ETH_HLEN + bpf_ntohs(ip->bytes) != skb->len ||
	    ETH_HLEN + IPV4_BYTES + bpf_ntohs(udp->bytes) != skb->len || !checksum_valid(ipv4_header_sum(ip)))
		return 0;
	from->is_congested = (ip->traffic_class & ECN_MASK) == ECN_CE;
	from->address[1] = bpf_ntohl(ip->source);
	from->identity = bpf_ntohl(vxlan->flags) & VXLAN_GROUP_ID;
	*vni = bpf_ntohl(vxlan->vni) >> 8;
	return 1;
}

/* Whether the kernel lets a program remove IPv4 headers in front of this frame, which is IPv4 or IPv6. */
static __always_inline int can_decapsulate(const struct frame *frame)
{
	return !(frame->flags & FRAME_IPV6) || LINUX_KERNEL_VERSION >= DECAP_IPV6_SINCE;
}

/* Flags of a TCP segment that may be taken out of the order of those with data: an ACK, a SYN, both. */
#define TCP_FLAGS_PLAIN 0x12

/*
 * Whether a driver may merge the frame, which is at TUNNEL4_BYTES of the packet, with others of its flow: a TCP
 * segment that has data, or that ends the connection.
 */
static __always_inline int may_be_merged(struct __sk_buff *skb, const struct frame *frame)
{
	const struct tcp_header *tcp;

	if (frame->protocol != IPPROTO_TCP)
		return 0;
	tcp = linear_tcp(skb, TUNNEL4_BYTES, frame);
	if (!tcp || tcp->flags & ~TCP_FLAGS_PLAIN)
		return 1;
	return frame->transport_at - ETH_HLEN + (tcp->offset >> 4) * 4 < frame->ip_bytes;
}

/*
 * Whether the tenant's packet can carry the mark of congestion that the underlay has set (RFC 6040 section 4.2). If
 * not, the VXLAN device drops it.
 */
static __always_inline int can_be_marked(const struct tunnel_sender *from, const struct frame *frame)
{
	return !from->is_congested || frame->traffic_class & ECN_MASK;
}

/*
 * Removes the outer headers and the tenant's Ethernet header, which is stored again in place of the outer one. The
 * frame is IPv4 or IPv6. 0 if it is done. The kernel keeps the state of checksums as the VXLAN device would.
 */
static __always_inline long remove_outer_headers(struct __sk_buff *skb, int ipv6)
{
	__u64 flags = BPF_F_ADJ_ROOM_NO_CSUM_RESET | (ipv6 ? ADJUST_ROOM_DECAP_IPV6 : 0);
	struct cursor cursor = cursor_at(skb, TUNNEL4_BYTES);
	struct ethernet_header ethernet;

	if (!cursor_has(&cursor, ETH_HLEN))
		return -1;
	ethernet = *next_header(&cursor, struct ethernet_header);
	if (bpf_skb_adjust_room(skb, -(__s32)TUNNEL4_BYTES, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	/* What the NIC has verified, if anything, began with the outer UDP header. */
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	/* A sum that the kernel knows begins behind the Ethernet header, and needs no change. */
	cursor = cursor_at(skb, 0);
	if (!cursor_has(&cursor, ETH_HLEN))
		return -1;
	*next_header(&cursor, struct ethernet_header) = ethernet;
	return 0;
}

#endif
