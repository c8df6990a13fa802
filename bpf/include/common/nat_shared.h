/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Source NAT with sessions: endpoint-dependent mapping, by which an outside port serves several inside ports of an inside address to
 * different remote endpoints. Part of nat.h, which has the contract; nat_layout.h explains tuple words.
 */
#ifndef SLUICE_NAT_SHARED_H
#define SLUICE_NAT_SHARED_H

#include "common/nat_map.h"

/* Ports that a packet tries at most, of all blocks, and of each. Each port costs two or three cache lines. */
#define NAT_TRIES 256
#define NAT_BLOCK_TRIES 64

/* Sets the candidate buckets and the tag of the tuple of the packet's outside and remote endpoint. */
NAT_FUNCTION int nat_place_tuple(struct nat_packet *packet)
{
	const struct session_config *sessions = session_config_at();
	struct session_query place;
	__u64 key[2], hash;

	if (!packet || !sessions)
		return 0;
	key[0] = session_who(packet->address, packet->protocol, packet->outside_port, packet->remote_port);
	key[1] = packet->remote;
	hash = session_hash(sessions, key, 2);
	session_place(&place, hash, READ_ONCE(sessions->buckets4));
	packet->tuple[0] = place.one;
	packet->tuple[1] = place.two;
	packet->tuple_tag = (hash * 0xa0761d6478bd642full) >> 32;
	return 0;
}

/* Searches a tuple word with this tag in a bucket, except that of number `skip`. Returns its number, or NAT_NONE. */
NAT_FUNCTION __u32 nat_search_tuples(__u32 bucket, __u32 tag, __u32 skip)
{
	struct nat_tuples *tuples = nat_tuples_at(bucket);

	if (!tuples)
		return NAT_NONE;
	NAT_ROLLED
	for (__u32 i = 0; i < NAT_TUPLE_WORDS; i++) {
		__u64 word = READ_ONCE(tuples->word[i]);
		__u32 number = bucket * NAT_TUPLE_WORDS + i;

		if (word && word >> NAT_TUPLE_TAG_SHIFT == tag && number != skip)
			return number;
	}
	return NAT_NONE;
}

/* Searches the word of the packet's tuple. Returns its number, or NAT_NONE. */
static __always_inline __u32 nat_find_tuple(const struct nat_packet *packet, __u32 skip)
{
	__u32 found = nat_search_tuples(packet->tuple[0], packet->tuple_tag, skip);

	return found == NAT_NONE ? nat_search_tuples(packet->tuple[1], packet->tuple_tag, skip) : found;
}

static __always_inline __u64 *nat_tuple_at(__u32 number)
{
	struct nat_tuples *tuples = nat_tuples_at(number / NAT_TUPLE_WORDS);

	return tuples ? &tuples->word[number % NAT_TUPLE_WORDS] : (__u64 *)0;
}

/* The low half of the word of the packet's tuple; 0: the tuple has no word. */
NAT_FUNCTION __u32 nat_read_tuple(struct nat_packet *packet)
{
	__u32 number;
	__u64 *at;

	if (!packet)
		return 0;
	nat_place_tuple(packet);
	number = nat_find_tuple(packet, NAT_NONE);
	at = number == NAT_NONE ? (__u64 *)0 : nat_tuple_at(number);
	if (at) {
		__u64 word = READ_ONCE(*at);

		if (word >> NAT_TUPLE_TAG_SHIFT == packet->tuple_tag)
			return word;
	}
	return 0;
}

/* Number of the free words of a bucket. */
NAT_FUNCTION __u32 nat_free_tuples(__u32 bucket)
{
	struct nat_tuples *tuples = nat_tuples_at(bucket);
	__u32 free = 0;

	if (!tuples)
		return 0;
	NAT_ROLLED
	for (int i = 0; i < NAT_TUPLE_WORDS; i++)
		free += nat_is_zero(READ_ONCE(tuples->word[i]));
	return free;
}

