/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Source NAT with sessions, for packet programs: which outside endpoint a packet of a VM gets, and to which VM a packet from
 * the Internet goes. The layout and the argument why it is safe are in nat_layout.h. IPv4 only.
 *
 * Contract: the includer provides what sessions.h demands, and
 *
 *   struct session_config *session_config_at(void);
 *   struct nat_config *nat_config_at(void);
 *   struct nat_group *nat_group_at(__u32 index);
 *   struct nat_ports *nat_ports_at(__u32 index);
 *
 * which return NULL if the index is out of bounds, and find_session4() and create_session4() as session_maps.h does. The calls
 * for a packet are nat_out() and nat_in(); the caller fills `pool` from the struct nat_gateway of the VPC, and counts the
 * packets that it drops. The session tables have the flag SESSION_RST_IN_DOUBT, and all their sessions are made here. An
 * answer is valid until the program ends. Loops are bounded, nothing sleeps.
 *
 * ICMP: ports are those of session_layout.h. For a query of a VM and its answers, the inside port is the identifier, and the
 * remote port the type of the query. An ICMP error is translated by the packet that it quotes, with NAT_PEEK.
 *
 * The verifier processes each NAT_FUNCTION once, and not for every caller.
 */
#ifndef SLUICE_NAT_H
#define SLUICE_NAT_H

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

/* nat_packet.flags */
#define NAT_PEEK 0x1u  /* nothing changes: no session begins or is refreshed */
#define NAT_QUERY 0x2u /* the packet is an ICMP query */

/*
 * A packet, and what is found. Addresses and ports are in host order. It is in memory that the includer provides, because the
 * stack is small; the caller sets the first part except what is the answer.
 */
struct nat_packet {
	struct nat_pool pool; /* of the VPC */
	__u32 vni;
	__u32 inside;  /* nat_in(): answer */
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
	__u32 flags;	/* NAT_PEEK, NAT_QUERY */
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
	__u32 blocks;	  /* of the inside address */
	__u32 sessions;	  /* of the inside address */
	__u32 claiming;	  /* not 0: another packet claims a block for it */
	__u32 cell[2];	  /* in each block, the cells that may have the inside port */
	__u32 preferred;  /* the word that it takes if it is free */
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
	__u64 key[3] = { packet->vni, 0, packet->inside };

	return session_hash(sessions, key, 3);
}

/*
 * Chooses the public address with the highest weight, a hash of it and of the inside address. So a change of the pool moves only
 * the inside addresses that have or get the address, and all gateways with the same secrets choose the same. 0: the pool is empty.
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
		__u64 weight = exact_mix(hash, group ? READ_ONCE(group->outside) : 0);

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
}

/* What nat_blocks_by_state() finds out about the blocks of a group: a bit for each, from these on. */
#define NAT_IS_FREE 0
#define NAT_IS_CLAIMED 16 /* for the inside address */
#define NAT_IS_OPEN 32	  /* owned by the inside address, if the tag is right */
#define NAT_IS_OWNED 48	  /* the same, or closing */

static __always_inline __u64 nat_blocks_by_state(const struct nat_group *group, __u32 tag)
{
	__u64 blocks = 0;

	NAT_ROLLED
	for (int i = 0; i < NAT_GROUP_BLOCKS; i++) {
		__u64 word = READ_ONCE(group->word[i]);
		__u64 state = word & NAT_STATE_MASK, other = word >> NAT_TAG_SHIFT ^ tag;
		__u64 is = nat_is_zero(state ^ NAT_FREE) << NAT_IS_FREE;

		is |= nat_is_zero(other | (state ^ NAT_CLAIMED)) << NAT_IS_CLAIMED;
		is |= nat_is_zero(other | (state ^ NAT_OWNED)) << NAT_IS_OPEN;
		is |= nat_is_zero(other | (state >> 1 ^ NAT_OWNED >> 1)) << NAT_IS_OWNED;
		blocks |= is << i;
	}
	return blocks;
}

