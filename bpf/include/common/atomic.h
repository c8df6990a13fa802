/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Accesses to words that other processors or the agent may change at the same time.
 *
 * Contract: every such access uses one of these macros. The includer may define its own before it
 * includes this: tests of schedules do.
 */
#ifndef SLUICE_ATOMIC_H
#define SLUICE_ATOMIC_H

#ifndef READ_ONCE
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#endif

#ifndef WRITE_ONCE
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
#endif

/* Stores `desired` if `*word` is `expected`. Returns the value before. A full barrier. */
#ifndef CAS
#define CAS(word, expected, desired) __sync_val_compare_and_swap(word, expected, desired)
#endif

/* Adds to a word. Returns the value before. A full barrier. */
#ifndef ADD
#define ADD(word, value) __sync_fetch_and_add(word, value)
#endif

/* Sets bits of a word. */
#ifndef OR
#define OR(word, bits) ((void)__sync_fetch_and_or(word, bits))
#endif

/* Clears the bits of a word that are not in `bits`. */
#ifndef AND
#define AND(word, bits) ((void)__sync_fetch_and_and(word, bits))
#endif

#endif
