/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The session table for packet programs: lookup, creation, refresh and end of sessions. Layout and the
 * argument why it is safe are in session_layout.h.
 *
 * Contract: the includer provides
 *
 *   struct session_bucket4 *session_bucket4_at(__u32 index);
 *   struct session_bucket6 *session_bucket6_at(__u32 index);
 *
 * the bucket, or NULL if the index is out of bounds. The calls for a packet, with `family` a constant 4 or
 * 6 and `now` = session_ticks(bpf_ktime_get_coarse_ns()), are
 *
 *   struct session_query query = { .tcp_flags = flags, .bytes = length };
 *   session_query4(config, scope, protocol, source, destination, ports..., &query);
 *   answer = session_find(4, &query, now, &hit);
 *   if (answer == SESSION_MISS) {
 *           ... check that the packet may begin a session ...
 *           answer = session_create(4, config, &query, action0, action1, now, &hit);
 *   }
 *   if (answer == SESSION_HIT)
 *           answer = session_touch(4, config, &query, &hit, now);
 *
 * A hit is valid until the program ends, and not longer. Loops are bounded. Nothing sleeps or calls a
 * helper, except the includer's functions. session_maps.h has the maps, and functions that the verifier
 * processes once. All shared memory is accessed by the macros of atomic.h, so that a native build can
 * insert a scheduling point before each access.
 */
#ifndef SLUICE_SESSIONS_H
#define SLUICE_SESSIONS_H

#include "common/atomic.h"
#include "layout/session_layout.h"

/*
 * Tells the compiler to move rare branches behind the usual path. Not only for speed: the verifier of
 * Linux 6.1 demands that the end of a loop's body jumps back to its head, and the compiler would often
 * place the rare branch between them.
 */
#define SESSION_RARE(condition) __builtin_expect(!!(condition), 0)

/* How often a compare-and-swap is tried. */
#define SESSION_ATTEMPTS 4

#define SESSION_TCP 6
#define SESSION_UDP 17
#define SESSION_ICMP 1
#define SESSION_ICMPV6 58

#define SESSION_TCP_FIN 0x01
#define SESSION_TCP_SYN 0x02
#define SESSION_TCP_RST 0x04
#define SESSION_TCP_ACK 0x10

/*
 * The key of a packet's session, in search order. session_query4() and session_query6() set all but the
 * last three.
 */
struct session_query {
	__u64 key[SESSION_KEY6_WORDS]; /* IPv4: the first two */
	__u64 want;	 /* tag word of a live record with this key, without generation and expiry */
	__u32 one;	 /* index of the bucket that is searched first */
	__u32 two;	 /* index of the bucket that is searched second */
	__u32 source;	 /* the endpoint that sent the packet: 0 or 1 */
	__u32 tcp_flags; /* 0 for other protocols */
	__u32 bytes;	 /* that are counted; the caller chooses which headers count */
	__u32 identity;	 /* on a host, of the remote; otherwise 0 */
};

/* A session that was found. It has indices instead of pointers, so that global functions can return it. */
struct session_hit {
	__u64 word; /* tag word, when it was read */
	__u32 bucket;
	__u32 slot;
	__u32 direction; /* of this packet: SESSION_ORIGINAL or SESSION_REPLY */
	__u32 state;	 /* session_data.state, when it was read */
	__u32 published; /* by session_create(): 1 if it has published a record, which the agent will free */
};

/* CLOCK_MONOTONIC in the ticks of the table. */
static __always_inline __u32 session_ticks(__u64 now_ns)
{
	return now_ns / SESSION_TICK_NS;
}

static __always_inline int session_is_past(__u64 word, __u32 now)
{
	return (__s32)((__u32)(word >> SESSION_EXPIRES_SHIFT) - now) <= 0;
}

/*
 * NH of UMAC (RFC 4418 section 5.2.2) over the words of the key, then a mixer. For two keys that were chosen
 * without hash_key, NH collides with probability 2^-32. So a tenant cannot fill a chosen bucket.
 */
