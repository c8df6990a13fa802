/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Services: several VMs have the same address, and each flow to it goes to one of them (Achelous section 5.2,
 * docs/decisions/services.md). Hosts and gateways choose by the same table.
 *
 * Contract: reads the map `cells`, and changes nothing.
 */
#ifndef SLUICE_SERVICES_H
#define SLUICE_SERVICES_H

#include "common/frame.h"
#include "common/lookup.h"

/* The service in `cell`, or NULL if the cell has another kind of entry. */
static __always_inline const struct service *service_at(__u32 cell)
{
	const struct service *service = cell_at(cell);

	return service && READ_ONCE(service->kind) == NEXT_HOP_SERVICE ? service : NULL;
}

/* A member that find_member() returns: its cell and its number. */
#define MEMBER_NUMBER_SHIFT 32

/* The member with this number, if flows may go to it. 0: they may not. */
static __always_inline __u64 member_at(__u64 table, __u32 number)
{
	__u32 cell = (table & CELL_INDEX_MASK) + SERVICE_SLOT_CELLS - 1 + number;

	if (!number || number > table >> MEMBER_NUMBER_SHIFT || !next_hop_at(cell, NEXT_HOP_VTEP))
		return 0;
	return (__u64)number << MEMBER_NUMBER_SHIFT | cell;
}

/*
 * The member of the service in this cell to which the frame goes: the one with the number `pinned`, or else that of its flow's
 * slot. All fragments of a datagram have the same slot. 0: the service has no such member.
 */
__attribute__((noinline)) __u64 find_member(__u32 service_cell, const struct frame *frame, __u32 pinned)
{
	const struct service *service = service_at(service_cell);
	__u64 table, member;
	const __u8 *slots;
	__u32 slot;

	if (!service || !frame)
		return 0;
	table = READ_ONCE(service->table);
	if (!(table & CELL_INDEX_MASK))
		return 0;
	member = member_at(table, pinned);
	if (member)
		return member;
	slot = frame_secret_hash(frame, service->seed) >> (32 - SERVICE_SLOT_BITS);
	slots = cell_at((table & CELL_INDEX_MASK) + slot / CELL_BYTES);
	return slots ? member_at(table, slots[slot % CELL_BYTES]) : 0;
}

#endif
