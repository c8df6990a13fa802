/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Source NAT with sessions, for packet programs: which outside endpoint a packet of a VM gets, and to which VM a packet from
 * the Internet goes. The layout and the argument why it is safe are in nat_layout.h. Outside and remote addresses are of IPv4; the
 * inside address is of IPv4, or with NAT_INSIDE_IPV6 beside the VNI of IPv6 (NAT64, RFC 6146).
 *
 * Contract: the includer provides what sessions.h demands, and
 *
 *   struct session_config *session_config_at(void);
 *   struct nat_config *nat_config_at(void);
 *   struct nat_group *nat_group_at(__u32 index);
 *   struct nat_ports *nat_ports_at(__u32 index);
 *   struct nat_tuples *nat_tuples_at(__u32 index);
 *
 * which return NULL if the index is out of bounds, and find_session4(), create_session4() and those of IPv6 as session_maps.h does. The calls
 * for a packet are nat_out(), nat_in(), their two parts, and nat_install() (nat_install.h); the caller fills `pool` from the struct nat_gateway of the VPC, and counts the
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

#include "common/nat_shared.h"

/* The session that was found, by `hit`. */
static __always_inline struct session_data *nat_session(const struct nat_packet *packet)
{
	return packet->vni & NAT_INSIDE_IPV6 ? session_data_at(6, &packet->hit)
					     : session_data_at(4, &packet->hit);
}

/* The bucket of the session that was found. */
static __always_inline __u64 *nat_bucket(const struct nat_packet *packet)
{
	return packet->vni & NAT_INSIDE_IPV6 ? session_bucket(6, packet->hit.bucket)
					     : session_bucket(4, packet->hit.bucket);
}

/* Finds the session that nat_query() has prepared. */
static __always_inline int nat_find_session(struct nat_packet *packet)
{
	return packet->vni & NAT_INSIDE_IPV6 ? find_session6(&packet->query, packet->now, &packet->hit)
					     : find_session4(&packet->query, packet->now, &packet->hit);
}

/*
 * Finds the inside address that has the block of the outside port, and the outside address. 0: the block has no owner, or one of another
 * VPC.
 */
NAT_FUNCTION int nat_find_owner(struct nat_packet *packet)
{
	struct nat_group *group;
	struct nat_block *block;
	__u32 slot, owner;

	if (!packet)
		return 0;
	group = nat_block_of(packet, &slot);
	if (!group || (READ_ONCE(group->word[slot]) & NAT_STATE_MASK) >> 1 != NAT_OWNED >> 1)
		return 0;
	block = &group->block[slot];
	owner = READ_ONCE(block->vni);
	if ((owner ^ packet->vni) & NAT_VNI_MASK)
		return 0;
	packet->vni = owner;
	packet->inside[0] = READ_ONCE(block->inside[0]);
	packet->inside[1] = READ_ONCE(block->inside[1]);
	packet->outside = READ_ONCE(group->outside);
	return 1;
}

/*
 * Finds the inside endpoint to which the outside endpoint is mapped, if the port is shared for this remote endpoint. 0: it is mapped
 * to none, or to one of another VPC.
 */
NAT_FUNCTION int nat_find_inside(struct nat_packet *packet)
{
	struct nat_ports *cell;
	__u32 number, word, stamp;

	if (!packet || !nat_find_owner(packet))
		return 0;
	number = nat_port_base(packet, packet->address) + packet->outside_port;
	cell = nat_ports_at(number / NAT_CELL_PORTS);
	if (!cell)
		return 0;
	word = READ_ONCE(cell->word[number % NAT_CELL_PORTS]);
	stamp = nat_stamp_of(word);
	if (!stamp || stamp >= NAT_TENTATIVE)
		return 0;
	packet->shared = word >> 31;
	if (packet->shared) {
		word = nat_read_tuple(packet);
		if (!word)
			return 0;
	}
	packet->inside_port = word;
	return 1;
}

