/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * A tenant's frame after parsing, and questions about it that need no packet bytes.
 *
 * Contract: parse_frame() (parse.h) fills in the structure, but what is behind `flags`, which is not in the tenant's bytes.
 * Calls no helper and uses no map.
 */
#ifndef SLUICE_FRAME_H
#define SLUICE_FRAME_H

#include "common/bytes.h"
#include "common/hash.h"
#include "common/headers.h"
#include "layout/cells.h"

#define MAC_GROUP_BIT (1ull << 40)

#define FRAME_IPV6 0x01
#define FRAME_FRAGMENT 0x02 /* any fragment of a datagram */
#define FRAME_LATER 0x04    /* a fragment that is not the first: it has no transport header */
#define FRAME_DF 0x08	    /* must not be fragmented; always set in IPv6 */
#define FRAME_OPTIONS 0x10  /* IPv4 options or IPv6 extension headers */
/* It follows an instance that migrates (strays.h). Not of the tenant's bytes: parse_frame() clears it. */
#define FRAME_REDIRECTED 0x20

#define ECN_MASK 0x3 /* of the traffic class */
#define ECN_ECT0 0x2
#define ECN_CE 0x3

/* Addresses are halves in host order, high half first. An IPv4 address is in the low 32 bits of [1]. */
struct frame {
	__u64 source[2];
	__u64 destination[2];
	__u64 source_mac; /* as in EXACT_MAC_MASK */
	__u64 destination_mac;
	__u32 ip_bytes;	    /* length of the IP packet according to its header */
	__u32 transport;    /* first 4 bytes of the transport header, in host order; 0: not parsed */
	__u16 ethertype;    /* in host order */
	__u16 transport_at; /* offset of the transport header from the start of the Ethernet header */
	__u8 protocol;	    /* of the transport header, behind IPv6 extension headers */
	__u8 ttl;	    /* or hop limit */
	__u8 traffic_class;
	__u8 flags;	/* FRAME_* */
	__u16 identity; /* of the sender's security groups within its VNI; 0: none that this node may trust */
	__u8 judged; /* vSwitch: not 0 if a policy was asked about the packet; bit 0: by the last port (credit.h) */
	__u8 reserved8;
	__u32 seen; /* vSwitch: frames that this memory has had, of which one in COST_SAMPLE is timed (credit.h) */
};

static __always_inline int ipv4_multicast(__u64 address)
{
	return (address & 0xf0000000) == 0xe0000000 || address == 0xffffffff;
}

static __always_inline int ipv6_multicast(__u64 high)
{
	return high >> 56 == 0xff;
}

static __always_inline int ipv6_link_local(__u64 high)
{
	return high >> 54 == 0xfe80 >> 6;
}

/* Whether the frame's MAC or IP destination is multicast or broadcast. */
static __always_inline int frame_multicast(const struct frame *frame)
{
	if (frame->destination_mac & MAC_GROUP_BIT)
		return 1;
	return frame->flags & FRAME_IPV6 ? ipv6_multicast(frame->destination[0])
					 : ipv4_multicast(frame->destination[1]);
}

/* Whether a host can have the source addresses: RFC 1122 section 3.2.1.3, RFC 4291 section 2.5. */
static __always_inline int source_valid(const struct frame *frame)
{
	__u64 high = frame->source[0], low = frame->source[1];

	if (frame->source_mac & MAC_GROUP_BIT || !frame->source_mac)
		return 0;
	if (frame->flags & FRAME_IPV6)
		return !ipv6_multicast(high) && (high || low > 1);
	return low >> 24 != 0 && low >> 24 != 127 && !ipv4_multicast(low);
}

/*
 * The outer mark of congestion notification: the tenant's, but not that there was congestion, which the
 * underlay must be able to say itself (RFC 3168 section 9.1.1; the VXLAN device does the same).
 */
static __always_inline __u8 outer_ecn(const struct frame *frame)
{
	__u8 ecn = frame->traffic_class & ECN_MASK;

	return ecn == ECN_CE ? ECN_ECT0 : ecn;
}

/* Whether the transport headers of the protocol begin with two ports. */
static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

/* Whether the transport word is two ports. Fragments count as without ports, so that all have one flow. */
static __always_inline int frame_has_ports(const struct frame *frame)
{
	return !(frame->flags & FRAME_FRAGMENT) && has_ports(frame->protocol);
}

/* Protocol and ports, if there are any: the same for all packets of a flow. */
static __always_inline __u64 frame_ports(const struct frame *frame)
{
	__u64 protocol = frame->protocol;

	return frame_has_ports(frame) ? protocol | (__u64)frame->transport << 8 : protocol;
}

/*
 * Hash of addresses, protocol and ports. Tenants can compute it, and choose flows for which it has the values
 * that they want: it may only spread packets.
 */
static __always_inline __u32 frame_hash(const struct frame *frame)
{
	__u64 rest = frame_ports(frame), hash;

	if (!(frame->flags & FRAME_IPV6))
		return exact_mix(frame->source[1] << 32 | frame->destination[1], rest);
	hash = exact_mix(frame->source[0] ^ (frame->destination[0] << 7 | frame->destination[0] >> 57), rest);
	return exact_mix(frame->source[1] ^ (frame->destination[1] << 9 | frame->destination[1] >> 55), hash);
}

/*
 * Hash of the same fields under a secret. Each field that a tenant chooses is mixed with 64 bits of the secret
 * before it meets another one, so that no relation between two flows says how their hashes are related.
 */
static __always_inline __u32 frame_secret_hash(const struct frame *frame, const __u64 *secret)
{
	__u64 hash;

	if (frame->flags & FRAME_IPV6) {
		hash = exact_mix(frame->source[0], secret[0]);
		hash = exact_mix(frame->source[1] ^ hash, secret[1]);
		hash = exact_mix(frame->destination[0] ^ hash, secret[0]);
		hash = exact_mix(frame->destination[1] ^ hash, secret[1]);
	} else {
		hash = exact_mix(frame->source[1] << 32 | frame->destination[1], secret[0]);
	}
	return exact_mix(frame_ports(frame) ^ hash, secret[1]);
}

#endif