/* Replaces a free word of a bucket. Returns its number, or NAT_NONE. */
NAT_FUNCTION __u32 nat_claim_in_tuples(__u32 bucket, __u64 mine)
{
	struct nat_tuples *tuples = nat_tuples_at(bucket);

	if (!tuples)
		return NAT_NONE;
	for (__u32 i = 0; i < NAT_TUPLE_WORDS; i++) {
		__u64 *word = &tuples->word[i];

		if (!READ_ONCE(*word) && !CAS(word, 0, mine))
			return bucket * NAT_TUPLE_WORDS + i;
	}
	return NAT_NONE;
}

/* Settles the tuple word that this packet has claimed, or gives it back. Nothing happens if the agent has stamped it. */
NAT_FUNCTION int nat_finish_tuple(struct nat_packet *packet, int settles)
{
	struct nat_config *nat = nat_config_at();
	__u64 to = 0, *at;

	if (!packet || !nat)
		return 0;
	at = nat_tuple_at(packet->tuple_at);
	if (settles)
		to = (__u64)packet->tuple_tag << NAT_TUPLE_TAG_SHIFT |
		     READ_ONCE(nat->round) << NAT_STAMP_SHIFT | packet->inside_port;
	if (at)
		CAS(at, packet->tuple_mine, to);
	return 0;
}

/*
 * Claims the packet's tuple, of which no word was found, without settling it. NAT_TRANSLATED: nothing else has it. NAT_AGAIN: another
 * packet claims it. NAT_FULL: its buckets have no free word.
 */
static __always_inline int nat_claim_tuple(struct nat_packet *packet, struct nat_config *nat)
{
	__u32 second, number;

	packet->tuple_mine = (__u64)packet->tuple_tag << NAT_TUPLE_TAG_SHIFT |
			     (NAT_TENTATIVE | (READ_ONCE(nat->round) & 1)) << NAT_STAMP_SHIFT |
			     packet->inside_port;
	second = nat_free_tuples(packet->tuple[1]) > nat_free_tuples(packet->tuple[0]);
	number = nat_claim_in_tuples(packet->tuple[second & 1], packet->tuple_mine);
	if (number == NAT_NONE)
		return NAT_FULL;
	packet->tuple_at = number;
	packet->claimed = nat_find_tuple(packet, number) == NAT_NONE;
	if (packet->claimed)
		return NAT_TRANSLATED;
	nat_finish_tuple(packet, 0);
	return NAT_AGAIN;
}

/*
 * Takes the tuple of the packet's outside and remote endpoint for its inside port. NAT_TRANSLATED: it has it, by a word that was stamped,
 * or that the packet has claimed and must finish (`claimed`). NAT_AGAIN: another packet of these endpoints claims it, or one was faster.
 * NAT_BUSY: another inside port is about to claim it. NAT_TAKEN: another one has it. NAT_FULL: as above.
 */
NAT_FUNCTION int nat_take_tuple(struct nat_packet *packet)
{
	struct nat_config *nat = nat_config_at();
	__u64 seen, stamped, *at;
	__u32 number, is_other;

	if (!packet || !nat)
		return NAT_TAKEN;
	packet->claimed = 0;
	nat_place_tuple(packet);
	number = nat_find_tuple(packet, NAT_NONE);
	if (number == NAT_NONE)
		return nat_claim_tuple(packet, nat);
	at = nat_tuple_at(number);
	if (!at)
		return NAT_TAKEN;
	seen = READ_ONCE(*at);
	if (!seen || seen >> NAT_TUPLE_TAG_SHIFT != packet->tuple_tag)
		return NAT_AGAIN;
	is_other = (seen ^ packet->inside_port) & 0xffff;
	if (nat_stamp_of(seen) >= NAT_TENTATIVE)
		return is_other ? NAT_BUSY : NAT_AGAIN;
	if (is_other)
		return NAT_TAKEN;
	/* After the word, as in nat_stamp(). */
	stamped = (seen & ~0xffff0000ull) | READ_ONCE(nat->round) << NAT_STAMP_SHIFT;
	return seen == stamped || CAS(at, seen, stamped) == seen ? NAT_TRANSLATED : NAT_AGAIN;
}

/*
 * Makes a port that is free map this (NAT_MAPPED), or stamps it. NAT_TRANSLATED: it does. NAT_TAKEN: it maps something else. NAT_AGAIN:
 * another packet was faster, or is about to claim it.
 */