static __always_inline void nat_query6(const struct session_config *sessions, struct nat_packet *packet,
				       int is_outgoing)
{
	__u64 remote[2] = { NAT_REMOTE_HIGH, packet->remote };

	if (is_outgoing)
		session_query6(sessions, packet->vni, packet->protocol, packet->inside, remote,
			       packet->inside_port, packet->remote_port, &packet->query);
	else
		session_query6(sessions, packet->vni, packet->protocol, remote, packet->inside,
			       packet->remote_port, packet->inside_port, &packet->query);
}

/* Prepares the search of the packet's session. */
NAT_FUNCTION int nat_query(struct nat_packet *packet, int is_outgoing)
{
	const struct session_config *sessions = session_config_at();
	struct session_query *query;

	if (!packet || !sessions)
		return 0;
	query = &packet->query;
	if (packet->vni & NAT_INSIDE_IPV6)
		nat_query6(sessions, packet, is_outgoing);
	else if (is_outgoing)
		session_query4(sessions, packet->vni, packet->protocol, packet->inside[1], packet->remote,
			       packet->inside_port, packet->remote_port, query);
	else
		session_query4(sessions, packet->vni, packet->protocol, packet->remote, packet->inside[1],
			       packet->remote_port, packet->inside_port, query);
	query->tcp_flags = packet->tcp_flags;
	query->bytes = packet->bytes;
	query->identity = 0;
	return 0;
}

/* The outside endpoint in the second word of a session's action. */
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
	enum session_answer answer;

	if (!packet || !sessions)
		return NAT_MISS;
	if (packet->flags & NAT_PEEK)
		return NAT_TRANSLATED;
	if (packet->vni & NAT_INSIDE_IPV6)
		answer = session_touch(6, sessions, &packet->query, &packet->hit, packet->now);
	else
		answer = session_touch(4, sessions, &packet->query, &packet->hit, packet->now);
	return answer == SESSION_GONE ? NAT_MISS : NAT_TRANSLATED;
}

/* Creates a session, as create_session4() does, and counts it. Its port is stamped. */
static __always_inline enum session_answer nat_create(struct nat_packet *packet, __u32 of_remote)
{
	__u32 action = nat_action(packet) | of_remote, slot;
	struct nat_group *group, *first;
	enum session_answer answer;

	if (packet->shared)
		action |= NAT_OF_SHARED;
	if (packet->vni & NAT_INSIDE_IPV6)
		answer = create_session6(&packet->query, packet->outside, action, packet->now, &packet->hit);
	else
		answer = create_session4(&packet->query, packet->outside, action, packet->now, &packet->hit);
	group = nat_block_of(packet, &slot);
	first = nat_first_group(packet);
	if (packet->hit.published && group && first) {
		ADD(&group->block[slot].begun, 1);
		ADD(&first->begun[nat_family(packet)], 1);
	}
	return answer;
}

