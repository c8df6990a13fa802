/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * A model of the kernel as the packet programs see it: maps, time, and a packet
 * with a linear part and possibly a part in page fragments. xdp.h and skb.h add
 * the helpers of one program type each.
 *
 * The programs' contexts hold packet addresses in 32 bits, so the linear part is
 * below 4 GiB. The memory around it is poisoned, so that AddressSanitizer
 * detects an access one byte outside of the packet.
 */
#ifndef SLUICE_FUZZ_KERNEL_H
#define SLUICE_FUZZ_KERNEL_H

#include <sanitizer/asan_interface.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <bpf/bpf_helpers.h>

#include "../bpf/include/common/maps.h"

#define ARENA ((uint8_t *)0x20000000)
#define ARENA_BYTES (64 * 1024)
#define HEADROOM 256
#define PACKET_MAX 16384

#define PATCH_BYTES 4
#define PATCHES_MAX 16
#define CELLS_MAX 16384

static struct {
	uint8_t fragments[PACKET_MAX]; /* bytes of the packet behind its linear part */
	uint32_t fragment_bytes;
	uint64_t now_ns;
	int ring_full;
	int reserved;	     /* a record is reserved and not yet submitted */
	uint32_t posted;     /* number of submitted records */
	uint8_t record[256]; /* the last submitted record */
} kernel;

static struct cell tables[CELLS_MAX], pristine[CELLS_MAX];
static uint32_t cells_used;
static uint64_t drop_counts[DROP_REASONS_MAX], vni_count = 1;
static struct traffic traffic_count;
static struct token_bucket bucket;

/* Finds an element of a map that only this fuzz target has. */
static void *own_map(const void *map, uint32_t index);

void *bpf_map_lookup_elem(void *map, const void *key)
{
	uint32_t index;

	memcpy(&index, key, sizeof(index));
	if (map == &cells)
		return index < CELLS_MAX ? &tables[index] : NULL;
	if (map == &drops)
		return index < DROP_REASONS_MAX ? &drop_counts[index] : NULL;
	if (map == &vni_traffic)
		return index < VNI_COUNTERS_MAX ? &traffic_count : NULL;
	if (map == &icmp_budget)
		return index < VNI_COUNTERS_MAX ? &bucket : NULL;
	return map == &vni_drops ? &vni_count : own_map(map, index);
}

long bpf_map_update_elem(void *map, const void *key, const void *value, __u64 flags)
{
	(void)key;
	(void)value;
	return map == &vni_drops && flags == BPF_NOEXIST ? 0 : -22;
}

static void fail(const char *what)
{
	fprintf(stderr, "contract broken: %s\n", what);
	abort();
}

/* Prepares the fuzz target after its tables were read, before the first packet. */
static void prepare(void);

/* Reads the image of the tables from the file SLUICE_FUZZ_TABLES, which crates/datapath/tests/fuzz writes. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const char *path = getenv("SLUICE_FUZZ_TABLES");
	FILE *file = path ? fopen(path, "rb") : NULL;

	(void)argc;
	(void)argv;
	if (!file) {
		fprintf(stderr, "SLUICE_FUZZ_TABLES must name a file with an image of the tables\n");
		exit(1);
	}
	cells_used = fread(pristine, sizeof(struct cell), CELLS_MAX, file);
	fclose(file);
	if (cells_used <= CELL_FIRST_FREE) {
		fprintf(stderr, "%s is empty or truncated: it has no tables\n", path);
		exit(1);
	}
	memcpy(tables, pristine, sizeof(tables));
	if (mmap(ARENA, ARENA_BYTES, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != ARENA) {
		perror("mmap");
		exit(1);
	}
	prepare();
	return 0;
}

/* Changes bytes of the tables. A patch is the number of a cell (2 bytes), of a byte in it, and a mask. */
static void patch(const uint8_t *patches, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const uint8_t *at = patches + i * PATCH_BYTES;
		uint32_t cell = (at[0] | at[1] << 8) % cells_used;

		((uint8_t *)&tables[cell])[at[2] % CELL_BYTES] ^= at[3];
	}
}

