// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The functions of flows.h and meters.h that packets run, compiled for the host:
 * before each access to a word that others change, the test chooses who goes on.
 */
static void (*schedule_point)(void);
/* The bound of the loops, low to get at what comes behind them. Executions are of one thread. */
static __thread int schedule_tries = 8;

#define READ_ONCE(x)                                     \
	({                                               \
		schedule_point();                        \
		*(const volatile __typeof__(x) *)&(x);   \
	})
#define CAS(word, expected, desired)                                \
	({                                                            \
		schedule_point();                                     \
		__sync_val_compare_and_swap(word, expected, desired); \
	})
#define ADD(word, value)                         \
	({                                         \
		schedule_point();                  \
		__sync_fetch_and_add(word, value); \
	})
#define FLOW_TRIES schedule_tries
#define METER_TRIES schedule_tries

#include "flows.h"
#include "meters.h"

void schedule_init(void (*point)(void), int tries)
{
	__atomic_store_n(&schedule_point, point, __ATOMIC_SEQ_CST);
	schedule_tries = tries;
}

int schedule_meter_take(struct meter *meter, __u32 direction, __u32 bytes, __u64 now)
{
	return meter_take(meter, direction, bytes, now);
}

int schedule_flow_account(const struct flow_table *table, struct flow_bucket *bucket, __u64 hash,
			  __u32 bytes, __u64 now)
{
	return flow_account(table, bucket, hash, bytes, 0, now);
}
