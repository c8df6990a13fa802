/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Source NAT with sessions: installs a session that another gateway describes (docs/decisions/nat-replication.md). Packets and rounds
 * of the agent run meanwhile; nat_layout.h has the argument why that is safe.
 *
 * Contract: the includer provides what nat.h demands. The caller of nat_install() sets in the packet vni, inside, inside_port,
 * remote, remote_port, address, outside_port, protocol, now, flags (NAT_OF_OWNER, NAT_ADDS_STATE, or 0), state, idle and, with NAT_OF_OWNER, since.
 * nat_install() sets `outside` for NAT_BEGUN and NAT_TRANSLATED, and `hit` to the session for these and NAT_ELSEWHERE. It answers
 *
 *   NAT_BEGUN       the session was added
 *   NAT_TRANSLATED  the session existed, and was merged with what the other gateway says
 *   NAT_ELSEWHERE   the session existed with another outside endpoint, and stays
 *   NAT_TAKEN       the outside port, or its tuple if it is shared, belongs to another inside endpoint, or the port is not in use
 *                   here; at most stamps have changed
 *   NAT_MISS        the session has been idle for so long that it has expired; nothing has changed
 *   NAT_FULL, NAT_BUSY, NAT_PROTOCOL  as for packets
 *
 * Limits of the pool do not apply: the gateway that owns the session has applied them.
 */
#ifndef SLUICE_NAT_INSTALL_H
#define SLUICE_NAT_INSTALL_H

#include "common/nat.h"

/* No answers: the session must end, because the newer one has another outside endpoint; its port is stamped, and it can be added. */
#define NAT_MOVES 17
#define NAT_ADDS 18

/* What is known about the session here and there. */
enum nat_judged {
	NAT_KEPT,     /* here is newer activity */
	NAT_JOINED,   /* both are equal */
	NAT_REPLACED, /* there is newer activity, or the owner says so */
};

static __always_inline enum nat_judged nat_judge(const struct nat_packet *packet, __u32 here, __u32 there)
{
	__s32 newer = here - there;

	if (packet->flags & NAT_OF_OWNER)
		return newer > 0 && (__s32)(here - packet->since) >= 0 ? NAT_KEPT : NAT_REPLACED;
	return newer > NAT_COPY_SLACK ? NAT_KEPT : newer >= -NAT_COPY_SLACK ? NAT_JOINED : NAT_REPLACED;
}

/* The state that the other gateway says, as that of the session that was found, whose originator may be the other endpoint. */
static __always_inline __u32 nat_said_state(const struct nat_packet *packet)
{
	__u32 said = packet->state & NAT_COPY_STATE & ~NAT_COPY_OF_REMOTE;
	__u32 fins = said & (SESSION_FIN | SESSION_FIN << 1);

	if (packet->hit.direction == SESSION_ORIGINAL)
		return said;
	fins = (fins << 1 | fins >> 1) & (SESSION_FIN | SESSION_FIN << 1);
	/* Each of the endpoints was the first to send for one of the gateways. */
	return (said & ~(SESSION_FIN | SESSION_FIN << 1)) | fins | SESSION_REPLIED;
}

/*
 * Sets the state of a session that was found to `next`, and its expiry by its last activity. If a packet refreshes it meanwhile, its
 * expiry is that packet's. 0: the session has ended.
 */
static __always_inline int nat_set_session(const struct session_config *config, struct nat_packet *packet,
					   struct session_data *data, __u32 next, __u32 active)
{
	__u64 *bucket = nat_bucket(packet), *tag, word = packet->hit.word, seen;
	__u32 state = packet->hit.state;
	__u32 expires = active + session_timeout(config, packet->protocol, next);
	__u32 gain = expires - (__u32)(word >> SESSION_EXPIRES_SHIFT);

