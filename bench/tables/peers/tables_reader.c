/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads Sluice's tables in user space, by the same header as the packet
 * programs: tables-reader MAP_ID CORE [huge]. The tables are copied out of the
 * mapped array into anonymous memory of this process, so that they are in 4 KiB
 * pages as the peers' structures are; `huge` requests 2 MiB pages.
 */
#include "session.h"

#include <linux/bpf.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))

#include "layout/cells.h"

static const struct cell *tables;
static uint32_t tables_cells;

static __always_inline const void *cell_at(uint32_t index)
{
	return index < tables_cells ? &tables[index] : NULL;
}

#include "common/exact_match.h"
#include "common/lpm.h"

static void copy_tables(uint32_t map_id, int huge)
{
	union bpf_attr attr = { .map_id = map_id };
	struct bpf_map_info info = {};
	size_t bytes;
	void *from, *to;
	int map = syscall(__NR_bpf, BPF_MAP_GET_FD_BY_ID, &attr, sizeof(attr));

	if (map < 0)
		fail("no such map");
	memset(&attr, 0, sizeof(attr));
	attr.info.bpf_fd = map;
	attr.info.info_len = sizeof(info);
	attr.info.info = (uint64_t)(uintptr_t)&info;
	if (syscall(__NR_bpf, BPF_OBJ_GET_INFO_BY_FD, &attr, sizeof(attr)) || info.value_size != CELL_BYTES)
		fail("not the map of the tables");
	bytes = (size_t)info.max_entries * CELL_BYTES;
	from = mmap(NULL, bytes, PROT_READ, MAP_SHARED, map, 0);
	to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (from == MAP_FAILED || to == MAP_FAILED)
		fail("cannot map the tables");
	if (huge && madvise(to, bytes, MADV_HUGEPAGE))
		fail("no huge pages");
	memcpy(to, from, bytes);
	munmap(from, bytes);
	close(map);
	tables = to;
	tables_cells = info.max_entries;
}

static uint64_t root_of(uint32_t vni, int ipv6)
{
	const struct exact_root *root = cell_at(CELL_EXACT_ROOT);
	const struct vrf *vrf;
	uint32_t cell = 0;

	if (!root || exact_find_index(root, vni, 0, &cell) != EXACT_HIT)
		return 0;
	vrf = cell_at(cell);
	if (!vrf)
		return 0;
	return ipv6 ? vrf->lpm6 : vrf->lpm4;
}

static __always_inline uint64_t exact4(const struct exact_root *root, uint32_t vni, uint32_t address)
{
	struct exact_hit hit;

	if (!root || exact_find4(root, vni, address, &hit) != EXACT_HIT)
		return 0;
	return hit.mac + ((uint64_t)hit.next << 32);
}

static __always_inline uint64_t exact6(const struct exact_root *root, uint32_t vni,
				       const struct key_record *key)
{
	struct exact_hit hit;

	if (!root || exact_find6(root, vni, key->high, key->low, &hit) != EXACT_HIT)
		return 0;
	return hit.mac + ((uint64_t)hit.next << 32);
}

/* Keys that are looked up together if they are independent, as in DPDK's lookups. */
#define BURST 64

/*
 * Looks up the routes of a burst. All slots of the root directory are prefetched
 * before the first is read, and all cells that these lead to before the first of
 * them is read.
 */
static __always_inline void burst_routes(uint64_t root, const uint64_t *high, const uint64_t *low,
					 size_t count, int width, uint64_t *leaves)
{
	uint32_t bits = (root >> LPM_FORM_SHIFT) & 31, words[BURST];
	const uint32_t *slots = cell_at((uint32_t)root & CELL_INDEX_MASK);

	for (size_t i = 0; i < count; i++)
		__builtin_prefetch(&slots[high[i] >> (64 - bits)]);
	for (size_t i = 0; i < count; i++) {
		words[i] = READ_ONCE(slots[high[i] >> (64 - bits)]);
		__builtin_prefetch(&tables[words[i] & CELL_INDEX_MASK]);
	}
	for (size_t i = 0; i < count; i++) {
		const void *node = &tables[words[i] & CELL_INDEX_MASK];
		uint64_t rest = high[i] << bits | low[i] >> (64 - bits);
		uint32_t kind = words[i] >> LPM_KIND_SHIFT;

		if (kind == LPM_NARROW)
			leaves[i] = lpm_narrow_find(node, rest);
		else if (kind == LPM_WIDE)
			leaves[i] = lpm_wide_find(node, rest);
		else
			leaves[i] = lpm_directory_find(root, high[i], low[i], width);
	}
}

