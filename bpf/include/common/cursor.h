/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * A position in the linear part of a packet, from which headers are taken one after the other.
 *
 * Contract: the includer satisfies context.h. A cursor is valid until a helper moves or resizes the
 * packet, and so are the pointers that were taken from it. Packet bytes are not changed. Two ways to
 * take a header:
 *
 *   take_header()   checks the bounds; NULL if the header does not end before the linear part
 *   next_header()   does not check. It is for several headers behind one cursor_has() of their common
 *                   length: one comparison for all. The verifier rejects a program that lacks it.
 */
#ifndef SLUICE_CURSOR_H
#define SLUICE_CURSOR_H

#include "common/context.h"

struct cursor {
	void *at;
	void *end;
};

/* A cursor `offset` bytes into the packet. */
static __always_inline struct cursor cursor_at(const program_context *ctx, __u32 offset)
{
	struct cursor cursor = { .at = context_data(ctx) + offset, .end = context_end(ctx) };

	return cursor;
}

/* Whether `bytes` from the cursor on are linear. */
static __always_inline int cursor_has(const struct cursor *cursor, __u32 bytes)
{
	return cursor->at + bytes <= cursor->end;
}

static __always_inline void *cursor_advance(struct cursor *cursor, __u32 bytes)
{
	void *at = cursor->at;

	cursor->at = at + bytes;
	return at;
}

static __always_inline void *cursor_take(struct cursor *cursor, __u32 bytes)
{
	return cursor_has(cursor, bytes) ? cursor_advance(cursor, bytes) : NULL;
}

#define take_header(cursor, type) ((type *)cursor_take(cursor, sizeof(type)))
#define next_header(cursor, type) ((type *)cursor_advance(cursor, sizeof(type)))

#endif
