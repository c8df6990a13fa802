/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Numbers in network headers: loads and stores of any alignment, byte order. */
#ifndef SLUICE_BYTES_H
#define SLUICE_BYTES_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Network headers are aligned to two bytes at best; the processors at hand do not mind. */
#define LOAD8(at) (*(const __u8 *)(at))
#define LOAD16(at) (*(const __u16 *)(at))
#define LOAD32(at) (*(const __u32 *)(at))
#define LOAD64(at) (*(const __u64 *)(at))
#define STORE8(at, value) (*(__u8 *)(at) = (value))
#define STORE16(at, value) (*(__u16 *)(at) = (value))
#define STORE32(at, value) (*(__u32 *)(at) = (value))
#define STORE64(at, value) (*(__u64 *)(at) = (value))

static __always_inline __u64 load_mac(const void *at)
{
	return (__u64)bpf_ntohl(LOAD32(at)) << 16 | bpf_ntohs(LOAD16(at + 4));
}

static __always_inline void store_mac(void *at, __u64 mac)
{
	STORE32(at, bpf_htonl((__u32)(mac >> 16)));
	STORE16(at + 4, bpf_htons((__u16)mac));
}

static __always_inline __u64 load_half(const void *at)
{
	return bpf_be64_to_cpu(LOAD64(at));
}

static __always_inline void store_half(void *at, __u64 half)
{
	STORE64(at, bpf_cpu_to_be64(half));
}

#endif
