/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Source NAT with sessions: blocks and ports of an inside address, and the mapping of an inside endpoint. Part of nat.h, which has
 * the contract.
 */
#ifndef SLUICE_NAT_MAP_H
#define SLUICE_NAT_MAP_H

#include "common/nat_packet.h"

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
	__u32 owned = 0, share;
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
		    READ_ONCE(block->inside[0]) != packet->inside[0] ||
		    READ_ONCE(block->inside[1]) != packet->inside[1])
			continue;
		owned |= 1u << i;
		packet->sessions += READ_ONCE(block->begun) - READ_ONCE(block->ended);
	}
	packet->owned[which] = owned;
	/* Of the other blocks, it has what is mapped. */
	share = ~READ_ONCE(group->others) & 0xffff;
	owned &= share;
	packet->open[which] = blocks >> NAT_IS_OPEN & owned;
	packet->closing[which] = owned & ~packet->open[which];
	packet->free[which] = blocks >> NAT_IS_FREE & share;
	packet->blocks += nat_count(owned);
	packet->claiming |= blocks >> NAT_IS_CLAIMED & share;
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
		__u32 word = READ_ONCE(cell->word[i]), stamp = nat_stamp_of(word);

		if (stamp && (word & NAT_MAPPED) == inside_port && first + i != skip)
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

/* Stamps a port that maps this (NAT_MAPPED) as in use. 0: it does not, or not any more. */
NAT_FUNCTION int nat_stamp(__u32 number, __u32 mapped)
{
	struct nat_ports *cell = nat_ports_at(number / NAT_CELL_PORTS);
	struct nat_config *nat = nat_config_at();
	__u32 stamped, seen, stamp, found, *word;

	if (!cell || !nat)
		return 0;
	word = &cell->word[number % NAT_CELL_PORTS];
	seen = READ_ONCE(*word);
	stamp = nat_stamp_of(seen);
	if (!stamp || stamp >= NAT_TENTATIVE || (seen ^ mapped) & NAT_MAPPED)
		return 0;
	/* After the word, which may have a stamp of a later round than that in which the packet came. */
	stamped = READ_ONCE(nat->round) << NAT_STAMP_SHIFT | (mapped & NAT_MAPPED);
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

/* Claims a block that was free for the inside address. If another packet was faster, nothing happens. */
static __always_inline void nat_claim_free(struct nat_packet *packet, struct nat_group *group, __u32 slot)
{
	struct nat_block *block = &group->block[slot % NAT_GROUP_BLOCKS];
	__u64 *word = &group->word[slot % NAT_GROUP_BLOCKS];
	__u64 seen = READ_ONCE(*word);
	__u64 claimed = seen | NAT_CLAIMED | (__u64)packet->tag << NAT_TAG_SHIFT;

	if ((seen & NAT_STATE_MASK) != NAT_FREE || CAS(word, seen, claimed) != seen)
		return;
	WRITE_ONCE(block->vni, packet->vni);
	WRITE_ONCE(block->claimed_at, packet->now);
	WRITE_ONCE(block->begun, 0);
	WRITE_ONCE(block->ended, 0);
	WRITE_ONCE(block->inside[0], packet->inside[0]);
	WRITE_ONCE(block->inside[1], packet->inside[1]);
	WRITE_ONCE(block->logged, 0);
	CAS(word, claimed, claimed ^ NAT_CLAIMED ^ NAT_OWNED);
}

/* Claims one of the free blocks of a group for the inside address. If another packet was faster, nothing happens. */
static __always_inline void nat_claim_in_group(struct nat_packet *packet, struct nat_group *group, __u32 free)
{
	for (__u32 i = 0; i < NAT_GROUP_BLOCKS; i++) {
		__u32 slot = (packet->tag + i) % NAT_GROUP_BLOCKS;

		if (!(free >> slot & 1))
			continue;
		nat_claim_free(packet, group, slot);
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

/* Which of the counters by family concern the inside address. */
static __always_inline __u32 nat_family(const struct nat_packet *packet)
{
	return packet->vni >> NAT_INSIDE_IPV6_SHIFT & 1;
}

/* Number of sessions of the inside address's family at all addresses of the pool. */
static __always_inline __u32 nat_vpc_sessions(const struct nat_packet *packet)
{
	__u32 family = nat_family(packet), sessions = 0;

	NAT_ROLLED
	for (__u32 i = 0; i < NAT_POOL_ADDRESSES_MAX && i < packet->pool.addresses; i++) {
		__u32 first = packet->pool.address[i] << nat_group_shift(packet->shift);
		struct nat_group *group = nat_group_at(first);

		if (group)
			sessions += READ_ONCE(group->begun[family]) - READ_ONCE(group->ended[family]);
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
	of_vpc = READ_ONCE(nat->vpc_sessions[nat_family(packet)]);
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

#endif