/* Number of blocks of a set. */
static __always_inline __u32 nat_count(__u32 blocks)
{
	blocks -= blocks >> 1 & 0x5555;
	blocks = (blocks & 0x3333) + (blocks >> 2 & 0x3333);
	blocks = (blocks + (blocks >> 4)) & 0x0f0f;
	return (blocks + (blocks >> 8)) & 0x1f;
}

/* Finds the blocks of the inside address in one of its groups. */
NAT_FUNCTION int nat_look_at_group(struct nat_packet *packet, __u32 which)
{
	struct nat_group *group;
	__u32 owned = 0;
	__u64 blocks;

	if (!packet)
		return 0;
	which &= 1;
	group = nat_group_at(packet->group[which]);
	if (!group)
		return 0;
	blocks = nat_blocks_by_state(group, packet->tag);
	NAT_ROLLED
	for (int i = 0; i < NAT_GROUP_BLOCKS; i++) {
		struct nat_block *block = &group->block[i];

		if (!(blocks >> (NAT_IS_OWNED + i) & 1) || READ_ONCE(block->vni) != packet->vni ||
		    READ_ONCE(block->inside[1]) != packet->inside)
			continue;
		owned |= 1u << i;
		packet->sessions += READ_ONCE(block->begun) - READ_ONCE(block->ended);
	}
	packet->owned[which] = owned;
	packet->open[which] = blocks >> NAT_IS_OPEN & owned;
	packet->closing[which] = owned & ~packet->open[which];
	packet->free[which] = blocks >> NAT_IS_FREE & 0xffff;
	packet->blocks += nat_count(owned);
	packet->claiming |= blocks >> NAT_IS_CLAIMED & 0xffff;
	return 0;
}

/* Finds all blocks of the inside address at this public address. */
static __always_inline void nat_look(struct nat_packet *packet)
{
	packet->blocks = packet->sessions = packet->claiming = 0;
	packet->owned[1] = packet->open[1] = packet->closing[1] = packet->free[1] = 0;
	nat_look_at_group(packet, 0);
	if (packet->group[1] != packet->group[0])
		nat_look_at_group(packet, 1);
}

/*
 * Searches the inside port in a cell, except in the word of number `skip`. Returns the number of its word, or NAT_NONE.
 */
NAT_FUNCTION __u32 nat_search_cell(__u32 first, __u32 inside_port, __u32 skip)
{
	struct nat_ports *cell = nat_ports_at(first / NAT_CELL_PORTS);

	if (!cell)
		return NAT_NONE;
	NAT_ROLLED
	for (int i = 0; i < NAT_CELL_PORTS; i++) {
		__u32 word = READ_ONCE(cell->word[i]), stamp = word >> NAT_STAMP_SHIFT;

		if (stamp && (word & 0xffff) == inside_port && first + i != skip)
			return first + i + (stamp >= NAT_TENTATIVE ? NAT_UNSETTLED : 0);
	}
	return NAT_NONE;
}

/*
 * Searches the mapping of the inside port in all blocks of the inside address, except the word of number `skip`. Returns the
 * number of its outside port, plus NAT_UNSETTLED if another packet is about to claim it, or NAT_NONE.
 */
NAT_FUNCTION __u32 nat_search(struct nat_packet *packet, __u32 skip)
{
	if (!packet)
		return NAT_NONE;
	for (__u32 i = 0; i < 2 * NAT_GROUP_BLOCKS; i++) {
		__u32 which = i / NAT_GROUP_BLOCKS, block = i % NAT_GROUP_BLOCKS, first, found;

		if (!(packet->owned[which] >> block & 1))
			continue;
		first = nat_first_port(packet, packet->group[which], block);
		found = nat_search_cell(first + packet->cell[0] * NAT_CELL_PORTS, packet->inside_port, skip);
		if (found == NAT_NONE)
			found = nat_search_cell(first + packet->cell[1] * NAT_CELL_PORTS, packet->inside_port,
						skip);
		if (found != NAT_NONE)
			return found;
	}
	return NAT_NONE;
}

