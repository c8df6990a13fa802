// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The packets' side of the session tables in a process: the functions of
 * sessions.h, with a call before each access to shared memory, where a test's
 * scheduler lets others get in between.
 */
#include <stddef.h>

#define __always_inline inline __attribute__((always_inline))

void sluice_point(void);

#define READ_ONCE(x)                                       \
	(*({                                               \
		sluice_point();                            \
		(const volatile __typeof__(x) *)&(x);      \
	}))
#define WRITE_ONCE(x, value)                            \
	do {                                               \
		sluice_point();                            \
		*(volatile __typeof__(x) *)&(x) = (value); \
	} while (0)
#define CAS(at, from, to)                          \
	({                                                 \
		sluice_point();                            \
		__sync_val_compare_and_swap(at, from, to); \
	})
#define ADD(at, by)                                \
	do {                                               \
		sluice_point();                            \
		__sync_fetch_and_add(at, by);              \
	} while (0)
#define OR(at, bits)                               \
	do {                                               \
		sluice_point();                            \
		__sync_fetch_and_or(at, bits);             \
	} while (0)

#include "session_layout.h"

/* The tables of the operation in hand. All that run on one thread use the same ones. */
static _Thread_local struct session_config *config_here;
static _Thread_local struct session_bucket4 *buckets4_here;
static _Thread_local struct session_bucket6 *buckets6_here;
static _Thread_local size_t count4_here, count6_here;

static struct session_bucket4 *session_bucket4_at(__u32 index)
{
	return index < count4_here ? &buckets4_here[index] : NULL;
}

static struct session_bucket6 *session_bucket6_at(__u32 index)
{
	return index < count6_here ? &buckets6_here[index] : NULL;
}

#include "sessions.h"

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
	return session_create(4, config_here, query, action0, action1, now, hit);
}

static int create_session6(const struct session_query *query, __u32 action0, __u32 action1, __u32 now,
			   struct session_hit *hit)
{
	return session_create(6, config_here, query, action0, action1, now, hit);
}

#include "sessions_test.h"

void sluice_sessions_run(void *config, void *buckets4, size_t count4, void *buckets6, size_t count6,
			 struct session_test *test);

void sluice_sessions_run(void *config, void *buckets4, size_t count4, void *buckets6, size_t count6,
			 struct session_test *test)
{
	config_here = config;
	buckets4_here = buckets4;
	buckets6_here = buckets6;
	count4_here = count4;
	count6_here = count6;
	if (test->family == 4)
		session_test_run(4, config, test);
	else
		session_test_run(6, config, test);
}
