/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DPDK's structures with the same routes, endpoints and keys as Sluice's:
 * dpdk-peers CORE MEGABYTES. It reads commands as described in session.h, and
 *
 *   load STRUCTURE FILE TBL8   fills the structure: {"bytes", "failed"}
 *   free STRUCTURE
 *
 * TBL8 is the number of second-level tables that the routes need, because DPDK
 * allocates all of them at creation. `bytes` is what its allocator allocated
 * meanwhile. All lookups are scalar, in bursts of 64 if the library offers
 * bursts, and one by one if they are dependent.
 */
#include "session.h"

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_fib.h>
#include <rte_fib6.h>
#include <rte_hash.h>
#include <rte_hash_crc.h>
#include <rte_lpm.h>
#include <rte_lpm6.h>
#include <rte_malloc.h>

#define BURST 64

struct route_record {
	uint64_t high;
	uint64_t low;
	uint32_t length;
	uint32_t leaf;
};

struct endpoint_record {
	uint64_t vni_address;
	uint64_t answer;
};

/* rte_lpm's next hops are shorter than a leaf; the routes here differ in these bits only. */
#define SHORT_MASK 0x1fffffu
static uint32_t scope;

static struct rte_fib *fib;
static int fib_lookup_chosen; /* the lookup function was chosen for the present keys */
static struct rte_fib6 *fib6;
static struct rte_lpm *lpm;
static struct rte_lpm6 *lpm6;
static struct rte_hash *hash;

static size_t allocated(void)
{
	struct rte_malloc_socket_stats stats;
	size_t bytes = 0;

	for (int socket = 0; socket < RTE_MAX_NUMA_NODES; socket++)
		if (!rte_malloc_get_socket_stats(socket, &stats))
			bytes += stats.heap_allocsz_bytes;
	return bytes;
}

static void ipv6_of(const struct route_record *route, uint8_t *to)
{
	struct key_record key = { route->high, route->low };

	network_order(&key, to);
}

static size_t load_fib(const struct route_record *routes, size_t count, uint32_t tbl8)
{
	struct rte_fib_conf config = { .type = RTE_FIB_DIR24_8, .default_nh = 0, .max_routes = count };
	size_t failed = 0;

	config.dir24_8.nh_sz = RTE_FIB_DIR24_8_4B;
	config.dir24_8.num_tbl8 = tbl8;
	fib = rte_fib_create("fib", SOCKET_ID_ANY, &config);
	if (!fib)
		fail("rte_fib_create failed");
	for (size_t i = 0; i < count; i++)
		failed += rte_fib_add(fib, routes[i].low, routes[i].length, routes[i].leaf) != 0;
	return failed;
}

static size_t load_fib6(const struct route_record *routes, size_t count, uint32_t tbl8)
{
	struct rte_fib6_conf config = { .type = RTE_FIB6_TRIE, .default_nh = 0, .max_routes = count };
	size_t failed = 0;
	uint8_t address[16];

	config.trie.nh_sz = RTE_FIB6_TRIE_4B;
	config.trie.num_tbl8 = tbl8;
	fib6 = rte_fib6_create("fib6", SOCKET_ID_ANY, &config);
	if (!fib6)
		fail("rte_fib6_create failed");
	if (rte_fib6_select_lookup(fib6, RTE_FIB6_LOOKUP_TRIE_SCALAR))
		fail("rte_fib6 has no scalar lookup");
	for (size_t i = 0; i < count; i++) {
		ipv6_of(&routes[i], address);
		failed += rte_fib6_add(fib6, address, routes[i].length, routes[i].leaf) != 0;
	}
	return failed;
}

/*
 * Writes routes of up to 24 bits to the first table as rte_lpm_add does, without
 * its list of rules. No lookup reads the list, but each new rule searches all of
 * it, which takes minutes for a million routes.
 */
static void load_lpm_short(const struct route_record *routes, size_t count, uint32_t length)
{
	for (size_t i = 0; i < count; i++) {
		struct rte_lpm_tbl_entry entry = {
			.next_hop = routes[i].leaf & SHORT_MASK,
			.valid = 1,
			.depth = length,
		};
		uint32_t first = routes[i].low >> 8, covered = 1u << (24 - length);

		for (uint32_t at = 0; routes[i].length == length && at < covered; at++)
			lpm->tbl24[first + at] = entry;
	}
}