/* Replaces a free word of a cell by a tentative one. Returns its number, or NAT_NONE. */
NAT_FUNCTION __u32 nat_claim_in_cell(__u32 first, __u32 tentative, __u32 preferred)
{
	struct nat_ports *cell = nat_ports_at(first / NAT_CELL_PORTS);

	if (!cell)
		return NAT_NONE;
	for (__u32 i = 0; i < NAT_CELL_PORTS; i++) {
		__u32 slot = (preferred + i) % NAT_CELL_PORTS;
		__u32 *word = &cell->word[slot];

		if (!READ_ONCE(*word) && !CAS(word, 0, tentative))
			return first + slot;
	}
	return NAT_NONE;
}

/* Claims a port of the inside address's blocks, without settling it. Returns its number, or NAT_NONE. */
NAT_FUNCTION __u32 nat_claim_port(struct nat_packet *packet)
{
	struct nat_config *nat = nat_config_at();

	if (!packet || !nat)
		return NAT_NONE;
	packet->mine = (NAT_TENTATIVE | (READ_ONCE(nat->round) & 1)) << NAT_STAMP_SHIFT | packet->inside_port;
	for (__u32 i = 0; i < 2 * NAT_GROUP_BLOCKS; i++) {
		__u32 which = i / NAT_GROUP_BLOCKS, block = i % NAT_GROUP_BLOCKS, first, claimed;

		if (!(packet->open[which] >> block & 1))
			continue;
		first = nat_first_port(packet, packet->group[which], block);
		claimed = nat_claim_in_cell(first + packet->cell[0] * NAT_CELL_PORTS, packet->mine,
					    packet->preferred);
		if (claimed == NAT_NONE)
			claimed = nat_claim_in_cell(first + packet->cell[1] * NAT_CELL_PORTS, packet->mine,
						    packet->preferred);
		if (claimed != NAT_NONE)
			return claimed;
	}
	return NAT_NONE;
}

/* Stamps the mapping of the inside port as in use. 0: it is not, or not any more, the mapping of this port. */
NAT_FUNCTION int nat_stamp(__u32 number, __u32 inside_port)
{
	struct nat_ports *cell = nat_ports_at(number / NAT_CELL_PORTS);
	struct nat_config *nat = nat_config_at();
	__u32 stamped, seen, stamp, found, *word;

	if (!cell || !nat)
		return 0;
	word = &cell->word[number % NAT_CELL_PORTS];
	seen = READ_ONCE(*word);
	stamp = seen >> NAT_STAMP_SHIFT;
	if (!stamp || stamp >= NAT_TENTATIVE || ((seen ^ inside_port) & 0xffff))
		return 0;
	/* After the word, which may have a stamp of a later round than that in which the packet came. */
	stamped = READ_ONCE(nat->round) << NAT_STAMP_SHIFT | (inside_port & 0xffff);
	if (seen == stamped)
		return 1;
	found = CAS(word, seen, stamped);
	return found == seen || found == stamped;
}

/* Changes the word that this packet has claimed: it is settled, or given back. 0: it was freed before. */
NAT_FUNCTION int nat_finish_claim(struct nat_packet *packet, __u32 number, int settles)
{
	struct nat_ports *cell = nat_ports_at(number / NAT_CELL_PORTS);
	struct nat_config *nat = nat_config_at();
	__u32 *word, to = 0;

	if (!packet || !cell || !nat)
		return 0;
	word = &cell->word[number % NAT_CELL_PORTS];
	if (settles)
		to = READ_ONCE(nat->round) << NAT_STAMP_SHIFT | packet->inside_port;
	return CAS(word, packet->mine, to) == packet->mine;
}

/*
 * Settles a port that was claimed. Returns the number of the port that the inside port is mapped to now: the claimed one, or
 * that of another packet, which was faster. NAT_NONE: the claimed port was given back, and the packet searches again.
 */
