// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Timed lookups in Sluice's tables and in the kernel's own maps, over the same
 * keys. The "packet" contains the range of keys, and returns the sum of the
 * answers.
 *
 * Each structure has two programs. In NAME_independent no lookup waits for
 * another. In NAME_dependent the position of the next key depends on the last
 * answer, so that no part of a lookup overlaps with the one before.
 */
#include "common/lookup.h"
#include "common/session_maps.h"
#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "Dual BSD/GPL";

/* An address as host-order halves; IPv4 is in `low`. */
struct key {
	__u64 high;
	__u64 low;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct key);
} keys SEC(".maps");

struct trie4_key {
	__u32 length;
	__u32 address; /* network order */
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct trie4_key);
	__type(value, __u32);
} trie4 SEC(".maps");

struct trie6_key {
	__u32 length;
	__u32 address[4]; /* network order */
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct trie6_key);
	__type(value, __u32);
} trie6 SEC(".maps");

/* The answer for an endpoint, the same as struct exact_hit. */
struct endpoint {
	__u64 mac;
	__u32 next;
	__u32 reserved;
};

struct hash4_key {
	__u32 vni;
	__u32 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct hash4_key);
	__type(value, struct endpoint);
} hash4 SEC(".maps");

struct hash6_key {
	__u64 vni;
	__u64 high;
	__u64 low;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct hash6_key);
	__type(value, struct endpoint);
} hash6 SEC(".maps");

struct session_key {
	__u64 endpoints;
	__u64 addresses;
};

/* The content of struct session4 of the session table, without its key and the time of creation. */
struct session {
	__u32 expires; /* ticks */
	__u32 state;
	__u64 packets[2];
	__u64 bytes[2];
	__u32 action[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct session_key);
	__type(value, struct session);
} lru SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, struct session_key);
	__type(value, struct session);
} lru_percpu SEC(".maps");

/* Input and output of a run. */
struct run {
	__u32 first; /* index of the first key or session */
	__u32 count;
	__u32 vni;
	__u32 now;   /* for sessions: the time in ticks */
	__u64 live;  /* sessions 0 .. live - 1 exist */
	__u64 sum;   /* output: sum of all answers, each times the number of its key, from 1 */
	__u64 found; /* output: number of answers other than 0 */
	__u64 done;  /* output: number of steps */
	__u64 reserved[2];
};

/* State of a run in progress. */
struct state {
	__u64 sum;
	__u64 found;
	__u64 answer;
	__u64 live;
	__u64 root;
	__u32 first;
	__u32 vni;
	__u32 now;
};

static __always_inline struct run *run_of(struct xdp_md *ctx)
{
	struct run *run = (void *)(long)ctx->data;

	return (void *)(run + 1) > (void *)(long)ctx->data_end ? NULL : run;
}

static __always_inline void add_answer(struct state *state, __u32 i, __u64 answer)
{
	state->sum += answer * (i + 1);
	state->found += answer != 0;
}

/* The root word of a VNI's routes. */
static __always_inline __u64 root_of(__u32 vni, int ipv6)
{
	__u32 cell = find_index(vni, 0);
	const struct vrf *vrf;

	if (!cell || cell == INDEX_BUSY)
		return 0;
	vrf = cell_at(cell);
	if (!vrf)
		return 0;
	return ipv6 ? READ_ONCE(vrf->lpm6) : READ_ONCE(vrf->lpm4);
}

#define NO_ROOT(vni) 0
#define ROOT4(vni) root_of(vni, 0)
#define ROOT6(vni) root_of(vni, 1)

/* A program that repeats `step` for the whole run. */
#define PROGRAM(name, step, find_root)                        \
	SEC("xdp")                                            \
	int name(struct xdp_md *ctx)                          \
	{                                                     \
		struct state state = {};                      \
		struct run *run = run_of(ctx);                \
		long done;                                    \
                                                              \
		if (!run)                                     \
			return XDP_ABORTED;                   \
		state.first = run->first;                     \
		state.live = run->live;                       \
		state.answer = 1;                             \
		state.vni = run->vni;                         \
		state.now = run->now;                         \
		state.root = find_root(run->vni);             \
		done = bpf_loop(run->count, step, &state, 0); \
		run = run_of(ctx);                            \
		if (!run)                                     \
			return XDP_ABORTED;                   \
		run->sum = state.sum;                         \
		run->found = state.found;                     \
		run->done = done;                             \
		return XDP_PASS;                              \
	}