	if (!bucket)
		return 0;
	if (next & ~state)
		OR(&data->state, next & ~state);
	if (state & ~next)
		AND(&data->state, ~(state & ~next));
	/* As in session_refresh(). */
	if (gain + (SESSION_REFRESH_TICKS - 1) <= 2 * (SESSION_REFRESH_TICKS - 1))
		return 1;
	tag = session_tag(bucket, packet->hit.slot);
	seen = CAS(tag, word, (__u64)expires << SESSION_EXPIRES_SHIFT | (__u32)word);
	return (__u32)seen == (__u32)word;
}

/* Merges the session that was found. The answer of nat_install(), or NAT_AGAIN or NAT_MOVES. */
NAT_FUNCTION int nat_merge(struct nat_packet *packet)
{
	const struct session_config *config = session_config_at();
	struct session_data *data;
	enum nat_judged judged;
	__u32 here, there, next;
	int answer;

	if (!packet || !config)
		return NAT_BUSY;
	data = nat_session(packet);
	if (!data)
		return NAT_BUSY;
	here = (__u32)(packet->hit.word >> SESSION_EXPIRES_SHIFT) -
	       session_timeout(config, packet->protocol, packet->hit.state);
	there = packet->now - packet->idle;
	judged = nat_judge(packet, here, there);
	answer = (READ_ONCE(data->action[1]) & NAT_OUTSIDE_MASK) == nat_action(packet) ? NAT_TRANSLATED
										       : NAT_ELSEWHERE;
	if (answer == NAT_TRANSLATED)
		packet->outside = READ_ONCE(data->action[0]);
	if (judged == NAT_KEPT)
		return answer;
	if (judged == NAT_REPLACED && answer == NAT_ELSEWHERE)
		return NAT_MOVES;
	next = nat_said_state(packet);
	if (judged == NAT_REPLACED && !(packet->flags & NAT_ADDS_STATE))
		next |= packet->hit.state & ~(NAT_COPY_STATE & ~SESSION_ORIGINATOR);
	else
		next |= packet->hit.state;
	if (judged == NAT_JOINED && (__s32)(here - there) > 0)
		there = here;
	return nat_set_session(config, packet, data, next, there) ? answer : NAT_AGAIN;
}

/* Makes the block of the outside port one of the inside address, if it is free. NAT_TRANSLATED: it is. Or NAT_AGAIN, or why not. */
NAT_FUNCTION int nat_take_block(struct nat_packet *packet)
{
	struct nat_group *group;
	struct nat_block *block;
	__u32 slot;
	__u64 seen;

	if (!packet)
		return NAT_TAKEN;
	group = nat_block_of(packet, &slot);
	if (!group)
		return NAT_TAKEN;
	block = &group->block[slot];
	seen = READ_ONCE(group->word[slot]);
	switch (seen & NAT_STATE_MASK) {
	case NAT_FREE:
		nat_claim_free(packet, group, slot);
		return NAT_AGAIN;
	case NAT_CLAIMED:
		return NAT_AGAIN;
	case NAT_OWNED:
	case NAT_CLOSING:
		break;
	case NAT_CLOSED:
		/* It is free after a grace period. */
		return NAT_BUSY;
	default:
		return NAT_TAKEN;
	}
	if (READ_ONCE(block->vni) != packet->vni || READ_ONCE(block->inside[0]) != packet->inside[0] ||
	    READ_ONCE(block->inside[1]) != packet->inside[1])
		return NAT_TAKEN;
	packet->outside = READ_ONCE(group->outside);
	if ((seen & NAT_STATE_MASK) == NAT_OWNED)
		return NAT_TRANSLATED;
	CAS(&group->word[slot], seen, seen ^ NAT_CLOSING ^ NAT_OWNED);
	return NAT_AGAIN;
}