NAT_FUNCTION __u32 nat_settle(struct nat_packet *packet, __u32 mine)
{
	__u32 other = NAT_NONE;

	if (!packet)
		return NAT_NONE;
	for (int i = 0; i < NAT_ATTEMPTS; i++) {
		/* The other packet may have claimed a block as well. */
		nat_look(packet);
		other = nat_search(packet, mine);
		if (other == NAT_NONE)
			return nat_finish_claim(packet, mine, 1) ? mine : NAT_NONE;
		/* One of both waits, always the same one. */
		if (!(other & NAT_UNSETTLED) || (other & ~NAT_UNSETTLED) < mine)
			break;
	}
	nat_finish_claim(packet, mine, 0);
	if (!(other & NAT_UNSETTLED) && nat_stamp(other, packet->inside_port))
		return other;
	return NAT_NONE;
}

/* Claims a block of a group for the inside address. If another packet was faster, nothing happens. */
static __always_inline void nat_claim_in_group(struct nat_packet *packet, struct nat_group *group, __u32 free)
{
	for (__u32 i = 0; i < NAT_GROUP_BLOCKS; i++) {
		__u32 slot = (packet->tag + i) % NAT_GROUP_BLOCKS;
		struct nat_block *block = &group->block[slot];
		__u64 *word = &group->word[slot];
		__u64 seen, claimed;

		if (!(free >> slot & 1))
			continue;
		seen = READ_ONCE(*word);
		claimed = seen | NAT_CLAIMED | (__u64)packet->tag << NAT_TAG_SHIFT;
		if ((seen & NAT_STATE_MASK) != NAT_FREE || CAS(word, seen, claimed) != seen)
			return;
		WRITE_ONCE(block->vni, packet->vni);
		WRITE_ONCE(block->claimed_at, packet->now);
		WRITE_ONCE(block->begun, 0);
		WRITE_ONCE(block->ended, 0);
		WRITE_ONCE(block->inside[0], 0);
		WRITE_ONCE(block->inside[1], packet->inside);
		WRITE_ONCE(block->logged, 0);
		CAS(word, claimed, claimed ^ NAT_CLAIMED ^ NAT_OWNED);
		return;
	}
}

/* Opens one of these closing blocks of a group again. If the agent has closed it meanwhile, nothing happens. */
static __always_inline void nat_open_again(struct nat_group *group, __u32 closing)
{
	NAT_ROLLED
	for (int i = 0; i < NAT_GROUP_BLOCKS; i++) {
		__u64 seen;

		if (!(closing >> i & 1))
			continue;
		seen = READ_ONCE(group->word[i]);
		if ((seen & NAT_STATE_MASK) == NAT_CLOSING)
			CAS(&group->word[i], seen, seen ^ NAT_CLOSING ^ NAT_OWNED);
		return;
	}
}

/*
 * Opens a closing block of the inside address again, or claims one for it, in the emptier of its groups. NAT_AGAIN, or why not.
 */
NAT_FUNCTION int nat_claim_block(struct nat_packet *packet)
{
	struct nat_group *group;
	__u32 which;

	if (!packet)
		return NAT_EXHAUSTED;
	/* What another packet is claiming is enough for both. */
	if (packet->claiming)
		return NAT_AGAIN;
	if (packet->closing[0] | packet->closing[1]) {
		which = !packet->closing[0];
		group = nat_group_at(packet->group[which]);
		if (group)
			nat_open_again(group, packet->closing[which]);
		return NAT_AGAIN;
	}
	if (packet->blocks >= packet->pool.blocks_limit)
		return NAT_BLOCKS;
	which = nat_count(packet->free[1]) > nat_count(packet->free[0]);
	group = nat_group_at(packet->group[which]);
	if (!group || !packet->free[which])
		return NAT_EXHAUSTED;
	nat_claim_in_group(packet, group, packet->free[which]);
	return NAT_AGAIN;
}