static __always_inline __u64 session_hash(const struct session_config *config, const __u64 *key, int words)
{
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < words; i++) {
		__u64 secret = READ_ONCE(config->hash_key[i]);
		__u32 low = (__u32)key[i] + (__u32)secret;
		__u32 high = (__u32)(key[i] >> 32) + (__u32)(secret >> 32);

		sum += (__u64)low * high;
	}
	sum = (sum ^ READ_ONCE(config->seed)) * 0x9e3779b97f4a7c15ull;
	sum ^= sum >> 32;
	sum *= 0xd6e8feb86659fd93ull;
	return sum ^ (sum >> 32);
}

/*
 * Derives buckets from the upper bits of each half of the hash, and the tag from a product of all bits. In
 * tables that were not laid out, the indices are out of bounds.
 */
static __always_inline void session_place(struct session_query *query, __u64 hash, __u32 buckets)
{
	if (buckets < 2) {
		query->one = query->two = ~0u;
		return;
	}
	query->one = ((hash & 0xffffffff) * buckets) >> 32;
	query->two = ((hash >> 32) * buckets) >> 32;
	if (query->two == query->one)
		query->two = query->one + 1 == buckets ? 0 : query->one + 1;
	query->want = (hash * 0xa0761d6478bd642full) >> 48 << SESSION_TAG_SHIFT | SESSION_LIVE;
}

/* The first word of a key. */
static __always_inline __u64 session_who(__u32 scope, __u8 protocol, __u16 port0, __u16 port1)
{
	return (scope & 0xffffff) | (__u64)protocol << SESSION_PROTOCOL_SHIFT |
	       (__u64)port0 << SESSION_PORT0_SHIFT | (__u64)port1 << SESSION_PORT1_SHIFT;
}

/* Prepares the search. Addresses and ports are the packet's, in host order (ICMP: session_layout.h). */
static __always_inline void session_query4(const struct session_config *config, __u32 scope, __u8 protocol,
					   __u32 source, __u32 destination, __u16 source_port,
					   __u16 destination_port, struct session_query *query)
{
	if (((__u64)source << 16 | source_port) <= ((__u64)destination << 16 | destination_port)) {
		query->source = 0;
		query->key[0] = session_who(scope, protocol, source_port, destination_port);
		query->key[1] = source | (__u64)destination << 32;
	} else {
		query->source = 1;
		query->key[0] = session_who(scope, protocol, destination_port, source_port);
		query->key[1] = destination | (__u64)source << 32;
	}
	session_place(query, session_hash(config, query->key, SESSION_KEY4_WORDS),
		      READ_ONCE(config->buckets4));
}

/* As session_query4(), with addresses as halves, high half first. */
static __always_inline void session_query6(const struct session_config *config, __u32 scope, __u8 protocol,
					   const __u64 source[2], const __u64 destination[2],
					   __u16 source_port, __u16 destination_port,
					   struct session_query *query)
{
	__u64 s0 = source[0], s1 = source[1], d0 = destination[0], d1 = destination[1];
	int ordered = s0 != d0 ? s0 < d0 : s1 != d1 ? s1 < d1 : source_port <= destination_port;

	if (ordered) {
		query->source = 0;
		query->key[0] = session_who(scope, protocol, source_port, destination_port);
		query->key[1] = s0;
		query->key[2] = s1;
		query->key[3] = d0;
		query->key[4] = d1;
	} else {
		query->source = 1;
		query->key[0] = session_who(scope, protocol, destination_port, source_port);
		query->key[1] = d0;
		query->key[2] = d1;
		query->key[3] = s0;
		query->key[4] = s1;
	}
	session_place(query, session_hash(config, query->key, SESSION_KEY6_WORDS),
		      READ_ONCE(config->buckets6));
}

