// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The packets' side of the session tables in a process: the functions of sessions.h.
 */
#include "scheduled.h"

#include "layout/session_layout.h"

/* The tables of the operation that is running. All operations on one thread use the same tables. */
static _Thread_local struct session_config *current_config;
static _Thread_local struct session_bucket4 *current_buckets4;
static _Thread_local struct session_bucket6 *current_buckets6;
static _Thread_local size_t current_count4, current_count6;

static struct session_bucket4 *session_bucket4_at(__u32 index)
{
	return index < current_count4 ? &current_buckets4[index] : NULL;
}

static struct session_bucket6 *session_bucket6_at(__u32 index)
{
	return index < current_count6 ? &current_buckets6[index] : NULL;
}

#include "common/sessions.h"

static int find_session4(const struct session_query *query, __u32 now, struct session_hit *hit)
{
	return session_find(4, query, now, hit);
}

static int find_session6(const struct session_query *query, __u32 now, struct session_hit *hit)
{
	return session_find(6, query, now, hit);
}

static int create_session4(const struct session_query *query, __u32 action0, __u32 action1, __u32 now,
			   struct session_hit *hit)
{
	return session_create(4, current_config, query, action0, action1, now, hit);
}

static int create_session6(const struct session_query *query, __u32 action0, __u32 action1, __u32 now,
			   struct session_hit *hit)
{
	return session_create(6, current_config, query, action0, action1, now, hit);
}

#include "test/session_operation.h"

void sluice_sessions_run(void *config, void *buckets4, size_t count4, void *buckets6, size_t count6,
			 struct session_test *test);

void sluice_sessions_run(void *config, void *buckets4, size_t count4, void *buckets6, size_t count6,
			 struct session_test *test)
{
	current_config = config;
	current_buckets4 = buckets4;
	current_buckets6 = buckets6;
	current_count4 = count4;
	current_count6 = count6;
	if (test->family == 4)
		session_test_run(4, config, test);
	else
		session_test_run(6, config, test);
}