/* Residue of an Internet checksum (RFC 1071), computed without the code under test: 0 if it is right. */
static uint16_t residue(const uint8_t *bytes, uint32_t length, uint32_t sum)
{
	for (uint32_t i = 0; i < length; i++)
		sum += i & 1 ? bytes[i] : bytes[i] << 8;
	return sum % 65535;
}

/* Allows access to the linear part, from `data` to `end`, and to nothing else. */
static void poison(uint32_t data, uint32_t end)
{
	ASAN_UNPOISON_MEMORY_REGION(ARENA, ARENA_BYTES);
	ASAN_POISON_MEMORY_REGION(ARENA, (uint8_t *)(uintptr_t)data - ARENA);
	ASAN_POISON_MEMORY_REGION((uint8_t *)(uintptr_t)end, ARENA + ARENA_BYTES - (uint8_t *)(uintptr_t)end);
}

/* Copies `length` bytes at `offset` of the packet, whose linear part is `linear` bytes at `data`. */
static long load_bytes(uint32_t data, uint32_t linear, uint32_t offset, void *to, uint32_t length)
{
	uint32_t total = linear + kernel.fragment_bytes, first = 0;

	if (!length)
		abort(); /* the verifier would reject this call */
	if (offset > total || length > total - offset)
		return -22;
	if (offset < linear) {
		first = length < linear - offset ? length : linear - offset;
		memcpy(to, (void *)(uintptr_t)(data + offset), first);
		offset += first;
	}
	if (first < length)
		memcpy((uint8_t *)to + first, kernel.fragments + (offset - linear), length - first);
	return 0;
}

/* Stores a packet whose first `linear` bytes are linear. Returns its address. */
static uint32_t lay_out(const uint8_t *bytes, uint32_t length, uint32_t linear)
{
	uint32_t data = (uint32_t)(uintptr_t)ARENA + HEADROOM;

	ASAN_UNPOISON_MEMORY_REGION(ARENA, ARENA_BYTES);
	memcpy((void *)(uintptr_t)data, bytes, linear);
	memcpy(kernel.fragments, bytes + linear, length - linear);
	kernel.fragment_bytes = length - linear;
	poison(data, data + linear);
	return data;
}

__s64 bpf_csum_diff(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __wsum seed)
{
	uint64_t sum = seed;

	if (from_size % 4 || to_size % 4 || from_size + to_size > 512)
		abort();
	for (uint32_t i = 0; i < from_size / 4; i++)
		sum += (uint32_t)~from[i];
	for (uint32_t i = 0; i < to_size / 4; i++)
		sum += to[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (uint32_t)((sum & 0xffffffff) + (sum >> 32));
}

/* All records share one buffer. Its pattern shows which fields a program does not write. */
void *bpf_ringbuf_reserve(void *ring, __u64 bytes, __u64 flags)
{
	(void)ring;
	if (flags || bytes > sizeof(kernel.record) || kernel.reserved)
		abort();
	if (kernel.ring_full)
		return NULL;
	memset(kernel.record, 0xa5, sizeof(kernel.record));
	kernel.reserved = 1;
	return kernel.record;
}

void bpf_ringbuf_submit(void *record, __u64 flags)
{
	if (record != kernel.record || !kernel.reserved || flags)
		abort();
	kernel.reserved = 0;
	kernel.posted += 1;
}

__u64 bpf_ringbuf_query(void *ring, __u64 flags)
{
	(void)ring;
	if (flags != BPF_RB_AVAIL_DATA)
		abort();
	return kernel.ring_full ? UINT32_MAX : 0;
}

long bpf_ringbuf_output(void *ring, void *data, __u64 bytes, __u64 flags)
{
	void *record = bpf_ringbuf_reserve(ring, bytes, flags);

	if (!record)
		return -11;
	memcpy(record, data, bytes);
	bpf_ringbuf_submit(record, flags);
	return 0;
}

__u64 bpf_ktime_get_ns(void)
{
	return kernel.now_ns;
}

__u64 bpf_ktime_get_coarse_ns(void)
{
	return kernel.now_ns;
}

__u64 bpf_jiffies64(void)
{
	return kernel.now_ns / 4000000;
}

/* Depends on the time only, so that a run can be repeated. */
__u32 bpf_get_prandom_u32(void)
{
	return kernel.now_ns * 0x9e3779b97f4a7c15ull >> 32;
}

#endif