/*
 * From here on, `family` is a constant, 4 or 6: the compiler removes the code of the other family from the
 * inlined functions. In both families a bucket begins with its hints and tag words, and is passed on as a
 * pointer to them.
 */
static __always_inline __u64 *session_bucket(int family, __u32 index)
{
	if (family == 4) {
		struct session_bucket4 *bucket = session_bucket4_at(index);

		return bucket ? &bucket->hints : (__u64 *)0;
	} else {
		struct session_bucket6 *bucket = session_bucket6_at(index);

		return bucket ? &bucket->hints : (__u64 *)0;
	}
}

/* The slot, within bounds. The compiler must not compute an address from it before the comparison. */
static __always_inline __u32 session_bounded(__u32 slot)
{
	if (slot >= SESSION_SLOTS)
		slot = 0;
	asm volatile("" : "+r"(slot));
	return slot;
}

static __always_inline __u64 *session_tag(__u64 *bucket, __u32 slot)
{
	return &bucket[1 + session_bounded(slot)];
}

static __always_inline void *session_record(int family, __u64 *bucket, __u32 slot)
{
	slot = session_bounded(slot);
	return family == 4 ? (void *)&((struct session_bucket4 *)bucket)->record[slot]
			   : (void *)&((struct session_bucket6 *)bucket)->record[slot];
}

static __always_inline struct session_data *session_data_of(int family, __u64 *bucket, __u32 slot)
{
	void *record = session_record(family, bucket, slot);

	return family == 4 ? &((struct session4 *)record)->data : &((struct session6 *)record)->data;
}

/*
 * Sets of slots have bit 8 i + 7 for slot i. SESSION_EACH has the lowest bit of each byte, SESSION_ALL all
 * slots.
 */
#define SESSION_EACH 0x0101010101010101ull
#define SESSION_ALL 0x0080808080808080ull

/* The slots whose hint is equal to that of the tag in `want`. */
static __always_inline __u64 session_hinted(const __u64 *bucket, __u64 want)
{
	__u64 differs = READ_ONCE(bucket[0]) ^ (want >> SESSION_TAG_SHIFT & 0xff) * SESSION_EACH;

	/* In each byte, without carries: the top bit becomes 1 if any bit is. */
	differs |= (differs & 0x7f * SESSION_EACH) + 0x7f * SESSION_EACH;
	return ~differs & SESSION_ALL;
}

/*
 * The empty slots. Computed without branches, and so that the compiler does not recognize a comparison: it
 * would branch at each slot, and the verifier would follow 2^SESSION_SLOTS paths.
 */
static __always_inline __u64 session_empty(const __u64 *bucket)
{
	__u64 empty = 0;

#pragma unroll
	for (int i = 0; i < SESSION_SLOTS; i++) {
		__u64 state = (READ_ONCE(bucket[1 + i]) & SESSION_STATE_MASK) - 1;

		/* The top bit is now 1 if the slot is empty. */
		asm volatile("" : "+r"(state));
		empty |= state >> 63 << (8 * i + 7);
	}
	return empty;
}

/*
 * The lowest slot of a set that is not empty. The product of its bit with the constant has its number in
 * the top byte.
 */
static __always_inline __u32 session_lowest(__u64 slots)
{
	return ((slots & -slots) >> 7) * 0x0001020304050607ull >> 56;
}

/* Number of slots in a set. */
static __always_inline __u32 session_count(__u64 slots)
{
	return (slots >> 7) * SESSION_EACH >> 56;
}

/*
 * The slot that a key takes if it is empty; otherwise it takes the next empty one. The tag spreads keys
 * evenly.
 */
static __always_inline __u32 session_preferred(const struct session_query *query)
{
	return ((__u32)query->want >> (SESSION_TAG_SHIFT + 8)) * SESSION_SLOTS >> 8;
}