static size_t load_lpm(const struct route_record *routes, size_t count, uint32_t tbl8)
{
	struct rte_lpm_config config = { .max_rules = count, .number_tbl8s = tbl8 };
	size_t failed = 0;

	lpm = rte_lpm_create("lpm", SOCKET_ID_ANY, &config);
	if (!lpm)
		fail("rte_lpm_create failed");
	/* Longer routes come later and replace shorter ones. */
	for (uint32_t length = 1; length <= 24; length++)
		load_lpm_short(routes, count, length);
	for (size_t i = 0; i < count; i++)
		failed += routes[i].length > 24 &&
			  rte_lpm_add(lpm, routes[i].low, routes[i].length, routes[i].leaf & SHORT_MASK) != 0;
	scope = count ? routes[0].leaf & ~SHORT_MASK : 0;
	return failed;
}

static size_t load_lpm6(const struct route_record *routes, size_t count, uint32_t tbl8)
{
	struct rte_lpm6_config config = { .max_rules = count, .number_tbl8s = tbl8 };
	size_t failed = 0;
	uint8_t address[16];

	lpm6 = rte_lpm6_create("lpm6", SOCKET_ID_ANY, &config);
	if (!lpm6)
		fail("rte_lpm6_create failed");
	for (size_t i = 0; i < count; i++) {
		ipv6_of(&routes[i], address);
		failed += rte_lpm6_add(lpm6, address, routes[i].length, routes[i].leaf & SHORT_MASK) != 0;
	}
	scope = count ? routes[0].leaf & ~SHORT_MASK : 0;
	return failed;
}

/* The value is stored in the pointer of a slot, so that a hit needs no further access. */
static size_t load_hash(const struct endpoint_record *endpoints, size_t count)
{
	struct rte_hash_parameters parameters = {
		.name = "hash",
		.entries = count,
		.key_len = sizeof(uint64_t),
		.hash_func = rte_hash_crc,
		.socket_id = SOCKET_ID_ANY,
	};
	size_t failed = 0;

	hash = rte_hash_create(&parameters);
	if (!hash)
		fail("rte_hash_create failed");
	for (size_t i = 0; i < count; i++)
		failed += rte_hash_add_key_data(hash, &endpoints[i].vni_address,
						(void *)(uintptr_t)endpoints[i].answer) != 0;
	return failed;
}

static void load(const char *name, const char *path, uint32_t tbl8)
{
	int is_hash = !strcmp(name, "rte_hash");
	size_t count, failed = 0, before = allocated();
	void *records = read_records(
		path, is_hash ? sizeof(struct endpoint_record) : sizeof(struct route_record), &count);

	if (is_hash)
		failed = load_hash(records, count);
	else if (!strcmp(name, "rte_fib"))
		failed = load_fib(records, count, tbl8);
	else if (!strcmp(name, "rte_fib6"))
		failed = load_fib6(records, count, tbl8);
	else if (!strcmp(name, "rte_lpm"))
		failed = load_lpm(records, count, tbl8);
	else if (!strcmp(name, "rte_lpm6"))
		failed = load_lpm6(records, count, tbl8);
	else
		fail("no such structure");
	printf("{\"bytes\": %zu, \"failed\": %zu}\n", allocated() - before, failed);
	fflush(stdout);
	free(records);
}

static void release(const char *name)
{
	if (!strcmp(name, "rte_fib"))
		rte_fib_free(fib);
	else if (!strcmp(name, "rte_fib6"))
		rte_fib6_free(fib6);
	else if (!strcmp(name, "rte_lpm"))
		rte_lpm_free(lpm);
	else if (!strcmp(name, "rte_lpm6"))
		rte_lpm6_free(lpm6);
	else if (!strcmp(name, "rte_hash"))
		rte_hash_free(hash);
	else
		fail("no such structure");
	printf("{}\n");
	fflush(stdout);
}