/* Begins a session with this packet. Its port is stamped. */
NAT_FUNCTION int nat_begin(struct nat_packet *packet, __u32 of_remote)
{
	const struct session_data *data;
	enum session_answer answer;

	if (!packet)
		return NAT_FULL;
	answer = nat_create(packet, of_remote);
	if (answer == SESSION_CREATED)
		return NAT_BEGUN;
	if (answer != SESSION_HIT)
		return answer == SESSION_BUSY ? NAT_BUSY : NAT_FULL;
	/* Another packet of the session was faster. */
	data = nat_session(packet);
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

/* The first part of nat_out(): finds the packet's session. NAT_SESSIONLESS: nat_begin_out() decides. */
static __always_inline int nat_find_out(struct nat_packet *packet)
{
	const struct session_data *data;

	if (!nat_prepare(packet))
		return NAT_PROTOCOL;
	nat_query(packet, 1);
	if (nat_find_session(packet) == SESSION_HIT && nat_touch(packet) == NAT_TRANSLATED) {
		data = nat_session(packet);
		if (!data)
			return NAT_FULL;
		nat_set_translation(packet, data);
		return NAT_TRANSLATED;
	}
	return NAT_SESSIONLESS;
}

/* Finds the mapping of the inside endpoint, or makes one. NAT_TRANSLATED, or why not. `claimed`: the tuple word is to be finished. */
NAT_FUNCTION int nat_map(struct nat_packet *packet)
{
	struct session_config *sessions = session_config_at();
	struct nat_config *nat = nat_config_at();

	if (!packet || !sessions || !nat || !nat_choose_address(packet))
		return NAT_EXHAUSTED;
	nat_place(sessions, nat, packet);
	packet->shared = !!(packet->pool.flags & NAT_SHARES_PORTS);
	for (int i = 0; i < NAT_ATTEMPTS; i++) {
		int answer = packet->shared ? nat_try_to_share(packet) : nat_try_to_map(packet);

		if (answer != NAT_AGAIN)
			return answer;
	}
	return NAT_BUSY;
}

/* The second part of nat_out(): begins a session, if the packet may. */
static __always_inline int nat_begin_out(struct nat_packet *packet)
{
	int answer;

	if (!nat_begins(packet))
		return NAT_NO_SESSION;
	answer = nat_map(packet);
	if (answer != NAT_TRANSLATED)
		return answer;
	answer = nat_begin(packet, 0);
	if (packet->shared && packet->claimed)
		nat_finish_tuple(packet, answer == NAT_BEGUN);
	return answer;
}

/*
 * A packet of a VM, from the inside endpoint to the remote endpoint. NAT_TRANSLATED and NAT_BEGUN: it leaves from the outside
 * endpoint.
 */
static __always_inline enum nat_answer nat_out(struct nat_packet *packet)
{
	int answer = nat_find_out(packet);

	return answer == NAT_SESSIONLESS ? nat_begin_out(packet) : answer;
}

/* Whether remote endpoints may begin sessions with the inside endpoint. */
static __always_inline int nat_admits_remotes(const struct nat_packet *packet)
{
	return packet->pool.flags & NAT_ANY_REMOTE && !packet->shared;
}

/* Begins a session with a packet from the Internet that has none, if that is permitted. */
static __always_inline enum nat_answer nat_begin_in(struct nat_packet *packet)
{
	struct session_config *sessions = session_config_at();
	struct nat_config *nat = nat_config_at();
	__u32 action = nat_action(packet);
	enum nat_answer answer;

	/* Queries of the Internet have their own identifiers, which are not mapped. */
	if (!sessions || !nat || !nat_admits_remotes(packet) || packet->class == NAT_ICMP ||
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

/* The first part of nat_in(): finds the packet's session. NAT_SESSIONLESS: nat_begin_in() decides. */
static __always_inline int nat_find_in(struct nat_packet *packet)
{
	const struct session_data *data;

	if (!nat_prepare(packet))
		return NAT_PROTOCOL;
	if (!nat_find_inside(packet))
		return NAT_MISS;
	nat_query(packet, 0);
	/* A SYN that may begin nothing ends nothing, either. It may be forged, and so may the FIN before it. */
	if (!nat_admits_remotes(packet))
		packet->query.tcp_flags &= ~SESSION_TCP_SYN;
	if (nat_find_session(packet) == SESSION_HIT) {
		data = nat_session(packet);
		/* The port may have another inside endpoint than when the session began. */
		if (!data || (READ_ONCE(data->action[1]) & NAT_OUTSIDE_MASK) != nat_action(packet))
			return NAT_MISS;
		if (nat_touch(packet) == NAT_TRANSLATED)
			return NAT_TRANSLATED;
	}
	return NAT_SESSIONLESS;
}

/*
 * A packet from the Internet, from the remote endpoint to the outside endpoint. NAT_TRANSLATED and NAT_BEGUN: it goes to the
 * inside endpoint.
 */
static __always_inline enum nat_answer nat_in(struct nat_packet *packet)
{
	int answer = nat_find_in(packet);

	return answer == NAT_SESSIONLESS ? nat_begin_in(packet) : answer;
}

#endif