static __always_inline int session_has_key(int family, __u64 *bucket, __u32 slot, const __u64 *key)
{
	__u64 *words = session_record(family, bucket, slot);
	__u64 differs = (READ_ONCE(words[0]) ^ key[0]) | (READ_ONCE(words[1]) ^ key[1]);

	if (family == 6) {
		differs |= READ_ONCE(words[2]) ^ key[2];
		differs |= READ_ONCE(words[3]) ^ key[3];
		differs |= READ_ONCE(words[4]) ^ key[4];
	}
	return !differs;
}

#define SESSION_MATCH_MASK (SESSION_TAG_MASK << SESSION_TAG_SHIFT | SESSION_STATE_MASK)
/* What session_look() does with a record of the key that has expired. */
enum session_past { SESSION_PASS_OVER, SESSION_MAKE_DIE };

/* Fills in a hit. */
static __always_inline void session_found(int family, __u64 *bucket, __u32 index, __u32 slot, __u64 word,
					  const struct session_query *query, struct session_hit *hit)
{
	__u32 state = READ_ONCE(session_data_of(family, bucket, slot)->state);

	hit->word = word;
	hit->bucket = index;
	hit->slot = slot;
	hit->state = state;
	/* Compares the endpoint that sent this packet with the one that sent the first packet. */
	hit->direction = (state ^ query->source) & SESSION_ORIGINATOR ? SESSION_REPLY : SESSION_ORIGINAL;
}

enum session_seen {
	SESSION_SEEN_NONE,
	SESSION_SEEN_DYING, /* none, but there is a dying record with the key's tag */
	SESSION_SEEN_LIVE,
};

/*
 * Searches the key's live record. The hints of both buckets are read before either is examined, so that
 * their cache misses overlap.
 */
static __always_inline enum session_seen session_look(int family, __u64 *one, __u64 *two,
						      const struct session_query *query, __u32 now,
						      enum session_past past, struct session_hit *hit)
{
	__u64 hinted1 = session_hinted(one, query->want), hinted2 = session_hinted(two, query->want);
	enum session_seen none = SESSION_SEEN_NONE;

	for (int i = 0; i < 2 * SESSION_SLOTS && (hinted1 | hinted2); i++) {
		int second = !hinted1;
		__u32 slot = session_lowest(second ? hinted2 : hinted1);
		__u64 *bucket = second ? two : one;
		__u64 *tag = session_tag(bucket, slot);
		__u64 seen = READ_ONCE(*tag);

		if (second)
			hinted2 &= hinted2 - 1;
		else
			hinted1 &= hinted1 - 1;
		if (SESSION_RARE((seen & SESSION_MATCH_MASK) != query->want)) {
			if ((seen & SESSION_MATCH_MASK) == (query->want | SESSION_DYING))
				none = SESSION_SEEN_DYING;
			continue;
		}
		if (SESSION_RARE(!session_has_key(family, bucket, slot, query->key)))
			continue;
		if (SESSION_RARE(session_is_past(seen, now))) {
			__u64 live = seen;

			if (past == SESSION_PASS_OVER)
				continue;
			seen = CAS(tag, live, live | SESSION_DYING);
			/*
			 * If the word changed, the session was refreshed in between. Otherwise it is dying
			 * now.
			 */
			if (seen == live || (seen & SESSION_MATCH_MASK) != query->want)
				continue;
		}
		session_found(family, bucket, second ? query->two : query->one, slot, seen, query, hit);
		return SESSION_SEEN_LIVE;
	}
	return none;
}

/*
 * Starts to load the record in the key's preferred slot into the cache, while the tag words are loaded. Most
 * keys have their record there. The values are not used.
 */
static __always_inline void session_fetch(int family, __u64 *bucket, const struct session_query *query)
{
	__u64 *words = session_record(family, bucket, session_preferred(query));

	(void)READ_ONCE(words[0]);
	/* IPv6 records are in two cache lines. */
	if (family == 6)
		(void)READ_ONCE(words[8]);
}