/* The group that has what concerns a whole public address. */
static __always_inline struct nat_group *nat_first_group(const struct nat_packet *packet)
{
	return nat_group_at(packet->address << nat_group_shift(packet->shift));
}

/* Sets the outside endpoint of a port's number. */
static __always_inline void nat_set_outside(struct nat_packet *packet, __u32 number)
{
	struct nat_group *group;

	packet->outside_port = number % NAT_PORTS;
	packet->address = number / NAT_PORTS / NAT_CLASSES;
	group = nat_first_group(packet);
	if (group)
		packet->outside = READ_ONCE(group->outside);
}

/* Number of sessions at all addresses of the pool. */
static __always_inline __u32 nat_vpc_sessions(const struct nat_packet *packet)
{
	__u32 sessions = 0;

	NAT_ROLLED
	for (__u32 i = 0; i < NAT_POOL_ADDRESSES_MAX && i < packet->pool.addresses; i++) {
		__u32 first = packet->pool.address[i] << nat_group_shift(packet->shift);
		struct nat_group *group = nat_group_at(first);

		if (group)
			sessions += READ_ONCE(group->begun) - READ_ONCE(group->ended);
	}
	return sessions;
}

/*
 * Whether another session may begin, as far as is known: NAT_TRANSLATED, or which limit does not permit it. Remote endpoints
 * (`of_remote` 1) leave half of each limit to VMs.
 */
NAT_FUNCTION int nat_check_limits(struct nat_packet *packet, __u32 of_remote)
{
	struct nat_config *nat = nat_config_at();
	__u32 of_vpc;

	if (!packet || !nat || (__s32)(packet->now - READ_ONCE(nat->round_at)) > NAT_ROUND_AGE_MAX)
		return NAT_TRANSLATED;
	of_remote &= 1;
	if (packet->sessions >= packet->pool.sessions_limit >> of_remote)
		return NAT_SESSIONS;
	of_vpc = READ_ONCE(nat->vpc_sessions);
	if (of_vpc && nat_vpc_sessions(packet) >= of_vpc >> of_remote)
		return NAT_VPC_SESSIONS;
	return NAT_TRANSLATED;
}

/* Finds the mapping of the inside endpoint, or makes one. NAT_AGAIN: another packet was faster, or a block was claimed. */
NAT_FUNCTION int nat_try_to_map(struct nat_packet *packet)
{
	__u32 number;
	int limit;

	if (!packet)
		return NAT_EXHAUSTED;
	nat_look(packet);
	limit = nat_check_limits(packet, 0);
	if (limit != NAT_TRANSLATED)
		return limit;
	number = nat_search(packet, NAT_NONE);
	if (number == NAT_NONE) {
		number = nat_claim_port(packet);
		if (number == NAT_NONE)
			return nat_claim_block(packet);
		number = nat_settle(packet, number);
		if (number == NAT_NONE)
			return NAT_AGAIN;
	} else if (number & NAT_UNSETTLED || !nat_stamp(number, packet->inside_port)) {
		return NAT_AGAIN;
	}
	nat_set_outside(packet, number);
	return NAT_TRANSLATED;
}

/* Finds the mapping of the inside endpoint, or makes one. NAT_TRANSLATED, or why not. */
NAT_FUNCTION int nat_map(struct nat_packet *packet)
{
	struct session_config *sessions = session_config_at();
	struct nat_config *nat = nat_config_at();

	if (!packet || !sessions || !nat || !nat_choose_address(packet))
		return NAT_EXHAUSTED;
	nat_place(sessions, nat, packet);
	for (int i = 0; i < NAT_ATTEMPTS; i++) {
		int answer = nat_try_to_map(packet);

		if (answer != NAT_AGAIN)
			return answer;
	}
	return NAT_BUSY;
}

/* The block of the packet's outside port. */
static __always_inline struct nat_group *nat_block_of(const struct nat_packet *packet, __u32 *slot)
{
	__u32 block = packet->outside_port >> (packet->shift & 15);

	*slot = block % NAT_GROUP_BLOCKS;
	return nat_group_at((packet->address << nat_group_shift(packet->shift)) + block / NAT_GROUP_BLOCKS);
}

