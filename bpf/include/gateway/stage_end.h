/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: the stages of the fast path, and programs that end after one of them. bench/spine measures what a stage costs
 * by the difference of two such programs, which it compiles with LAST_STAGE.
 *
 * Contract: STAGE_END() does nothing unless LAST_STAGE is defined. Then the program returns after that stage as
 * if it had sent the packet; `value` depends on the work of the stage, so that the compiler keeps it.
 */
#ifndef SLUICE_STAGE_END_H
#define SLUICE_STAGE_END_H

#define STAGE_BEGIN 0
#define STAGE_PARSE 1
#define STAGE_ADMIT 2
#define STAGE_ROUTE 3
#define STAGE_ENDPOINT 4
#define STAGE_NEXT_HOP 5
#define STAGE_REWRITE 6
#define STAGE_COUNT 7 /* the whole fast path */

#ifdef LAST_STAGE
#define STAGE_END(stage, value)                        \
	do {                                           \
		if (LAST_STAGE == (stage)) {           \
			asm volatile("" ::"r"(value)); \
			return XDP_TX;                 \
		}                                      \
	} while (0)
#else
#define STAGE_END(stage, value) \
	do {                    \
	} while (0)
#endif

#endif