/* Finds a packet's session. SESSION_HIT or SESSION_MISS. */
static __always_inline enum session_answer session_find(int family, const struct session_query *query,
							__u32 now, struct session_hit *hit)
{
	__u64 *one = session_bucket(family, query->one), *two = session_bucket(family, query->two);

	if (!one || !two)
		return SESSION_MISS;
	session_fetch(family, one, query);
	session_fetch(family, two, query);
	for (int i = 0; i < 2; i++) {
		enum session_seen seen = session_look(family, one, two, query, now, SESSION_PASS_OVER, hit);

		if (seen == SESSION_SEEN_LIVE)
			return SESSION_HIT;
		/*
		 * The dying record may be a duplicate of one that was published after its slot was
		 * searched.
		 */
		if (seen == SESSION_SEEN_NONE)
			break;
	}
	return SESSION_MISS;
}

enum session_killed {
	SESSION_KILLED,	   /* by this call */
	SESSION_DEAD,	   /* before this call */
	SESSION_REFRESHED, /* by others, too often */
};

/* Makes a live record die, even if it is refreshed. */
static __always_inline enum session_killed session_kill(__u64 *tag, __u64 word)
{
	for (int i = 0; i < SESSION_ATTEMPTS; i++) {
		__u64 seen = CAS(tag, word, word | SESSION_DYING);

		if (seen == word)
			return SESSION_KILLED;
		/* If only the expiry changed, the session was refreshed. */
		if ((__u32)(seen ^ word))
			return SESSION_DEAD;
		word = seen;
	}
	return SESSION_REFRESHED;
}

/* The state after a packet in this direction. `flags` are TCP's, 0 for other protocols. */
static __always_inline __u32 session_next_state(__u32 state, __u8 protocol, __u8 flags, __u32 direction)
{
	__u32 next = state;

	if (direction == SESSION_REPLY)
		next |= SESSION_REPLIED;
	else if (state & SESSION_REPLIED && (protocol != SESSION_TCP || flags & SESSION_TCP_ACK))
		next |= SESSION_CONFIRMED;
	if (protocol == SESSION_TCP && flags & SESSION_TCP_FIN)
		next |= SESSION_FIN << direction;
	if (protocol == SESSION_TCP && flags & SESSION_TCP_RST)
		next |= SESSION_RST;
	return next;
}

/* As session_next_state(), in a table that may have SESSION_RST_IN_DOUBT. */
static __always_inline __u32 session_state_after(const struct session_config *config, __u32 state,
						 __u8 protocol, __u8 flags, __u32 direction)
{
	__u32 next = session_next_state(state, protocol, flags, direction);

	if (SESSION_RARE(state & SESSION_RST) && !(flags & SESSION_TCP_RST) &&
	    READ_ONCE(config->flags) & SESSION_RST_IN_DOUBT)
		next &= ~SESSION_RST;
	return next;
}

/* Fills a claimed slot with the session that this packet begins. */
static __always_inline void session_fill(int family, __u64 *bucket, __u32 slot,
					 const struct session_query *query, __u32 state, __u32 action0,
					 __u32 action1, __u32 now)
{
	__u64 *words = session_record(family, bucket, slot);
	struct session_data *data = session_data_of(family, bucket, slot);
	__u8 *hints = (__u8 *)bucket;

	WRITE_ONCE(hints[session_bounded(slot)], query->want >> SESSION_TAG_SHIFT & 0xff);
	WRITE_ONCE(words[0], query->key[0]);
	WRITE_ONCE(words[1], query->key[1]);
	if (family == 6) {
		WRITE_ONCE(words[2], query->key[2]);
		WRITE_ONCE(words[3], query->key[3]);
		WRITE_ONCE(words[4], query->key[4]);
	}
	WRITE_ONCE(data->created_at, now);
	WRITE_ONCE(data->state, state);
	WRITE_ONCE(data->packets[SESSION_ORIGINAL], 1);
	WRITE_ONCE(data->packets[SESSION_REPLY], 0);
	WRITE_ONCE(data->bytes[SESSION_ORIGINAL], query->bytes);
	WRITE_ONCE(data->bytes[SESSION_REPLY], 0);
	WRITE_ONCE(data->action[0], action0);
	WRITE_ONCE(data->action[1], action1);
}

