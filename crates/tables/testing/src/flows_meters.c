// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The functions of flows.h and meters.h that packets run, compiled for the host.
 * Before each access to a word that other packets change, the test chooses the
 * thread that continues.
 */
static void (*before_access)(void);
/* The bound of the loops; a low one reaches the code behind them. Executions run on one thread. */
static __thread int schedule_tries = 8;

#define READ_ONCE(x)                                   \
	({                                             \
		before_access();                       \
		*(const volatile __typeof__(x) *)&(x); \
	})
#define CAS(word, expected, desired)                                  \
	({                                                            \
		before_access();                                      \
		__sync_val_compare_and_swap(word, expected, desired); \
	})
#define ADD(word, value)                           \
	({                                         \
		before_access();                   \
		__sync_fetch_and_add(word, value); \
	})
#define FLOW_TRIES schedule_tries
#define METER_TRIES schedule_tries

#include "common/flows.h"
#include "common/meters.h"

void schedule_init(void (*hook)(void), int tries)
{
	__atomic_store_n(&before_access, hook, __ATOMIC_SEQ_CST);
	schedule_tries = tries;
}

int schedule_meter_take(struct meter *meter, __u32 direction, __u32 bytes, __u64 now)
{
	return meter_take(meter, direction, bytes, now);
}

int schedule_flow_account(const struct flow_table *table, struct flow_bucket *bucket, __u64 hash, __u32 bytes,
			  __u64 now)
{
	return flow_account(table, bucket, hash, bytes, 0, now);
}
