/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * One operation on the session tables as a structure, for tests, which run the same C code as an eBPF
 * program and natively.
 *
 * Contract: an includer that calls session_test_run() includes sessions.h first, and defines
 * find_session4(), find_session6(), create_session4() and create_session6() as session_maps.h does.
 */
#ifndef SLUICE_SESSION_OPERATION_H
#define SLUICE_SESSION_OPERATION_H

#include <linux/types.h>

enum session_op {
	SESSION_OP_FIND = 1,
	SESSION_OP_CREATE, /* find the session, or create it */
	SESSION_OP_TOUCH,  /* find; touch the session that was found */
	SESSION_OP_PACKET, /* find; touch the session that was found, or create it */
	SESSION_OP_END,	   /* find; end the session that was found */
};

struct session_test {
	__u32 op;
	__u32 family;	 /* 4 or 6 */
	__u64 source[2]; /* halves in host order; IPv4 in the low half */
	__u64 destination[2];
	__u16 source_port;
	__u16 destination_port;
	__u32 scope;
	__u8 protocol;
	__u8 tcp_flags;
	__u16 published; /* out: whether a record was published, which the sweep will free */
	__u32 bytes;
	__u32 now;
	__u32 action[2];
	/* The answer, enum session_answer, and the content of the record after the operation. */
	__u32 answer;
	__u32 touched; /* answer of session_touch() or session_end(); 0: not called */
	__u32 direction;
	__u32 state;
	__u32 created_at;
	__u32 found_action[2];
	__u64 word;
	__u64 packets[2];
	__u64 byte_count[2];
	__u64 key[5]; /* as stored in the record; IPv4: two words */
};

#ifdef SLUICE_SESSIONS_H

/* Copies the record of a hit. */
static __always_inline void session_test_show(int family, struct session_test *test,
					      const struct session_hit *hit)
{
	const struct session_data *data = session_data_at(family, hit);
	const __u64 *key;

	if (!data)
		return;
	test->direction = hit->direction;
	test->word = hit->word;
	test->state = READ_ONCE(data->state);
	test->created_at = READ_ONCE(data->created_at);
	test->found_action[0] = READ_ONCE(data->action[0]);
	test->found_action[1] = READ_ONCE(data->action[1]);
	test->packets[0] = READ_ONCE(data->packets[0]);
	test->packets[1] = READ_ONCE(data->packets[1]);
	test->byte_count[0] = READ_ONCE(data->bytes[0]);
	test->byte_count[1] = READ_ONCE(data->bytes[1]);
	/* The key is directly before the part that both families have. */
	key = (const __u64 *)data - (family == 4 ? SESSION_KEY4_WORDS : SESSION_KEY6_WORDS);
#pragma unroll
	for (int i = 0; i < SESSION_KEY6_WORDS; i++)
		test->key[i] = family == 6 || i < SESSION_KEY4_WORDS ? READ_ONCE(key[i]) : 0;
}

/* Runs the operation of a test in the table of a family, 4 or 6. */
static __always_inline void session_test_run(int family, struct session_config *config,
					     struct session_test *test)
{
	struct session_query query = { .tcp_flags = test->tcp_flags, .bytes = test->bytes };
	struct session_hit hit = {};

	if (family == 4)
		session_query4(config, test->scope, test->protocol, test->source[1], test->destination[1],
			       test->source_port, test->destination_port, &query);
	else
		session_query6(config, test->scope, test->protocol, test->source, test->destination,
			       test->source_port, test->destination_port, &query);
	test->answer =
		family == 4 ? find_session4(&query, test->now, &hit) : find_session6(&query, test->now, &hit);
	if (test->answer == SESSION_MISS && (test->op == SESSION_OP_CREATE || test->op == SESSION_OP_PACKET))
		test->answer =
			family == 4
				? create_session4(&query, test->action[0], test->action[1], test->now, &hit)
				: create_session6(&query, test->action[0], test->action[1], test->now, &hit);
	test->published = hit.published;
	if (test->answer != SESSION_HIT && test->answer != SESSION_CREATED)
		return;
	if (test->answer == SESSION_HIT && (test->op == SESSION_OP_TOUCH || test->op == SESSION_OP_PACKET))
		test->touched = session_touch(family, config, &query, &hit, test->now);
	else if (test->op == SESSION_OP_END)
		test->touched = session_end(family, config, &hit);
	session_test_show(family, test, &hit);
}

#endif
#endif
