/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Every access to words that others write at the same time. The includer may
 * define them otherwise before this: tests of schedules do.
 */
#ifndef SLUICE_ATOMIC_H
#define SLUICE_ATOMIC_H

#ifndef READ_ONCE
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#endif

#ifndef WRITE_ONCE
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
#endif

/* Stores `desired` where `*word` is `expected`; what was there. A full barrier. */
#ifndef CAS
#define CAS(word, expected, desired) __sync_val_compare_and_swap(word, expected, desired)
#endif

/* Adds; what was there before. A full barrier. */
#ifndef ADD
#define ADD(word, value) __sync_fetch_and_add(word, value)
#endif

/* Sets bits. */
#ifndef OR
#define OR(word, bits) ((void)__sync_fetch_and_or(word, bits))
#endif

#endif