/* Maps the outside port, of a block of the inside address, to the inside port, and stamps it. The answers are the same. */
NAT_FUNCTION int nat_take_mapping(struct nat_packet *packet)
{
	__u32 number;
	int answer;

	if (!packet)
		return NAT_TAKEN;
	number = nat_port_base(packet, packet->address) + packet->outside_port;
	if (!packet->shared)
		return nat_take_port(number, packet->inside_port);
	answer = nat_take_port(number, NAT_SHARED);
	if (answer != NAT_TRANSLATED)
		return answer;
	answer = nat_take_tuple(packet);
	if (answer == NAT_TRANSLATED && packet->claimed)
		nat_finish_tuple(packet, 1);
	/* The packet that claims the tuple settles it soon, or gives it back. */
	return answer == NAT_BUSY ? NAT_AGAIN : answer;
}

/* Adds the session. Its port is stamped. Not a function of the verifier, because create_session4() needs the stack. */
static __always_inline int nat_add_copy(const struct session_config *config, struct nat_packet *packet)
{
	struct session_data *data;
	enum session_answer answer;

	answer = nat_create(packet, packet->state & NAT_COPY_OF_REMOTE ? NAT_OF_REMOTE : 0);
	/* Another packet was faster. */
	if (answer == SESSION_HIT)
		return NAT_AGAIN;
	if (answer != SESSION_CREATED)
		return answer == SESSION_BUSY ? NAT_BUSY : NAT_FULL;
	data = nat_session(packet);
	if (!data)
		return NAT_FULL;
	/* No packet has come here. */
	ADD(&data->packets[SESSION_ORIGINAL], -1);
	nat_set_session(config, packet, data, packet->hit.state | nat_said_state(packet),
			packet->now - packet->idle);
	return NAT_BEGUN;
}

/* Whether a session of this age would have expired. */
static __always_inline int nat_is_too_old(const struct session_config *config,
					  const struct nat_packet *packet)
{
	return packet->idle >= session_timeout(config, packet->protocol, packet->state);
}

/* One attempt. The answer, or NAT_AGAIN or NAT_ADDS. */
NAT_FUNCTION int nat_try_to_install(struct nat_packet *packet)
{
	struct session_config *config = session_config_at();
	__u64 *bucket, word;
	int answer, found;

	if (!packet || !config)
		return NAT_BUSY;
	found = nat_find_session(packet) == SESSION_HIT;
	if (found) {
		answer = nat_merge(packet);
		if (answer != NAT_MOVES)
			return answer;
	}
	if (nat_is_too_old(config, packet))
		return NAT_MISS;
	answer = nat_take_block(packet);
	if (answer == NAT_TRANSLATED)
		answer = nat_take_mapping(packet);
	if (answer != NAT_TRANSLATED)
		return answer;
	if (!found)
		return NAT_ADDS;
	/* The session that has another outside endpoint ends, unless a packet has refreshed it since it was judged. */
	bucket = nat_bucket(packet);
	word = packet->hit.word;
	if (bucket)
		CAS(session_tag(bucket, packet->hit.slot), word, word | SESSION_DYING);
	return NAT_AGAIN;
}

/* Installs a session. See above. */
NAT_FUNCTION int nat_install(struct nat_packet *packet)
{
	const struct session_config *sessions = session_config_at();
	struct nat_config *nat = nat_config_at();

	if (!packet || !sessions || !nat || !nat_prepare(packet))
		return NAT_PROTOCOL;
	packet->shared = !!(packet->state & NAT_COPY_OF_SHARED);
	nat_query(packet, !(packet->state & NAT_COPY_OF_REMOTE));
	/* The session begins at another gateway, not with this packet. */
	packet->query.tcp_flags = 0;
	packet->query.bytes = 0;
	nat_place(sessions, nat, packet);
	for (int i = 0; i < NAT_ATTEMPTS; i++) {
		int answer = nat_try_to_install(packet);

		if (answer == NAT_ADDS)
			answer = nat_add_copy(sessions, packet);
		if (answer != NAT_AGAIN)
			return answer;
	}
	return NAT_BUSY;
}

#endif
