/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: fragments of datagrams that source NAT translates. A later fragment has no ports, so it gets the
 * address that the first one of its datagram got within NAT_FRAGMENT_TICKS. Later fragments that overtake their first one are
 * dropped.
 *
 * Contract: expects the parsed frame of a fragment (of IPv6 for NAT64), `at` bytes into the packet, and in the flow (nat_flow.h) the addresses
 * that the datagram had before this translation. The packet is not changed. Uses the map `nat_fragments`.
 *
 * A datagram is known by 40 bits of a hash under the secret of the sessions, with the address that it gets: so an entry of
 * which two processors have written one word each is of no datagram. Each VNI has one of 256 parts of the table, by a hash:
 * a tenant displaces only what is in its part, which a few other tenants may share. Of 20 VPCs, about two do. Anyone on the Internet
 * can send first fragments to a forwarded port, in any number. So these displace only each other, and entries of datagrams
 * that are old enough to be complete.
 */
#ifndef SLUICE_NAT_FRAGMENTS_H
#define SLUICE_NAT_FRAGMENTS_H

#include "gateway/nat_flow.h"

#define NAT_FRAGMENTS_PART 256				   /* entries */
#define NAT_FRAGMENT_TICKS (30 * SESSION_TICKS_PER_SECOND) /* as long as Linux waits for fragments */
#define NAT_FRAGMENT_TIME 0xffffffull
/* For how long a datagram is not displaced by one to a forwarded port: fragments of one datagram follow each other closely. */
#define NAT_FRAGMENT_SAFE_TICKS (2 * SESSION_TICKS_PER_SECOND)

/* The direction of a packet in the key of its datagram. */
#define NAT_FRAGMENT_OUT 0
#define NAT_FRAGMENT_IN 1
#define NAT_FRAGMENT_DIRECTION 1
/* With NAT_FRAGMENT_IN, for a first fragment: to a forwarded port. */
#define NAT_FRAGMENT_FORWARDED 2

/* What identifies the datagram, and the place of its entry. */
struct nat_datagram {
	__u64 key[3]; /* the last word is the address that it gets */
	__u32 index;
};

/* Reads the identification and the offset in units of 8 bytes. Negative: the fragment has not the header that it should have. */
static __always_inline int read_fragment_id(struct xdp_md *ctx, const struct packet *packet, __u32 at,
					    __u32 *id, __u32 *offset)
{
	struct ipv6_extension extension;
	__be16 words[2];

	at += ETH_HLEN;
	if (packet->frame.flags & FRAME_IPV6) {
		/* nat64_out() (nat64.h) accepts no other extension header. */
		if (bpf_xdp_load_bytes(ctx, at + IPV6_BYTES, &extension, sizeof(extension)))
			return -1;
		*id = extension.rest;
		*offset = bpf_ntohs(extension.fragment) >> 3;
		return 0;
	}
	if (bpf_xdp_load_bytes(ctx, at + __builtin_offsetof(struct ipv4_header, id), words, sizeof(words)))
		return -1;
	*id = words[0];
	*offset = bpf_ntohs(words[1]) & IPV4_OFFSET;
	return 0;
}

/* 0: the fragment is not translated. */
static __always_inline int nat_datagram(struct xdp_md *ctx, const struct packet *packet, __u32 at,
					__u64 direction, __u32 vni, struct nat_datagram *datagram)
{
	const struct session_config *sessions = session_config_at();
	const struct nat_memory *memory = nat_memory();
	__u32 id, offset;

	/* The highest bit is that of the direction. */
	if (!sessions || !memory || packet->frame.protocol & 0x80 ||
	    read_fragment_id(ctx, packet, at, &id, &offset))
		return 0;
	/* It could overwrite the flags of the TCP header by which the datagram was translated (RFC 3128). */
	if (packet->frame.protocol == IPPROTO_TCP && offset == 1)
		return 0;
	datagram->key[0] = vni | (packet->frame.protocol | (direction & NAT_FRAGMENT_DIRECTION) << 7) << 24 |
			   (__u64)id << 32;
	datagram->key[1] = (__u64)memory->flow.source << 32 | memory->flow.destination;
	datagram->key[2] = 0;
	datagram->index = session_hash(sessions, datagram->key, 3) % NAT_FRAGMENTS_PART +
			  exact_mix(vni, READ_ONCE(sessions->seed)) % (NAT_FRAGMENTS / NAT_FRAGMENTS_PART) *
				  NAT_FRAGMENTS_PART;
	return 1;
}

/* The word of an entry, with the time 0. */
static __always_inline __u64 nat_fragment_check(struct nat_datagram *datagram, __u32 address)
{
	const struct session_config *sessions = session_config_at();

	datagram->key[2] = address;
	return sessions ? session_hash(sessions, datagram->key, 3) & ~NAT_FRAGMENT_TIME : 0;
}

/* Whether a datagram to a forwarded port may take the place of this entry. */
static __always_inline int nat_fragment_yields(const struct nat_fragment *entry, __u64 now)
{
	__u64 word = READ_ONCE(entry->word);

	return !word || READ_ONCE(entry->forwarded) ||
	       ((now - word) & NAT_FRAGMENT_TIME) > NAT_FRAGMENT_SAFE_TICKS;
}

/*
 * Remembers the address that the first fragment has got, instead of one of its flow's. If that is one of IPv6, the outside port, whose
 * block has it.
 */
__attribute__((noinline)) int remember_nat_fragment(struct xdp_md *ctx, struct packet *packet, __u32 at,
						    __u32 direction, __u32 vni)
{
	const struct nat_memory *memory = nat_memory();
	struct nat_datagram datagram = {};
	int is_forwarded = !!(direction & NAT_FRAGMENT_FORWARDED);
	struct nat_fragment *entry;
	__u32 address, now;

	if (!packet || !memory || !nat_datagram(ctx, packet, at, direction, vni, &datagram))
		return 0;
	if (direction == NAT_FRAGMENT_OUT)
		address = packet->new_source[1];
	else if (packet->nat & PACKET_NAT64)
		address = memory->packet.outside_port;
	else
		address = packet->new_destination[1];
	now = session_ticks(packet->now_ns);
	entry = bpf_map_lookup_elem(&nat_fragments, &datagram.index);
	if (!entry || (is_forwarded && !nat_fragment_yields(entry, now)))
		return 0;
	WRITE_ONCE(entry->address, address);
	WRITE_ONCE(entry->forwarded, is_forwarded);
	WRITE_ONCE(entry->word, nat_fragment_check(&datagram, address) | (now & NAT_FRAGMENT_TIME));
	return 0;
}

/* The address that a later fragment gets. 0: its first fragment was not translated a short time ago. */
__attribute__((noinline)) __u32 find_nat_fragment(struct xdp_md *ctx, struct packet *packet, __u32 at,
						  __u32 direction, __u32 vni)
{
	struct nat_datagram datagram = {};
	struct nat_fragment *entry;
	__u32 address;
	__u64 word;

	if (!packet || !nat_datagram(ctx, packet, at, direction, vni, &datagram))
		return 0;
	entry = bpf_map_lookup_elem(&nat_fragments, &datagram.index);
	if (!entry)
		return 0;
	word = READ_ONCE(entry->word);
	address = READ_ONCE(entry->address);
	if ((word ^ nat_fragment_check(&datagram, address)) & ~NAT_FRAGMENT_TIME ||
	    ((session_ticks(packet->now_ns) - word) & NAT_FRAGMENT_TIME) > NAT_FRAGMENT_TICKS)
		return 0;
	return address;
}

#endif