static void burst4(uint64_t root, const struct keys *keys, size_t from, size_t count, uint64_t *answers)
{
	uint64_t high[BURST], low[BURST] = {};

	for (size_t i = 0; i < count; i++)
		high[i] = (uint64_t)keys->ipv4[from + i] << 32;
	if (root && root >> LPM_FORM_SHIFT != LPM_SCAN) {
		burst_routes(root, high, low, count, 32, answers);
		return;
	}
	for (size_t i = 0; i < count; i++)
		answers[i] = lpm_find4(root, keys->ipv4[from + i]);
}

static void burst6(uint64_t root, const struct keys *keys, size_t from, size_t count, uint64_t *answers)
{
	uint64_t high[BURST], low[BURST];

	for (size_t i = 0; i < count; i++) {
		high[i] = keys->wide[from + i].high;
		low[i] = keys->wide[from + i].low;
	}
	if (root && root >> LPM_FORM_SHIFT != LPM_SCAN) {
		burst_routes(root, high, low, count, 128, answers);
		return;
	}
	for (size_t i = 0; i < count; i++)
		answers[i] = lpm_find6(root, high[i], low[i]);
}

/*
 * The timed loops of a structure: `lookup` is an expression with the index `at`, and
 * `burst` a statement that stores the answers of `count` keys from `from` on.
 */
#define TIMED(name, burst, lookup)                                                                        \
	static __attribute__((noinline)) struct tally name##_timed(const struct keys *keys, uint32_t vni, \
								   int dependent)                         \
	{                                                                                                 \
		const struct exact_root *exact = cell_at(CELL_EXACT_ROOT);                                \
		uint64_t root4 = root_of(vni, 0), root6 = root_of(vni, 1);                                \
		uint64_t answer = 1, answers[BURST];                                                      \
		struct tally tally = {};                                                                  \
                                                                                                          \
		(void)exact, (void)root4, (void)root6;                                                    \
		for (size_t from = 0; !dependent && from < keys->count; from += BURST) {                  \
			size_t count = keys->count - from;                                                \
                                                                                                          \
			count = count < BURST ? count : BURST;                                            \
			burst;                                                                            \
			for (size_t i = 0; i < count; i++)                                                \
				add_answer(&tally, from + i, answers[i]);                                 \
		}                                                                                         \
		for (size_t i = 0; dependent && i < keys->count; i++) {                                   \
			size_t at = i + chain_offset(answer);                                             \
                                                                                                          \
			answer = lookup;                                                                  \
			add_answer(&tally, i, answer);                                                    \
		}                                                                                         \
		return tally;                                                                             \
	}

/* The burst of a structure that prefetches nothing. */
#define EACH(lookup)                                 \
	do {                                         \
		for (size_t i = 0; i < count; i++) { \
			size_t at = from + i;        \
                                                     \
			answers[i] = lookup;         \
		}                                    \
	} while (0)

TIMED(lpm4, burst4(root4, keys, from, count, answers), lpm_find4(root4, keys->ipv4[at]))
TIMED(lpm6, burst6(root6, keys, from, count, answers),
      lpm_find6(root6, keys->wide[at].high, keys->wide[at].low))
TIMED(exact4, EACH(exact4(exact, vni, keys->ipv4[at])), exact4(exact, vni, keys->ipv4[at]))
TIMED(exact6, EACH(exact6(exact, vni, &keys->wide[at])), exact6(exact, vni, &keys->wide[at]))

static const struct {
	const char *name;
	struct tally (*timed)(const struct keys *keys, uint32_t vni, int dependent);
} structures[] = {
	{ "lpm4", lpm4_timed },
	{ "lpm6", lpm6_timed },
	{ "exact4", exact4_timed },
	{ "exact6", exact6_timed },
};

static void time_one(const struct keys *keys, const char *name, int dependent, uint32_t vni)
{
	for (size_t i = 0; i < sizeof(structures) / sizeof(structures[0]); i++) {
		double start = now_s();
		struct tally tally;

		if (strcmp(structures[i].name, name))
			continue;
		tally = structures[i].timed(keys, vni, dependent);
		answer_timing(now_s() - start, keys->count, &tally);
		return;
	}
	fail("no such structure");
}

int main(int argc, char **argv)
{
	char line[LINE_BYTES], *words[WORDS_MAX];
	struct keys keys = {};
	int count;

	if (argc < 3)
		fail("usage: tables-reader MAP_ID CORE [huge]");
	pin_to(atoi(argv[2]));
	copy_tables(strtoul(argv[1], NULL, 10), argc > 3 && !strcmp(argv[3], "huge"));
	while ((count = next_command(line, words)) > 0) {
		if (count == 3 && !strcmp(words[0], "keys")) {
			load_keys(&keys, words[1], strtoul(words[2], NULL, 10));
			printf("{\"count\": %zu}\n", keys.count);
			fflush(stdout);
		} else if (count == 4 && !strcmp(words[0], "time")) {
			time_one(&keys, words[1], !strcmp(words[2], "dependent"),
				 strtoul(words[3], NULL, 10));
		} else {
			fail("no such command");
		}
	}
	return 0;
}
