/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: the slots of IPv4 vIPs (struct vip_slot in cells.h).
 *
 * Contract: is_vip4() is true only for a vIP of this cluster and its vMAC. False says nothing: the packet may have been
 * sent to the MAC address of an underlay port, which owner_of4() (address_owner.h) knows. Reads only the map `cells`.
 */
#ifndef SLUICE_VIP_SLOTS_H
#define SLUICE_VIP_SLOTS_H

#include "common/bytes.h"
#include "common/lookup.h"

/* Index of the slot of a vIP, given in host order: addresses that follow each other have different ones. */
static __always_inline __u32 vip_slot_index(__u32 address)
{
	return (address + (address >> 6)) % VIP_SLOTS;
}

#define VIP_SLOTS_PER_CELL (CELL_BYTES / sizeof(struct vip_slot))

/* The vIP has a slot of its own. `mac` points to 8 bytes that begin with the MAC address. */
static __always_inline int is_in_vip_slot(__be32 address, const void *mac)
{
	__u32 index = vip_slot_index(bpf_ntohl(address));
	const struct vip_slot *slots = cell_at(CELL_VIPS + index / VIP_SLOTS_PER_CELL);
	const struct vip_slot *slot = slots ? &slots[index % VIP_SLOTS_PER_CELL] : NULL;

	/* An empty slot has address 0. */
	return slot && address && READ_ONCE(slot->address) == address && same_mac(slot->mac, mac);
}

/* The entry of a vIP in the exact match, for those without a slot. `mac` is 8 bytes of the packet. */
__attribute__((noinline)) int is_vip_entry(__be32 address, __u64 mac)
{
	const struct exact_root *root = cell_at(CELL_EXACT_ROOT);
	const struct next_hop *hop;
	__u64 value;
	__u32 next;

	if (!root || !exact_find_entry(root, exact_key(EXACT_IPV4, 0, bpf_ntohl(address)), &value, &next))
		return 0;
	hop = next_hop_at(next & CELL_INDEX_MASK, NEXT_HOP_VIP);
	return hop && !((LOAD64(hop->mac) ^ mac) << 16);
}

/* `address` is in network order; `mac` points to 8 bytes of the packet that begin with the MAC address. */
static __always_inline int is_vip4(__be32 address, const void *mac)
{
	return is_in_vip_slot(address, mac) || is_vip_entry(address, LOAD64(mac));
}

#endif
