/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The network headers that the packet programs read and write, and their numbers.
 *
 * Contract: each type has the size and the layout that its RFC gives, without padding. Fields are in
 * network order unless the name of the type says otherwise (__u8 has no order). Checksums are __u16,
 * because they are computed in memory order (checksum.h). Fields of 32 and 64 bits are read by one
 * access, although a header behind Ethernet is aligned to two bytes only: the processors that are
 * supported allow that. Therefore these types are for pointers into a packet (cursor.h). On the stack,
 * where the verifier demands alignment, they are not parts of larger structures.
 *
 * It would change for a new protocol.
 */
#ifndef SLUICE_HEADERS_H
#define SLUICE_HEADERS_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/types.h>

#define ETHERTYPE_VLAN 0x8100
#define ETHERTYPE_QINQ 0x88a8

struct ethernet_header {
	__u8 destination[ETH_ALEN];
	__u8 source[ETH_ALEN];
	__be16 type;
};

/* RFC 826, for Ethernet and IPv4. Its addresses are not aligned, so they are bytes. */
struct arp_header {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_bytes;
	__u8 protocol_bytes;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__u8 sender[4];
	__u8 target_mac[ETH_ALEN];
	__u8 target[4];
};

#define ARP_ETHERNET 1
#define ARP_REQUEST 1
#define ARP_REPLY 2

/* RFC 791, without options. */
struct ipv4_header {
	__u8 version; /* IPV4_VERSION for a header without options */
	__u8 traffic_class;
	__be16 bytes; /* of the whole packet */
	__be16 id;
	__be16 fragment; /* IPV4_DF, IPV4_MORE and the offset */
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__be32 source;
	__be32 destination;
};

#define IPV4_VERSION 0x45
#define IPV4_HEADER_MAX 60
#define IPV4_DF 0x4000
#define IPV4_MORE 0x2000
#define IPV4_OFFSET 0x1fff

/* RFC 8200. Addresses are two halves, high half first. */
struct ipv6_header {
	__be32 version; /* IPV6_VERSION, traffic class and flow label */
	__be16 bytes;	/* behind this header */
	__u8 next;
	__u8 hop_limit;
	__be64 source[2];
	__be64 destination[2];
};

#define IPV6_VERSION (6u << 28)
#define IPV6_CLASS_SHIFT 20

/* Extension headers that are followed. All other numbers are transport protocols. */
#define EXTENSION_HOP_BY_HOP 0
#define EXTENSION_ROUTING 43
#define EXTENSION_FRAGMENT 44
#define EXTENSION_AUTHENTICATION 51
#define EXTENSION_DESTINATION 60

/* The first 8 bytes of any extension header. */
struct ipv6_extension {
	__u8 next;
	__u8 units;	 /* length beyond the first 8 bytes; the unit depends on the header */
	__be16 fragment; /* fragment header: offset and IPV6_MORE */
	__be32 rest;
};

#define IPV6_MORE 0x0001
#define IPV6_OFFSET 0xfff8

struct udp_header {
	__be16 source;
	__be16 destination;
	__be16 bytes; /* header included */
	__u16 checksum;
};

struct tcp_header {
	__be16 source;
	__be16 destination;
	__be32 sequence;
	__be32 acknowledgment;
	__u8 offset; /* high 4 bits: length of the header in words of 4 bytes */
	__u8 flags;
	__be16 window;
	__u16 checksum;
	__be16 urgent;
};

#define SCTP_HEADER_BYTES 12

/* RFC 7348. */
struct vxlan_header {
	__be32 flags; /* see vxlan_flags() (vxlan.h) */
	__be32 vni;   /* in the high 24 bits; the low 8 are reserved */
};

#define VXLAN_PORT 4789
#define VXLAN_FLAGS 0x08000000u /* the VNI is valid */
/*
 * VXLAN Group Policy (draft-smith-vxlan-group-policy): the low 16 bits are a group policy id. Between them are the
 * bits D and A. D, "don't learn": a host has redirected the packet, so that its sender is elsewhere (strays.h); gateways
 * neither send nor accept it. Nodes neither send nor accept A.
 */
#define VXLAN_GROUP 0x80000000u
#define VXLAN_REDIRECTED 0x400000u
#define VXLAN_GROUP_ID 0xffffu

/* ICMP (RFC 792) and ICMPv6 (RFC 4443). */
struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__be32 rest; /* depends on the type: the MTU of a "too big" */
};

#define ICMP4_ECHO_REPLY 0
#define ICMP4_UNREACHABLE 3
#define ICMP4_NEEDS_FRAGMENTATION 4 /* a code of ICMP4_UNREACHABLE */
#define ICMP4_SOURCE_QUENCH 4
#define ICMP4_REDIRECT 5
#define ICMP4_ECHO 8
#define ICMP4_TIME_EXCEEDED 11
#define ICMP4_PARAMETER_PROBLEM 12
#define ICMP4_TIMESTAMP 13
#define ICMP4_TIMESTAMP_REPLY 14
#define ICMP6_TOO_BIG 2
#define ICMP6_TIME_EXCEEDED 3
#define ICMP6_INFORMATION 128 /* types from here on are no errors */
#define ICMP6_ECHO 128
#define ICMP6_ECHO_REPLY 129
#define ICMP6_ROUTER_SOLICIT 133
#define ICMP6_ROUTER_ADVERT 134
#define ICMP6_SOLICIT 135
#define ICMP6_ADVERT 136
#define ICMP6_REDIRECT 137

/* Neighbor solicitation and advertisement (RFC 4861 sections 4.3 and 4.4), without options. */
struct nd_header {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__be32 flags;
	__be64 target[2];
};

/* A link-layer address option of neighbor discovery (RFC 4861 section 4.6.1). */
struct nd_mac_option {
	__u8 type;
	__u8 units; /* length of the option in units of 8 bytes: 1 */
	__u8 mac[ETH_ALEN];
};

#define ND_OPTION_UNIT 8
#define ND_OPTION_SOURCE_MAC 1
#define ND_OPTION_TARGET_MAC 2
#define ND_ROUTER 0x80000000u
#define ND_SOLICITED 0x40000000u
#define ND_OVERRIDE 0x20000000u
/* Messages with another hop limit may come from beyond the link, and are ignored. */
#define ND_HOP_LIMIT 255

/* Lengths of the headers as signed numbers, for sums of lengths and offsets. */
#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define ARP_BYTES 28
#define UDP_BYTES 8
#define VXLAN_BYTES 8
#define ICMP_BYTES 8

_Static_assert(sizeof(struct ethernet_header) == ETH_HLEN, "IEEE 802.3");
_Static_assert(sizeof(struct arp_header) == ARP_BYTES, "RFC 826");
_Static_assert(sizeof(struct ipv4_header) == IPV4_BYTES, "RFC 791");
_Static_assert(sizeof(struct ipv6_header) == IPV6_BYTES, "RFC 8200");
_Static_assert(sizeof(struct ipv6_extension) == 8, "RFC 8200 section 4");
_Static_assert(sizeof(struct udp_header) == UDP_BYTES, "RFC 768");
_Static_assert(sizeof(struct tcp_header) == 20, "RFC 9293");
_Static_assert(sizeof(struct vxlan_header) == VXLAN_BYTES, "RFC 7348");
_Static_assert(sizeof(struct icmp_header) == ICMP_BYTES, "RFC 792");
_Static_assert(sizeof(struct nd_header) == 24, "RFC 4861 section 4.3");
_Static_assert(sizeof(struct nd_mac_option) == ND_OPTION_UNIT, "RFC 4861 section 4.6.1");

#endif
