/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: port forwards of a NAT gateway (struct nat_forward). Both endpoints of one are found in the tables alone, so
 * its packets have no session, in either direction (docs/decisions/port-forwards.md).
 *
 * Contract: nat_forward_of() finds the endpoint for which another one stands. Addresses and ports are in host order. Packet and
 * state are not changed. Reads only the map `cells`.
 */
#ifndef SLUICE_NAT_FORWARDS_H
#define SLUICE_NAT_FORWARDS_H

#include "common/lookup.h"

/* Comparisons after which a search among NAT_FORWARD_ENTRIES_MAX entries has ended. */
#define NAT_FORWARD_STEPS 10

/* Searches a key among the entries from a cell on. Returns the endpoint in its entry, which is not 0; 0: it has none. */
__attribute__((noinline)) __u64 find_nat_forward(__u32 cell, __u32 entries, __u64 key)
{
	__u32 low = 0, high = entries;

	for (int i = 0; i < NAT_FORWARD_STEPS; i++) {
		__u32 middle = (low + high) / 2;
		const struct nat_forwards *forwards;
		const struct nat_forward *forward;

		if (low >= high)
			break;
		forwards = cell_at(cell + middle / NAT_FORWARDS_CELL);
		if (!forwards)
			break;
		forward = &forwards->entry[middle % NAT_FORWARDS_CELL];
		if (forward->key == key)
			return forward->to;
		if (forward->key < key)
			low = middle + 1;
		else
			high = middle;
	}
	return 0;
}

/*
 * The endpoint for which this endpoint stands at the NAT gateway in the cell, `direction` NAT_FORWARD_OUT for an inside endpoint and 0 for
 * an outside one. 0: it is not forwarded.
 */
static __always_inline __u64 nat_forward_of(__u32 cell, __u32 class, __u64 direction, __u32 address,
					    __u16 port)
{
	const struct nat_gateway *gateway = nat_gateway_at(cell);
	__u64 endpoint = (__u64)address << NAT_FORWARD_ADDRESS_SHIFT | port;

	if (!gateway || !gateway->forwards || class == NAT_ICMP)
		return 0;
	return find_nat_forward(gateway->forwards, gateway->forward_entries,
				direction | (__u64)(class == NAT_UDP) << NAT_FORWARD_UDP_SHIFT | endpoint);
}

static __always_inline __u32 nat_forward_address(__u64 endpoint)
{
	return endpoint >> NAT_FORWARD_ADDRESS_SHIFT;
}

#endif
