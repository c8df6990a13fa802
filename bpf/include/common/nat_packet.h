/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Source NAT with sessions: a packet, the public address of its inside endpoint, and where its blocks and ports may be. Part of
 * nat.h, which has the contract.
 */
#ifndef SLUICE_NAT_PACKET_H
#define SLUICE_NAT_PACKET_H

#include "common/hash.h"
#include "common/sessions.h"
#include "layout/nat_layout.h"

#ifndef NAT_FUNCTION
#define NAT_FUNCTION __attribute__((noinline))
#endif

/* How often a packet searches again after another one was faster. Four are needed without any other. */
#define NAT_ATTEMPTS 16

#define NAT_ROLLED _Pragma("clang loop unroll(disable)")

#define NAT_NONE 0xffffffffu
/* What nat_search() adds to the number of a port that another packet is about to claim. */
#define NAT_UNSETTLED 0x80000000u

/* No answer about a packet: it searches again. */
#define NAT_AGAIN 16
/* No answer either: the packet has no session, and may begin one. */
#define NAT_SESSIONLESS 19

/* nat_packet.flags */
#define NAT_PEEK 0x1u  /* nothing changes: no session begins or is refreshed */
#define NAT_QUERY 0x2u /* the packet is an ICMP query */
/* 0x4: NAT_OF_OWNER (nat_layout.h), only for nat_install(), as NAT_ADDS_STATE: `state` is added to that of a session that exists */
#define NAT_ADDS_STATE 0x8u

/*
 * A packet, and what is found. Addresses and ports are in host order. It is in memory that the includer provides, because the
 * stack is small; the caller sets the first part except what is the answer.
 */
struct nat_packet {
	struct nat_pool pool; /* of the VPC */
	__u64 inside[2];      /* halves, as in struct nat_block; nat_in(): answer */
	__u32 vni;     /* with NAT_INSIDE_IPV6 if the inside address is one of IPv6; nat_in(): answer */
	__u32 outside; /* answer */
	__u32 address; /* number of the public address in the tables; nat_out(): answer */
	__u32 remote;
	__u16 inside_port;  /* nat_in(): answer */
	__u16 outside_port; /* nat_out(): answer */
	__u16 remote_port;
	__u8 protocol;
	__u8 tcp_flags; /* 0 for other protocols */
	__u32 bytes;	/* that are counted */
	__u32 now;	/* session_ticks() */
	__u32 flags;	/* NAT_PEEK, NAT_QUERY, NAT_OF_OWNER, NAT_ADDS_STATE */
	/* Only for nat_install(). */
	__u32 state; /* NAT_COPY_OF_REMOTE, NAT_COPY_OF_SHARED, and the bits of session_data.state except SESSION_ORIGINATOR */
	__u32 idle;  /* ticks since the last packet, less than 2^30 */
	__u32 since; /* NAT_OF_OWNER: activity from this time on may be newer than what the owner says */
	/* Between the functions below. */
	struct session_query query;
	struct session_hit hit;
	__u32 class; /* NAT_TCP ... */
	__u32 mine;  /* the tentative port word that it has stored */
	__u32 shift; /* nat_config.block_shift */
	__u32 tag;   /* of the inside address */
	__u32 group[2];
	__u32 owned[2];	  /* the blocks of the inside address, as bits */
	__u32 open[2];	  /* those in which it may claim ports */
	__u32 closing[2]; /* those in which it may after it has opened them again */
	__u32 free[2];	  /* those that it may claim */
	__u32 blocks;	  /* of the inside address, in this gateway's share */
	__u32 sessions;	  /* of the inside address */
	__u32 claiming;	  /* not 0: another packet claims a block for it */
	__u32 cell[2];	  /* in each block, the cells that may have the inside port */
	__u32 preferred;  /* the word that it takes if it is free */
	__u32 shared;	  /* 1: the outside port is shared, or will be; nat_install() sets it by `state` */
	__u32 spread; /* hash bits of the inside endpoint: from which block and port on it searches one to share */
	__u32 tries;	/* ports of each block that it tries to share */
	__u32 full;	/* 1: a tuple was free, but its buckets have no free word */
	__u32 tuple[2]; /* the candidate buckets of the tuple */
	__u32 tuple_tag;
	__u32 claimed;	  /* 1: it has a tentative tuple word */
	__u32 tuple_at;	  /* number of that word */
	__u64 tuple_mine; /* what it has stored there */
};

static __always_inline __u32 nat_class(__u8 protocol)
{
	return protocol == SESSION_TCP	? NAT_TCP
	     : protocol == SESSION_UDP	? NAT_UDP
	     : protocol == SESSION_ICMP ? NAT_ICMP
					: NAT_CLASSES;
}

/* 1 if `x` is 0. Without a branch, which the verifier would follow for each block of a group (session_empty()). */
static __always_inline __u64 nat_is_zero(__u64 x)
{
	x |= -x;
	asm volatile("" : "+r"(x));
	return (x >> 63) ^ 1;
}