/*
 * Offset of the next key of a chain: 0, except after the answer "not found", which
 * no key of a chain has. So the processor cannot predict the next key and fetch
 * ahead what the next lookups need.
 */
static __always_inline __u32 chain_offset(__u64 answer)
{
	return (answer - 1) >> 63 << 16;
}

/* Both programs of a structure; `answer_of(state, key)` is the lookup. */
#define TIMED(name, find_root, answer_of)                                  \
	static long name##_step(__u32 i, void *context)                    \
	{                                                                  \
		struct state *state = context;                             \
		__u32 at = state->first + i;                               \
		const struct key *key = bpf_map_lookup_elem(&keys, &at);   \
                                                                           \
		if (!key)                                                  \
			return 1;                                          \
		add_answer(state, at, answer_of(state, key));              \
		return 0;                                                  \
	}                                                                  \
	static long name##_dependent_step(__u32 i, void *context)          \
	{                                                                  \
		struct state *state = context;                             \
		__u32 at = state->first + i + chain_offset(state->answer); \
		const struct key *key = bpf_map_lookup_elem(&keys, &at);   \
                                                                           \
		if (!key)                                                  \
			return 1;                                          \
		state->answer = answer_of(state, key);                     \
		add_answer(state, at, state->answer);                      \
		return 0;                                                  \
	}                                                                  \
	PROGRAM(name##_independent, name##_step, find_root)                \
	PROGRAM(name##_dependent, name##_dependent_step, find_root)

/* The loop alone, whose time is subtracted from that of all others. */
static __always_inline __u64 empty_answer(struct state *state, const struct key *key)
{
	(void)state;
	/* Never 0, as chains require. */
	return (key->low >> 1) + 1;
}
TIMED(empty, NO_ROOT, empty_answer)

static __always_inline __u64 lpm4_answer(struct state *state, const struct key *key)
{
	return find_route4(state->root, key->low);
}
TIMED(lpm4, ROOT4, lpm4_answer)

static __always_inline __u64 lpm6_answer(struct state *state, const struct key *key)
{
	return find_route6(state->root, key->high, key->low);
}
TIMED(lpm6, ROOT6, lpm6_answer)

static __always_inline __u64 trie4_answer(struct state *state, const struct key *key)
{
	struct trie4_key wanted = { .length = 32, .address = bpf_htonl(key->low) };
	const __u32 *leaf = bpf_map_lookup_elem(&trie4, &wanted);

	(void)state;
	return leaf ? *leaf : 0;
}
TIMED(trie4, NO_ROOT, trie4_answer)

static __always_inline __u64 trie6_answer(struct state *state, const struct key *key)
{
	struct trie6_key wanted = {
		.length = 128,
		.address = { bpf_htonl(key->high >> 32), bpf_htonl(key->high), bpf_htonl(key->low >> 32),
			     bpf_htonl(key->low) },
	};
	const __u32 *leaf = bpf_map_lookup_elem(&trie6, &wanted);

	(void)state;
	return leaf ? *leaf : 0;
}
TIMED(trie6, NO_ROOT, trie6_answer)

/* The answer of both kinds of exact match as one word. */
static __always_inline __u64 endpoint_word(__u64 mac, __u32 next)
{
	return mac + ((__u64)next << 32);
}

static __always_inline __u64 exact4_answer(struct state *state, const struct key *key)
{
	struct exact_hit hit = {};

	if (find_ipv4(state->vni, key->low, &hit) != EXACT_HIT)
		return 0;
	return endpoint_word(hit.mac, hit.next);
}
TIMED(exact4, NO_ROOT, exact4_answer)

static __always_inline __u64 exact6_answer(struct state *state, const struct key *key)
{
	struct exact_hit hit = {};

	if (find_ipv6(state->vni, key->high, key->low, &hit) != EXACT_HIT)
		return 0;
	return endpoint_word(hit.mac, hit.next);
}
TIMED(exact6, NO_ROOT, exact6_answer)

static __always_inline __u64 hash4_answer(struct state *state, const struct key *key)
{
	struct hash4_key wanted = { .vni = state->vni, .address = key->low };
	const struct endpoint *found = bpf_map_lookup_elem(&hash4, &wanted);

	return found ? endpoint_word(found->mac, found->next) : 0;
}
TIMED(hash4, NO_ROOT, hash4_answer)

static __always_inline __u64 hash6_answer(struct state *state, const struct key *key)
{
	struct hash6_key wanted = { .vni = state->vni, .high = key->high, .low = key->low };
	const struct endpoint *found = bpf_map_lookup_elem(&hash6, &wanted);

	return found ? endpoint_word(found->mac, found->next) : 0;
}
TIMED(hash6, NO_ROOT, hash6_answer)

/*
 * Sessions. The key of session n is computed from n, so that no array of keys is
 * needed. A step is two packets: the first of a new session (looked up, not found,
 * created) and one of a random live session (looked up). A "pair" is only this; in
 * a "mix" both packets are also counted by direction, update TCP's state and the
 * expiry, and an expired session is not found. All tables use canonical keys, so
 * that one entry serves both directions. A fill is only the creating half.
 */
#define SESSION_BYTES 100

static __always_inline __u32 now_ticks(void)
{
	return session_ticks(bpf_ktime_get_coarse_ns());
}

struct flow {
	__u32 source;
	__u32 destination;
	__u16 source_port;
	__u16 destination_port;
};

static __always_inline void flow_of(__u64 number, struct flow *flow)
{
	__u64 addresses = exact_mix(number, 0), ports = exact_mix(number, 0x9e3779b97f4a7c15ull);

	flow->source = addresses;
	flow->destination = addresses >> 32;
	flow->source_port = ports;
	flow->destination_port = ports >> 16;
}

static __always_inline __u64 random_live(struct state *state, __u32 i)
{
	__u64 random = exact_mix(state->first + i, 0xd6e8feb86659fd93ull) >> 32;

	return (random * state->live) >> 32;
}

/* A peer's key, canonical as struct session_key4. Returns which endpoint is the sender. */
static __always_inline __u32 session_key_of(__u64 number, struct session_key *key)
{
	struct flow flow;

	flow_of(number, &flow);
	if (((__u64)flow.source << 16 | flow.source_port) <=
	    ((__u64)flow.destination << 16 | flow.destination_port)) {
		key->endpoints = session_who(1, SESSION_TCP, flow.source_port, flow.destination_port);
		key->addresses = flow.source | (__u64)flow.destination << 32;
		return 0;
	}
	key->endpoints = session_who(1, SESSION_TCP, flow.destination_port, flow.source_port);
	key->addresses = flow.destination | (__u64)flow.source << 32;
	return 1;
}

/* Timeout by the state, as in Sluice's table; no session expires during the measurement. */
static __always_inline __u32 peer_timeout(__u32 state)
{
	return (state & SESSION_CONFIRMED ? 14400 : 7200) * SESSION_TICKS_PER_SECOND;
}

/* Does to a peer's entry what session_touch does. Returns 0 if it had expired. */
static __always_inline int peer_touch(struct session *found, __u32 sender, __u8 flags, __u32 now)
{
	__u32 state = READ_ONCE(found->state), old = READ_ONCE(found->expires);
	__u32 direction = (state ^ sender) & SESSION_ORIGINATOR;
	__u32 next = session_next_state(state, SESSION_TCP, flags, direction);
	__u32 expires = now + peer_timeout(next);

	/* 0 in a per-CPU map: the session was created on another core. */
	if (old && (__s32)(old - now) <= 0)
		return 0;
	if (next != state)
		__sync_fetch_and_or(&found->state, next ^ state);
	__sync_fetch_and_add(&found->packets[direction & 1], 1);
	__sync_fetch_and_add(&found->bytes[direction & 1], SESSION_BYTES);
	if (expires - old + (SESSION_REFRESH_TICKS - 1) > 2 * (SESSION_REFRESH_TICKS - 1))
		__sync_val_compare_and_swap(&found->expires, old, expires);
	return 1;
}

#define SESSIONS(name, map)                                                                    \
	static __always_inline void name##_create(__u64 number, __u32 now)                     \
	{                                                                                      \
		struct session fresh = { .packets[0] = 1, .bytes[0] = SESSION_BYTES };         \
		struct session_key key;                                                        \
                                                                                               \
		fresh.state = session_key_of(number, &key);                                    \
		if (bpf_map_lookup_elem(&map, &key))                                           \
			return;                                                                \
		fresh.expires = now + peer_timeout(0);                                         \
		fresh.action[0] = number;                                                      \
		bpf_map_update_elem(&map, &key, &fresh, BPF_NOEXIST);                          \
	}                                                                                      \
	static long name##_fill_step(__u32 i, void *context)                                   \
	{                                                                                      \
		struct state *state = context;                                                 \
                                                                                               \
		name##_create((__u64)state->first + i, now_ticks());                           \
		return 0;                                                                      \
	}                                                                                      \
	static long name##_pair_step(__u32 i, void *context)                                   \
	{                                                                                      \
		struct state *state = context;                                                 \
		struct session_key key;                                                        \
                                                                                               \
		name##_create((__u64)state->first + i, 0);                                     \
		session_key_of(random_live(state, i), &key);                                   \
		add_answer(state, i, bpf_map_lookup_elem(&map, &key) != NULL);                 \
		return 0;                                                                      \
	}                                                                                      \
	static long name##_mix_step(__u32 i, void *context)                                    \
	{                                                                                      \
		struct state *state = context;                                                 \
		struct session_key key;                                                        \
		struct session *found;                                                         \
		__u32 sender, now;                                                             \
                                                                                               \
		name##_create((__u64)state->first + i, now_ticks());                           \
		now = now_ticks();                                                             \
		sender = session_key_of(random_live(state, i), &key);                          \
		found = bpf_map_lookup_elem(&map, &key);                                       \
		add_answer(state, i, found &&peer_touch(found, sender, SESSION_TCP_ACK, now)); \
		return 0;                                                                      \
	}                                                                                      \
	PROGRAM(name##_fill, name##_fill_step, NO_ROOT)                                        \
	PROGRAM(name##_pair, name##_pair_step, NO_ROOT)                                        \
	PROGRAM(name##_mix, name##_mix_step, NO_ROOT)

SESSIONS(lru, lru)
SESSIONS(lru_percpu, lru_percpu)

static __always_inline int sluice_query(__u64 number, struct session_query *query)
{
	struct session_config *config = session_config_at();
	struct flow flow;

	if (!config)
		return 0;
	flow_of(number, &flow);
	session_query4(config, 1, SESSION_TCP, flow.source, flow.destination, flow.source_port,
		       flow.destination_port, query);
	return 1;
}

/*
 * Global functions, so that the verifier checks them once. They return 1 if the
 * packet created its session or found it.
 */
__attribute__((noinline)) int sluice_first_packet(__u64 number, __u32 now)
{
	struct session_query query = { .tcp_flags = SESSION_TCP_SYN, .bytes = SESSION_BYTES };
	struct session_hit hit = {};

	return sluice_query(number, &query) && find_session4(&query, now, &hit) == SESSION_MISS &&
	       create_session4(&query, number, 0, now, &hit) == SESSION_CREATED;
}

__attribute__((noinline)) int sluice_next_packet(__u64 number)
{
	struct session_query query = { .tcp_flags = SESSION_TCP_ACK, .bytes = SESSION_BYTES };
	struct session_config *config = session_config_at();
	struct session_hit hit = {};
	__u32 now = now_ticks();

	return config && sluice_query(number, &query) && find_session4(&query, now, &hit) == SESSION_HIT &&
	       session_touch(4, config, &query, &hit, now) == SESSION_HIT;
}

static long sluice_fill_step(__u32 i, void *context)
{
	struct state *state = context;

	add_answer(state, i, sluice_first_packet((__u64)state->first + i, now_ticks()));
	return 0;
}
PROGRAM(sluice_fill, sluice_fill_step, NO_ROOT)

/* All steps at the same time, because the peers' structures alone do not read the clock. */
static long sluice_pair_step(__u32 i, void *context)
{
	struct state *state = context;
	struct session_query query = {};
	struct session_hit hit = {};
	__u32 now = state->now;

	sluice_first_packet((__u64)state->first + i, now);
	add_answer(state, i,
		   sluice_query(random_live(state, i), &query) &&
			   find_session4(&query, now, &hit) == SESSION_HIT);
	return 0;
}
PROGRAM(sluice_pair, sluice_pair_step, NO_ROOT)

static long sluice_mix_step(__u32 i, void *context)
{
	struct state *state = context;

	sluice_first_packet((__u64)state->first + i, now_ticks());
	add_answer(state, i, sluice_next_packet(random_live(state, i)));
	return 0;
}
PROGRAM(sluice_mix, sluice_mix_step, NO_ROOT)

static long sluice_find_step(__u32 i, void *context)
{
	struct state *state = context;

	add_answer(state, i, sluice_next_packet(random_live(state, i)));
	return 0;
}
PROGRAM(sluice_find, sluice_find_step, NO_ROOT)

/* A pair without tables: two keys are computed and used. */
static long sessions_empty_step(__u32 i, void *context)
{
	struct state *state = context;
	struct session_key created, sought;

	session_key_of((__u64)state->first + i, &created);
	session_key_of(random_live(state, i), &sought);
	add_answer(state, i, created.addresses ^ created.endpoints ^ sought.addresses ^ sought.endpoints);
	return 0;
}
PROGRAM(sessions_empty, sessions_empty_step, NO_ROOT)