/* Answers of `n` keys from `at` on; n is at most BURST. */
typedef void (*burst_fn)(const struct keys *keys, size_t at, unsigned int n, uint64_t *answers);

static inline void fib_burst(const struct keys *keys, size_t at, unsigned int n, uint64_t *answers)
{
	rte_fib_lookup_bulk(fib, &keys->ipv4[at], answers, n);
}

static inline void fib6_burst(const struct keys *keys, size_t at, unsigned int n, uint64_t *answers)
{
	rte_fib6_lookup_bulk(fib6, &keys->ipv6[at], answers, n);
}

static inline void lpm_burst(const struct keys *keys, size_t at, unsigned int n, uint64_t *answers)
{
	uint32_t hops[BURST];

	rte_lpm_lookup_bulk(lpm, &keys->ipv4[at], hops, n);
	for (unsigned int i = 0; i < n; i++)
		answers[i] = hops[i] & RTE_LPM_LOOKUP_SUCCESS ? scope | (hops[i] & SHORT_MASK) : 0;
}

static inline void lpm_single(const struct keys *keys, size_t at, unsigned int n, uint64_t *answers)
{
	uint32_t hop;

	for (unsigned int i = 0; i < n; i++)
		answers[i] = rte_lpm_lookup(lpm, keys->ipv4[at + i], &hop) ? 0 : scope | hop;
}

static inline void lpm6_burst(const struct keys *keys, size_t at, unsigned int n, uint64_t *answers)
{
	int32_t hops[BURST];

	rte_lpm6_lookup_bulk_func(lpm6, &keys->ipv6[at], hops, n);
	for (unsigned int i = 0; i < n; i++)
		answers[i] = hops[i] >= 0 ? scope | (uint32_t)hops[i] : 0;
}

static inline void lpm6_single(const struct keys *keys, size_t at, unsigned int n, uint64_t *answers)
{
	uint32_t hop;

	for (unsigned int i = 0; i < n; i++)
		answers[i] = rte_lpm6_lookup(lpm6, keys->ipv6[at + i], &hop) ? 0 : scope | hop;
}

static inline void hash_burst(const struct keys *keys, size_t at, unsigned int n, uint64_t *answers)
{
	const void *wanted[BURST];
	void *data[BURST];
	uint64_t hits = 0;

	for (unsigned int i = 0; i < n; i++)
		wanted[i] = &keys->vni_address[at + i];
	rte_hash_lookup_bulk_data(hash, wanted, n, &hits, data);
	for (unsigned int i = 0; i < n; i++)
		answers[i] = hits >> i & 1 ? (uint64_t)(uintptr_t)data[i] : 0;
}

static inline void hash_single(const struct keys *keys, size_t at, unsigned int n, uint64_t *answers)
{
	void *data;

	for (unsigned int i = 0; i < n; i++)
		answers[i] = rte_hash_lookup_data(hash, &keys->vni_address[at + i], &data) < 0
				   ? 0
				   : (uint64_t)(uintptr_t)data;
}

/* `single` is the library's lookup of one key, or a burst of one if it has none. */
static __rte_always_inline struct tally timed(const struct keys *keys, int dependent, burst_fn burst,
					      burst_fn single)
{
	uint64_t answers[BURST];
	struct tally tally = {};

	if (dependent) {
		answers[0] = 1;
		for (size_t i = 0; i < keys->count; i++) {
			single(keys, i + chain_offset(answers[0]), 1, answers);
			add_answer(&tally, i, answers[0]);
		}
		return tally;
	}
	for (size_t at = 0; at < keys->count; at += BURST) {
		unsigned int n = RTE_MIN(keys->count - at, (size_t)BURST);

		burst(keys, at, n, answers);
		for (unsigned int i = 0; i < n; i++)
			add_answer(&tally, at + i, answers[i]);
	}
	return tally;
}

static struct tally time_fib(const struct keys *keys, int dependent)
{
	return timed(keys, dependent, fib_burst, fib_burst);
}

static struct tally time_fib6(const struct keys *keys, int dependent)
{
	return timed(keys, dependent, fib6_burst, fib6_burst);
}