/* The stamp of a port word, or of the low half of a tuple word. */
static __always_inline __u32 nat_stamp_of(__u32 word)
{
	return word >> NAT_STAMP_SHIFT & NAT_STAMP_MASK;
}

/* Groups of a public address, as a shift. */
static __always_inline __u32 nat_group_shift(__u32 block_shift)
{
	return (12 - block_shift) & 15;
}

/* Number of port 0 of a public address and the packet's protocol. */
static __always_inline __u32 nat_port_base(const struct nat_packet *packet, __u32 address)
{
	return (address * NAT_CLASSES + packet->class) * NAT_PORTS;
}

/* Number of the first port of a block. */
static __always_inline __u32 nat_first_port(const struct nat_packet *packet, __u32 group, __u32 block)
{
	__u32 shift = nat_group_shift(packet->shift);
	__u32 number = (group & ((1u << shift) - 1)) * NAT_GROUP_BLOCKS + block;

	return nat_port_base(packet, group >> shift) + (number << (packet->shift & 15));
}

/* Sets the packet's protocol and the size of blocks. 0: the protocol is not translated, or there are no tables. */
static __always_inline int nat_prepare(struct nat_packet *packet)
{
	struct nat_config *nat = nat_config_at();

	packet->class = nat_class(packet->protocol);
	if (!nat || packet->class == NAT_CLASSES || !READ_ONCE(nat->groups))
		return 0;
	packet->shift = READ_ONCE(nat->block_shift);
	return 1;
}

/* A hash of the inside address, by a secret. */
static __always_inline __u64 nat_hash(const struct session_config *sessions, const struct nat_packet *packet)
{
	__u64 key[3] = { packet->vni, packet->inside[0], packet->inside[1] };

	return session_hash(sessions, key, 3);
}

/*
 * Chooses the public address of the inside address: that of the pool with the highest weight, which is a hash of both. So an
 * address that is added or removed moves only the inside addresses that have it, and gateways with other numbers and the same secret
 * choose the same one. 0: the pool is empty.
 */
NAT_FUNCTION int nat_choose_address(struct nat_packet *packet)
{
	const struct session_config *sessions = session_config_at();
	__u64 hash, highest = 0;

	if (!packet || !sessions || !packet->pool.addresses)
		return 0;
	hash = nat_hash(sessions, packet);
	NAT_ROLLED
	for (__u32 i = 0; i < NAT_POOL_ADDRESSES_MAX && i < packet->pool.addresses; i++) {
		__u32 address = packet->pool.address[i];
		struct nat_group *group = nat_group_at(address << nat_group_shift(packet->shift));
		__u64 weight = group ? exact_mix(hash, READ_ONCE(group->outside)) : 0;

		if (weight >= highest) {
			highest = weight;
			packet->address = address;
		}
	}
	return 1;
}

/*
 * Derives the candidate groups of the inside address, which are of packet->address, and the candidate cells of its port. Groups
 * that have only ports below NAT_PORT_MIN are skipped.
 */
static __always_inline void nat_place(const struct session_config *sessions, const struct nat_config *nat,
				      struct nat_packet *packet)
{
	__u32 shift = nat_group_shift(packet->shift), cells = (1u << (packet->shift & 15)) / NAT_CELL_PORTS;
	__u32 lowest = NAT_PORT_MIN / NAT_GROUP_BLOCKS >> (packet->shift & 15);
	__u32 groups = (1u << shift) - lowest, first = (packet->address << shift) + lowest;
	__u64 hash = nat_hash(sessions, packet), chosen[2];

	chosen[0] = (hash & 0xffffffff) * groups >> 32;
	chosen[1] = (hash >> 32) * groups >> 32;
	/* If there is one group, both are the same. */
	if (chosen[1] == chosen[0])
		chosen[1] = chosen[0] + 1 == groups ? 0 : chosen[0] + 1;
	packet->group[0] = first + chosen[0];
	packet->group[1] = first + chosen[1];
	packet->tag = (hash * 0xa0761d6478bd642full) >> 32;
	hash = exact_mix((__u64)packet->tag << 32 | packet->class << 16 | packet->inside_port,
			 READ_ONCE(nat->port_seed));
	packet->cell[0] = hash & (cells - 1);
	packet->cell[1] = hash >> 12 & (cells - 1);
	if (packet->cell[1] == packet->cell[0])
		packet->cell[1] ^= 1;
	packet->preferred = hash >> 24 & (NAT_CELL_PORTS - 1);
	packet->spread = hash >> 32;
}

/* The block of the packet's outside port. */
static __always_inline struct nat_group *nat_block_of(const struct nat_packet *packet, __u32 *slot)
{
	__u32 block = packet->outside_port >> (packet->shift & 15);

	*slot = block % NAT_GROUP_BLOCKS;
	return nat_group_at((packet->address << nat_group_shift(packet->shift)) + block / NAT_GROUP_BLOCKS);
}

#endif