/* The idle time of a session in this state, in ticks. */
static __always_inline __u32 session_timeout(const struct session_config *config, __u8 protocol, __u32 state)
{
	const struct session_timeouts *timeouts = &config->timeouts;
	__u32 both = SESSION_FIN | SESSION_FIN << 1;

	switch (protocol) {
	case SESSION_TCP:
		if (state & SESSION_RST || (state & both) == both)
			return READ_ONCE(timeouts->tcp_closing);
		return state & SESSION_CONFIRMED ? READ_ONCE(timeouts->tcp_established)
						 : READ_ONCE(timeouts->tcp_new);
	case SESSION_UDP:
		return state & SESSION_REPLIED ? READ_ONCE(timeouts->udp_two_way)
					       : READ_ONCE(timeouts->udp_one_way);
	case SESSION_ICMP:
	case SESSION_ICMPV6:
		return READ_ONCE(timeouts->icmp);
	default:
		return READ_ONCE(timeouts->other);
	}
}

/*
 * Searches one bucket for duplicates after slot `own`, with tag word `mine`, was published. `own` is
 * SESSION_SLOTS if it is in the other bucket. Of two duplicates the one in a slot below `before` wins, and
 * the other one dies. 1: `mine` has died, and `hit` is the winner.
 */
static __always_inline int session_settle(int family, __u64 *bucket, __u32 index, __u32 before, __u32 own,
					  struct session_config *config, const struct session_query *query,
					  __u64 *mine, __u64 published, struct session_hit *hit)
{
	__u64 hinted = session_hinted(bucket, query->want);

	for (int i = 0; i < SESSION_SLOTS && hinted; i++) {
		__u32 slot = session_lowest(hinted);
		__u64 *tag = session_tag(bucket, slot);
		__u64 word = READ_ONCE(*tag);
		int loses = slot < before;
		enum session_killed killed;

		hinted &= hinted - 1;
		if (slot == own || (word & SESSION_MATCH_MASK) != query->want ||
		    !session_has_key(family, bucket, slot, query->key))
			continue;
		killed = session_kill(loses ? mine : tag, loses ? published : word);
		if (killed != SESSION_DEAD)
			ADD(killed == SESSION_KILLED ? &config->duplicates : &config->busy, 1);
		if (!loses)
			continue;
		session_found(family, bucket, index, slot, word, query, hit);
		return 1;
	}
	return 0;
}

#define SESSION_NO_SLOT (2 * SESSION_SLOTS)	  /* both buckets are full */
#define SESSION_CONTENDED (2 * SESSION_SLOTS + 1) /* others claimed first, too often */

/*
 * Claims a slot of the emptier bucket. Returns the slot, plus SESSION_SLOTS in the second one, or one of
 * the above.
 */
static __always_inline int session_claim(__u64 *one, __u64 *two, const struct session_query *query,
					 __u64 *word)
{
	__u32 preferred = session_preferred(query);

	for (int i = 0; i < SESSION_ATTEMPTS; i++) {
		__u64 empty1 = session_empty(one), empty2 = session_empty(two);
		int second = session_count(empty2) > session_count(empty1);
		__u64 empty = second ? empty2 : empty1;
		__u64 ahead = empty >> 8 * preferred << 8 * preferred;
		/* The next empty slot from the preferred one on, in circular order. */
		__u32 slot = session_lowest(ahead ? ahead : empty);
		__u64 *tag = session_tag(second ? two : one, slot);
		__u64 seen;

		if (!empty)
			return SESSION_NO_SLOT;
		seen = READ_ONCE(*tag);
		if ((seen & SESSION_STATE_MASK) != SESSION_EMPTY ||
		    CAS(tag, seen, seen | SESSION_CLAIMED) != seen)
			continue;
		*word = seen;
		return second ? slot + SESSION_SLOTS : slot;
	}
	return SESSION_CONTENDED;
}

