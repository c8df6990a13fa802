/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The macros of atomic.h in a process, with a call before each access to shared memory, in which a test's scheduler can let
 * other tasks run.
 *
 * Contract: included before any header of bpf/include.
 */
#ifndef SLUICE_SCHEDULED_H
#define SLUICE_SCHEDULED_H

#include <stddef.h>

#define __always_inline inline __attribute__((always_inline))

void sluice_before_access(void);

#define READ_ONCE(x)                                  \
	(*({                                          \
		sluice_before_access();               \
		(const volatile __typeof__(x) *)&(x); \
	}))
#define WRITE_ONCE(x, value)                               \
	do {                                               \
		sluice_before_access();                    \
		*(volatile __typeof__(x) *)&(x) = (value); \
	} while (0)
#define CAS(at, from, to)                                  \
	({                                                 \
		sluice_before_access();                    \
		__sync_val_compare_and_swap(at, from, to); \
	})
#define ADD(at, by)                           \
	do {                                  \
		sluice_before_access();       \
		__sync_fetch_and_add(at, by); \
	} while (0)
#define OR(at, bits)                           \
	do {                                   \
		sluice_before_access();        \
		__sync_fetch_and_or(at, bits); \
	} while (0)
#define AND(at, bits)                           \
	do {                                    \
		sluice_before_access();         \
		__sync_fetch_and_and(at, bits); \
	} while (0)

#endif
