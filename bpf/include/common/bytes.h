/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Loads and stores of numbers at any address, and conversion of addresses between the packet's order
 * and the host's.
 *
 * Contract: the caller has checked the bounds. A MAC address is a number whose bits 40..47 are its
 * first byte (EXACT_MAC_MASK of cells.h), an IPv6 address is two halves in host order, high half
 * first. Calls no helper and uses no map.
 */
#ifndef SLUICE_BYTES_H
#define SLUICE_BYTES_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Numbers that may overlap with fields of any type. */
typedef __u16 __attribute__((may_alias)) raw_u16;
typedef __u32 __attribute__((may_alias)) raw_u32;
typedef __u64 __attribute__((may_alias)) raw_u64;

/* Network headers are aligned to two bytes at best. The supported processors allow such accesses. */
#define LOAD16(at) (*(const raw_u16 *)(at))
#define LOAD32(at) (*(const raw_u32 *)(at))
#define LOAD64(at) (*(const raw_u64 *)(at))
#define STORE16(at, value) (*(raw_u16 *)(at) = (value))
#define STORE32(at, value) (*(raw_u32 *)(at) = (value))
#define STORE64(at, value) (*(raw_u64 *)(at) = (value))

static __always_inline __u64 load_mac(const void *at)
{
	return (__u64)bpf_ntohl(LOAD32(at)) << 16 | bpf_ntohs(LOAD16(at + 4));
}

static __always_inline void store_mac(void *at, __u64 mac)
{
	STORE32(at, bpf_htonl((__u32)(mac >> 16)));
	STORE16(at + 4, bpf_htons((__u16)mac));
}

/*
 * Whether the MAC addresses at the start of two runs of 8 bytes are the same. Processors that are supported store the
 * first byte lowest, so a shift removes the last two.
 */
static __always_inline int same_mac(const void *a, const void *b)
{
	return !((LOAD64(a) ^ LOAD64(b)) << 16);
}

/*
 * Writes the MAC addresses of an Ethernet header by two stores, which take less time than four. `destination` has
 * its first byte lowest, and above bit 47 anything. `source` points to 6 bytes.
 */
static __always_inline void store_macs(void *at, __u64 destination, const void *source)
{
	STORE64(at, (destination << 16 >> 16) | (__u64)LOAD16(source) << 48);
	STORE32(at + 8, LOAD32(source + 2));
}

/* A MAC address with the first byte lowest instead of highest. */
static __always_inline __u64 mac_in_packet_order(__u64 mac)
{
	return bpf_cpu_to_be64(mac << 16);
}

/* Reads half of an IPv6 address. */
static __always_inline __u64 load_half(const void *at)
{
	return bpf_be64_to_cpu(LOAD64(at));
}

/* Reads an IPv6 address. */
static __always_inline void load_halves(__u64 *halves, const void *at)
{
	halves[0] = load_half(at);
	halves[1] = load_half(at + 8);
}

/* Writes an IPv6 address. */
static __always_inline void store_halves(void *at, const __u64 *halves)
{
	STORE64(at, bpf_cpu_to_be64(halves[0]));
	STORE64(at + 8, bpf_cpu_to_be64(halves[1]));
}

#endif