NAT_FUNCTION int nat_take_port(__u32 number, __u32 mapped)
{
	struct nat_ports *cell = nat_ports_at(number / NAT_CELL_PORTS);
	struct nat_config *nat = nat_config_at();
	__u32 seen, stamped, *word;

	if (!cell || !nat)
		return NAT_TAKEN;
	word = &cell->word[number % NAT_CELL_PORTS];
	seen = READ_ONCE(*word);
	if (!seen) {
		/* After the word, as in nat_stamp(). */
		stamped = READ_ONCE(nat->round) << NAT_STAMP_SHIFT | (mapped & NAT_MAPPED);
		return CAS(word, 0, stamped) ? NAT_AGAIN : NAT_TRANSLATED;
	}
	/* The packet that claims the port settles it soon, or gives it back. */
	if (nat_stamp_of(seen) >= NAT_TENTATIVE)
		return NAT_AGAIN;
	if ((seen ^ mapped) & NAT_MAPPED)
		return NAT_TAKEN;
	return nat_stamp(number, mapped) ? NAT_TRANSLATED : NAT_AGAIN;
}

/* Takes the tuple of this outside port, as nat_take_tuple(), if the port is free or shared. */
static __always_inline int nat_try_port(struct nat_packet *packet, __u32 number)
{
	struct nat_ports *cell = nat_ports_at(number / NAT_CELL_PORTS);
	__u32 word;

	if (!cell)
		return NAT_TAKEN;
	word = READ_ONCE(cell->word[number % NAT_CELL_PORTS]);
	if (word && !(word & NAT_SHARED))
		return NAT_TAKEN;
	packet->outside_port = number;
	if (nat_take_port(number, NAT_SHARED) != NAT_TRANSLATED)
		return NAT_AGAIN;
	return nat_take_tuple(packet);
}

/* Takes the tuple of a port of a block. NAT_TRANSLATED; NAT_AGAIN; or NAT_TAKEN: of none. */
NAT_FUNCTION int nat_share_in_block(struct nat_packet *packet, __u32 first)
{
	if (!packet)
		return NAT_TAKEN;
	for (__u32 i = 0; i < NAT_BLOCK_TRIES && i < packet->tries; i++) {
		__u32 port = (packet->spread + i) & ((1u << (packet->shift & 15)) - 1);
		int answer = nat_try_port(packet, first + port);

		if (answer == NAT_TRANSLATED || answer == NAT_AGAIN)
			return answer;
		if (answer == NAT_FULL)
			packet->full = 1;
	}
	return NAT_TAKEN;
}

/*
 * Finds a port of which the inside endpoint can have the tuple with the remote endpoint, and takes that. An inside port begins its
 * search at the same port for all remote endpoints, so it mostly has one, and two packets of a session try the same ports: the second
 * one waits for the first one. NAT_AGAIN: it waits, or a block was claimed.
 */
NAT_FUNCTION int nat_try_to_share(struct nat_packet *packet)
{
	struct nat_group *group;
	__u32 blocks;
	int answer;

	if (!packet)
		return NAT_EXHAUSTED;
	nat_look(packet);
	answer = nat_check_limits(packet, 0);
	group = nat_first_group(packet);
	if (answer != NAT_TRANSLATED || !group)
		return answer;
	packet->outside = READ_ONCE(group->outside);
	blocks = nat_count(packet->open[0]) + nat_count(packet->open[1]);
	packet->tries = blocks <= NAT_TRIES / NAT_BLOCK_TRIES ? NAT_BLOCK_TRIES : NAT_TRIES / blocks;
	packet->full = 0;
	for (__u32 i = 0; i < 2 * NAT_GROUP_BLOCKS; i++) {
		__u32 at = i + (packet->spread >> 16), which = at / NAT_GROUP_BLOCKS & 1;
		__u32 block = at % NAT_GROUP_BLOCKS;

		if (!(packet->open[which] >> block & 1))
			continue;
		answer = nat_share_in_block(packet, nat_first_port(packet, packet->group[which], block));
		if (answer != NAT_TAKEN)
			return answer;
	}
	return packet->full ? NAT_FULL : nat_claim_block(packet);
}

#endif
