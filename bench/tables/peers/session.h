/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the measured programs of user space. They read commands as lines on
 * standard input and answer each with one line of JSON, so that the measuring
 * program can alternate between them:
 *
 *   keys FILE VNI     sets the keys of all later timings: struct key_record
 *   time STRUCTURE independent|dependent VNI
 *
 * A program may have further commands. A timing answers with the nanoseconds of
 * a lookup, the sum of all answers, each multiplied by its number from 1, and
 * the number of answers that were not 0.
 */
#ifndef SLUICE_BENCH_SESSION_H
#define SLUICE_BENCH_SESSION_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE_BYTES 4096
#define WORDS_MAX 8

/* An address as host-order halves; IPv4 is in `low`. */
struct key_record {
	uint64_t high;
	uint64_t low;
};

struct keys {
	size_t count;
	struct key_record *wide;
	uint32_t *ipv4;	       /* host order */
	uint8_t (*ipv6)[16];   /* network order */
	uint64_t *vni_address; /* VNI in the high half, IPv4 in the low one */
};

/* Result of a timed loop. */
struct tally {
	uint64_t sum;
	uint64_t found;
};

/*
 * Offset of the next key of a chain: 0, except after the answer "not found", which
 * no key of a chain has. So the processor cannot predict the next key and fetch
 * ahead what the next lookups need.
 */
static inline size_t chain_offset(uint64_t answer)
{
	return (answer - 1) >> 63 << 16;
}

static inline void add_answer(struct tally *tally, size_t i, uint64_t answer)
{
	tally->sum += answer * (i + 1);
	tally->found += answer != 0;
}

/* Processor time of this thread, without the time of other processes on the core. */
static inline double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static inline __attribute__((noreturn)) void fail(const char *what)
{
	printf("{\"error\": \"%s\"}\n", what);
	fflush(stdout);
	exit(1);
}

/* Reads all records of a file and stores their number in *count. */
static inline void *read_records(const char *path, size_t bytes, size_t *count)
{
	FILE *file = fopen(path, "rb");
	void *records;
	long size = -1;

	if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0)
		fail("cannot open a file of records");
	rewind(file);
	*count = size / bytes;
	records = malloc(size ? size : 1);
	if (!records || fread(records, bytes, *count, file) != *count)
		fail("cannot read a file of records");
	fclose(file);
	return records;
}

static inline void *allocate(size_t count, size_t bytes)
{
	void *memory = malloc(count * bytes + 1);

	if (!memory)
		fail("out of memory");
	return memory;
}

static inline void network_order(const struct key_record *key, uint8_t *to)
{
	uint64_t halves[2] = { __builtin_bswap64(key->high), __builtin_bswap64(key->low) };

	memcpy(to, halves, 16);
}

/* Loads the keys; `vni` is that of the keys of an exact match. */
static inline void load_keys(struct keys *keys, const char *path, uint32_t vni)
{
	free(keys->wide);
	free(keys->ipv4);
	free(keys->ipv6);
	free(keys->vni_address);
	keys->wide = read_records(path, sizeof(*keys->wide), &keys->count);
	keys->ipv4 = allocate(keys->count, sizeof(*keys->ipv4));
	keys->ipv6 = allocate(keys->count, sizeof(*keys->ipv6));
	keys->vni_address = allocate(keys->count, sizeof(*keys->vni_address));
	for (size_t i = 0; i < keys->count; i++) {
		keys->ipv4[i] = keys->wide[i].low;
		network_order(&keys->wide[i], keys->ipv6[i]);
		keys->vni_address[i] = (uint64_t)vni << 32 | (uint32_t)keys->wide[i].low;
	}
}

/* Reads the next line and splits it at spaces. Returns the number of words, 0 at the end. */
static inline int next_command(char *line, char **words)
{
	int count = 0;

	if (!fgets(line, LINE_BYTES, stdin))
		return 0;
	for (char *word = strtok(line, " \n"); word && count < WORDS_MAX; word = strtok(NULL, " \n"))
		words[count++] = word;
	return count;
}

static inline void answer_timing(double seconds, size_t count, const struct tally *tally)
{
	printf("{\"ns\": %.4f, \"sum\": %" PRIu64 ", \"found\": %" PRIu64 "}\n",
	       seconds * 1e9 / (count ? count : 1), tally->sum, tally->found);
	fflush(stdout);
}

static inline void pin_to(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		fail("cannot pin the process to its core");
}

#endif