static __always_inline __u8 session_protocol(const struct session_query *query)
{
	return query->key[0] >> SESSION_PROTOCOL_SHIFT;
}

/*
 * Begins a session with this packet. The query's sender is its originator. SESSION_CREATED: the session is
 * complete, and counts the packet. SESSION_HIT: another packet created it first; then the actions are that
 * packet's, the direction may be SESSION_REPLY, and the caller calls session_touch(). SESSION_FULL and
 * SESSION_BUSY: there is no session. A caller that counts records counts by `hit->published`: after SESSION_HIT this
 * call may have published a duplicate, and after SESSION_CREATED another packet may have ended it.
 */
static __always_inline enum session_answer session_create(int family, struct session_config *config,
							  const struct session_query *query, __u32 action0,
							  __u32 action1, __u32 now, struct session_hit *hit)
{
	__u64 *one = session_bucket(family, query->one), *two = session_bucket(family, query->two);
	__u32 first = (query->source ? SESSION_ORIGINATOR : 0) | query->identity << SESSION_IDENTITY_SHIFT;
	__u32 state = session_state_after(config, first, session_protocol(query), query->tcp_flags,
					  SESSION_ORIGINAL);
	__u32 timeout = session_timeout(config, session_protocol(query), state);
	__u64 published = (__u64)(now + timeout) << SESSION_EXPIRES_SHIFT | query->want;
	__u64 word = 0, *bucket, *tag;
	int position, second;
	__u32 slot;

	hit->published = 0;
	if (!one || !two)
		return SESSION_MISS;
	if (session_look(family, one, two, query, now, SESSION_MAKE_DIE, hit) == SESSION_SEEN_LIVE)
		return SESSION_HIT;
	position = session_claim(one, two, query, &word);
	if (position >= SESSION_NO_SLOT) {
		ADD(position == SESSION_NO_SLOT ? &config->full[family == 6] : &config->busy, 1);
		return position == SESSION_NO_SLOT ? SESSION_FULL : SESSION_BUSY;
	}
	second = position >= SESSION_SLOTS;
	bucket = second ? two : one;
	slot = second ? position - SESSION_SLOTS : position;
	session_fill(family, bucket, slot, query, state, action0, action1, now);
	published |= word & SESSION_GENERATION_MASK << SESSION_GENERATION_SHIFT;
	tag = session_tag(bucket, slot);
	/* The slot belongs to this packet, so the swap cannot fail. It is used as a barrier. */
	CAS(tag, word | SESSION_CLAIMED, published);
	hit->published = 1;
	if (session_settle(family, one, query->one, second ? SESSION_SLOTS : slot,
			   second ? SESSION_SLOTS : slot, config, query, tag, published, hit) ||
	    session_settle(family, two, query->two, second ? slot : 0, second ? slot : SESSION_SLOTS, config,
			   query, tag, published, hit))
		return SESSION_HIT;
	hit->word = published;
	hit->bucket = second ? query->two : query->one;
	hit->slot = slot;
	hit->state = state;
	hit->direction = SESSION_ORIGINAL;
	return SESSION_CREATED;
}

/*
 * Ends a session that was found. SESSION_HIT: by this call; SESSION_GONE: before; SESSION_BUSY: not, and
 * counted.
 */
static __always_inline enum session_answer session_end(int family, struct session_config *config,
						       const struct session_hit *hit)
{
	__u64 *bucket = session_bucket(family, hit->bucket);

	if (!bucket)
		return SESSION_GONE;
	switch (session_kill(session_tag(bucket, hit->slot), hit->word)) {
	case SESSION_KILLED:
		return SESSION_HIT;
	case SESSION_DEAD:
		return SESSION_GONE;
	case SESSION_REFRESHED:
		break;
	}
	ADD(&config->busy, 1);
	return SESSION_BUSY;
}

