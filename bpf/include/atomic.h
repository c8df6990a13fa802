/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Every access to words that packets of several processors write at once. The
 * includer may define them otherwise before this: tests of schedules do.
 */
#ifndef SLUICE_ATOMIC_H
#define SLUICE_ATOMIC_H

#ifndef READ_ONCE
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#endif

/* Stores `desired` where `*word` is `expected`; what was there. A full barrier. */
#ifndef CAS64
#define CAS64(word, expected, desired) __sync_val_compare_and_swap(word, expected, desired)
#endif

/* Adds; what was there before. A full barrier. */
#ifndef ADD64
#define ADD64(word, value) __sync_fetch_and_add(word, value)
#endif

#endif