/* Finds the inside endpoint to which the outside endpoint is mapped. 0: the port is free, or has one of another VPC. */
NAT_FUNCTION int nat_find_inside(struct nat_packet *packet)
{
	struct nat_ports *cell;
	struct nat_group *group;
	__u32 slot, number, word, stamp;
	struct nat_block *block;

	if (!packet)
		return 0;
	group = nat_block_of(packet, &slot);
	if (!group || (READ_ONCE(group->word[slot]) & NAT_STATE_MASK) >> 1 != NAT_OWNED >> 1)
		return 0;
	block = &group->block[slot];
	number = nat_port_base(packet, packet->address) + packet->outside_port;
	cell = nat_ports_at(number / NAT_CELL_PORTS);
	if (!cell)
		return 0;
	word = READ_ONCE(cell->word[number % NAT_CELL_PORTS]);
	stamp = word >> NAT_STAMP_SHIFT;
	if (!stamp || stamp >= NAT_TENTATIVE)
		return 0;
	if (READ_ONCE(block->vni) != packet->vni)
		return 0;
	packet->inside = READ_ONCE(block->inside[1]);
	packet->inside_port = word;
	packet->outside = READ_ONCE(group->outside);
	return 1;
}

/* Prepares the search of the packet's session. */
NAT_FUNCTION int nat_query(struct nat_packet *packet, int is_outgoing)
{
	const struct session_config *sessions = session_config_at();
	struct session_query *query;

	if (!packet || !sessions)
		return 0;
	query = &packet->query;
	if (is_outgoing)
		session_query4(sessions, packet->vni, packet->protocol, packet->inside, packet->remote,
			       packet->inside_port, packet->remote_port, query);
	else
		session_query4(sessions, packet->vni, packet->protocol, packet->remote, packet->inside,
			       packet->remote_port, packet->inside_port, query);
	query->tcp_flags = packet->tcp_flags;
	query->bytes = packet->bytes;
	query->identity = 0;
	return 0;
}

/* The second word of a session's action, without NAT_OF_REMOTE. */
static __always_inline __u32 nat_action(const struct nat_packet *packet)
{
	return packet->address << NAT_ADDRESS_SHIFT | packet->outside_port;
}

/* Sets the outside endpoint to that of a session. */
static __always_inline void nat_set_translation(struct nat_packet *packet, const struct session_data *data)
{
	__u32 action = READ_ONCE(data->action[1]);

	packet->outside = READ_ONCE(data->action[0]);
	packet->address = action >> NAT_ADDRESS_SHIFT & NAT_ADDRESS_MASK;
	packet->outside_port = action;
}

/* Counts the packet of a session that was found. NAT_MISS: the session has ended. */
NAT_FUNCTION int nat_touch(struct nat_packet *packet)
{
	struct session_config *sessions = session_config_at();

	if (!packet || !sessions)
		return NAT_MISS;
	if (!(packet->flags & NAT_PEEK) &&
	    session_touch(4, sessions, &packet->query, &packet->hit, packet->now) == SESSION_GONE)
		return NAT_MISS;
	return NAT_TRANSLATED;
}

/* Begins a session with this packet. Its port is stamped. */
NAT_FUNCTION int nat_begin(struct nat_packet *packet, __u32 of_remote)
{
	const struct session_data *data;
	struct nat_group *group, *first;
	enum session_answer answer;
	__u32 slot;

	if (!packet)
		return NAT_FULL;
	answer = create_session4(&packet->query, packet->outside, nat_action(packet) | of_remote, packet->now,
				 &packet->hit);
	group = nat_block_of(packet, &slot);
	first = nat_first_group(packet);
	if (packet->hit.published && group && first) {
		ADD(&group->block[slot].begun, 1);
		ADD(&first->begun, 1);
	}
	if (answer == SESSION_CREATED)
		return NAT_BEGUN;
	if (answer != SESSION_HIT)
		return answer == SESSION_BUSY ? NAT_BUSY : NAT_FULL;
	/* Another packet of the session was faster. */
	data = session_data_at(4, &packet->hit);
	if (!data)
		return NAT_FULL;
	nat_set_translation(packet, data);
	return nat_touch(packet) == NAT_TRANSLATED ? NAT_TRANSLATED : NAT_BUSY;
}