/*
 * Sets the expiry by the session's state, if it moves far enough to be worth a write. After a failed swap
 * the state is read again: another packet may have closed the session.
 */
static __always_inline enum session_answer session_refresh(struct session_config *config,
							   const struct session_data *data, __u64 *tag,
							   struct session_hit *hit, __u8 protocol,
							   __u32 state, __u32 now)
{
	for (int i = 0; i < SESSION_ATTEMPTS; i++) {
		__u32 expires = now + session_timeout(config, protocol, state);
		__u32 gain = expires - (__u32)(hit->word >> SESSION_EXPIRES_SHIFT);
		__u64 to = (__u64)expires << SESSION_EXPIRES_SHIFT | (__u32)hit->word;
		__u64 seen;

		/* The gain is between -SESSION_REFRESH_TICKS and SESSION_REFRESH_TICKS, both excluded. */
		if (gain + (SESSION_REFRESH_TICKS - 1) <= 2 * (SESSION_REFRESH_TICKS - 1))
			return SESSION_HIT;
		seen = CAS(tag, hit->word, to);
		if (seen == hit->word) {
			hit->word = to;
			return SESSION_HIT;
		}
		if ((__u32)(seen ^ hit->word))
			return SESSION_GONE;
		hit->word = seen;
		state = READ_ONCE(data->state);
	}
	ADD(&config->busy, 1);
	return SESSION_BUSY;
}

/*
 * Counts a packet of a session that was found, updates the TCP state by its flags, and moves the expiry if
 * it differs by SESSION_REFRESH_TICKS. Most packets write only the counters.
 *
 * SESSION_HIT: the packet belongs to the session. SESSION_GONE: the session has died, or the packet is the
 * SYN of a new connection on the ports of a closed one; that ends the old session, so that the new connection
 * is checked as any other. With SESSION_RST_IN_DOUBT, only FIN from both endpoints closes one for this: RST and SYN of one
 * endpoint may both be forged. SESSION_BUSY: counted, but not refreshed.
 */
static __always_inline enum session_answer session_touch(int family, struct session_config *config,
							 const struct session_query *query,
							 struct session_hit *hit, __u32 now)
{
	__u64 *bucket = session_bucket(family, hit->bucket);
	__u32 direction = hit->direction & 1, flags = query->tcp_flags;
	__u8 protocol = session_protocol(query);
	__u32 both = SESSION_FIN | SESSION_FIN << 1;
	struct session_data *data;
	__u32 state, next;

	if (!bucket)
		return SESSION_GONE;
	data = session_data_of(family, bucket, hit->slot);
	state = READ_ONCE(data->state);
	if (protocol == SESSION_TCP && (flags & (SESSION_TCP_SYN | SESSION_TCP_ACK)) == SESSION_TCP_SYN &&
	    ((state & both) == both ||
	     (state & SESSION_RST && !(READ_ONCE(config->flags) & SESSION_RST_IN_DOUBT))))
		return session_end(family, config, hit) == SESSION_BUSY ? SESSION_BUSY : SESSION_GONE;
	next = session_state_after(config, state, protocol, flags, direction);
	if (next & ~state)
		OR(&data->state, next & ~state);
	if (SESSION_RARE(state & ~next))
		AND(&data->state, ~(state & ~next));
	ADD(&data->packets[direction], 1);
	ADD(&data->bytes[direction], query->bytes);
	return session_refresh(config, data, session_tag(bucket, hit->slot), hit, protocol, next, now);
}

/* The state, counters and actions of a session that was found. NULL if the index is out of bounds. */
static __always_inline struct session_data *session_data_at(int family, const struct session_hit *hit)
{
	__u64 *bucket = session_bucket(family, hit->bucket);

	return bucket ? session_data_of(family, bucket, hit->slot) : (struct session_data *)0;
}

#endif