static struct tally time_lpm(const struct keys *keys, int dependent)
{
	return timed(keys, dependent, lpm_burst, lpm_single);
}

static struct tally time_lpm6(const struct keys *keys, int dependent)
{
	return timed(keys, dependent, lpm6_burst, lpm6_single);
}

static struct tally time_hash(const struct keys *keys, int dependent)
{
	return timed(keys, dependent, hash_burst, hash_single);
}

static struct tally time_hash_single(const struct keys *keys, int dependent)
{
	return timed(keys, dependent, hash_single, hash_single);
}

static const struct {
	const char *name;
	struct tally (*timed)(const struct keys *keys, int dependent);
} structures[] = {
	{ "rte_fib", time_fib },   { "rte_fib6", time_fib6 }, { "rte_lpm", time_lpm },
	{ "rte_lpm6", time_lpm6 }, { "rte_hash", time_hash }, { "rte_hash_single", time_hash_single },
};

/*
 * Chooses the fastest of rte_fib's scalar lookups on these keys, in the round that
 * does not count: right before another timing it would warm the caches for that.
 */
static void choose_fib_lookup(const struct keys *keys)
{
	static const enum rte_fib_lookup_type types[] = {
		RTE_FIB_LOOKUP_DIR24_8_SCALAR_MACRO,
		RTE_FIB_LOOKUP_DIR24_8_SCALAR_INLINE,
		RTE_FIB_LOOKUP_DIR24_8_SCALAR_UNI,
	};
	double best_s = 0;
	int best = -1;

	for (size_t i = 0; i < RTE_DIM(types); i++) {
		double start = now_s(), seconds;

		if (rte_fib_select_lookup(fib, types[i]))
			continue;
		time_fib(keys, 0);
		seconds = now_s() - start;
		if (best < 0 || seconds < best_s) {
			best_s = seconds;
			best = i;
		}
	}
	if (best < 0 || rte_fib_select_lookup(fib, types[best]))
		fail("rte_fib has no scalar lookup");
	fib_lookup_chosen = 1;
}

static void time_one(const struct keys *keys, const char *name, int dependent)
{
	for (size_t i = 0; i < RTE_DIM(structures); i++) {
		struct tally tally;
		double start;

		if (strcmp(structures[i].name, name))
			continue;
		if (!strcmp(name, "rte_fib") && !fib_lookup_chosen)
			choose_fib_lookup(keys);
		start = now_s();
		tally = structures[i].timed(keys, dependent);
		answer_timing(now_s() - start, keys->count, &tally);
		return;
	}
	fail("no such structure");
}

static void start_eal(const char *core, const char *megabytes)
{
	char *arguments[] = { "dpdk-peers",
			      "--no-huge",
			      "--no-pci",
			      "--no-shconf",
			      "--no-telemetry",
			      "--log-level=error",
			      "-l",
			      (char *)core,
			      "-m",
			      (char *)megabytes,
			      NULL };

	if (rte_eal_init(RTE_DIM(arguments) - 1, arguments) < 0)
		fail("rte_eal_init failed");
}

int main(int argc, char **argv)
{
	char line[LINE_BYTES], *words[WORDS_MAX];
	struct keys keys = {};
	int count;

	if (argc != 3)
		fail("usage: dpdk-peers CORE MEGABYTES");
	start_eal(argv[1], argv[2]);
	while ((count = next_command(line, words)) > 0) {
		if (count == 3 && !strcmp(words[0], "keys")) {
			load_keys(&keys, words[1], strtoul(words[2], NULL, 10));
			fib_lookup_chosen = 0;
			printf("{\"count\": %zu}\n", keys.count);
			fflush(stdout);
		} else if (count == 4 && !strcmp(words[0], "time")) {
			time_one(&keys, words[1], !strcmp(words[2], "dependent"));
		} else if (count == 4 && !strcmp(words[0], "load")) {
			load(words[1], words[2], strtoul(words[3], NULL, 10));
		} else if (count == 2 && !strcmp(words[0], "free")) {
			release(words[1]);
		} else {
			fail("no such command");
		}
	}
	return 0;
}