/* Whether the packet may begin a session. */
static __always_inline int nat_begins(const struct nat_packet *packet)
{
	if (packet->flags & NAT_PEEK)
		return 0;
	if (packet->class == NAT_TCP)
		return (packet->tcp_flags & (SESSION_TCP_SYN | SESSION_TCP_ACK | SESSION_TCP_RST)) ==
		       SESSION_TCP_SYN;
	return packet->class == NAT_UDP || packet->flags & NAT_QUERY;
}

/*
 * A packet of a VM, from the inside endpoint to the remote endpoint. NAT_TRANSLATED and NAT_BEGUN: it leaves from the outside
 * endpoint.
 */
static __always_inline enum nat_answer nat_out(struct nat_packet *packet)
{
	const struct session_data *data;
	int answer;

	if (!nat_prepare(packet))
		return NAT_PROTOCOL;
	nat_query(packet, 1);
	if (find_session4(&packet->query, packet->now, &packet->hit) == SESSION_HIT &&
	    nat_touch(packet) == NAT_TRANSLATED) {
		data = session_data_at(4, &packet->hit);
		if (!data)
			return NAT_FULL;
		nat_set_translation(packet, data);
		return NAT_TRANSLATED;
	}
	if (!nat_begins(packet))
		return NAT_NO_SESSION;
	answer = nat_map(packet);
	return answer == NAT_TRANSLATED ? nat_begin(packet, 0) : answer;
}

/* Begins a session with a packet from the Internet that has none, if that is permitted. */
static __always_inline enum nat_answer nat_begin_in(struct nat_packet *packet)
{
	struct session_config *sessions = session_config_at();
	struct nat_config *nat = nat_config_at();
	__u32 action = nat_action(packet);
	enum nat_answer answer;

	/* Queries of the Internet have their own identifiers, which are not mapped. */
	if (!sessions || !nat || !(packet->pool.flags & NAT_ANY_REMOTE) || packet->class == NAT_ICMP ||
	    !nat_begins(packet))
		return NAT_MISS;
	nat_place(sessions, nat, packet);
	nat_look(packet);
	answer = nat_check_limits(packet, 1);
	if (answer != NAT_TRANSLATED)
		return answer;
	if (!nat_stamp(nat_port_base(packet, packet->address) + packet->outside_port, packet->inside_port))
		return NAT_BUSY;
	answer = nat_begin(packet, NAT_OF_REMOTE);
	/* Another packet's session may have another outside endpoint. */
	return nat_action(packet) == action ? answer : NAT_MISS;
}

/*
 * A packet from the Internet, from the remote endpoint to the outside endpoint. NAT_TRANSLATED and NAT_BEGUN: it goes to the
 * inside endpoint.
 */
static __always_inline enum nat_answer nat_in(struct nat_packet *packet)
{
	const struct session_data *data;

	if (!nat_prepare(packet))
		return NAT_PROTOCOL;
	if (!nat_find_inside(packet))
		return NAT_MISS;
	nat_query(packet, 0);
	if (find_session4(&packet->query, packet->now, &packet->hit) == SESSION_HIT) {
		data = session_data_at(4, &packet->hit);
		/* The port may have another inside endpoint than when the session began. */
		if (!data || (READ_ONCE(data->action[1]) & ~NAT_OF_REMOTE) != nat_action(packet))
			return NAT_MISS;
		if (nat_touch(packet) == NAT_TRANSLATED)
			return NAT_TRANSLATED;
	}
	return nat_begin_in(packet);
}

#endif
