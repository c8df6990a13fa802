/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The NAT tables of the fuzz targets of the gateway's programs: room for one public address, that of the NAT gateway in the
 * tables of kernel.h, with a few sessions of one instance. They are the same for each packet.
 */
#ifndef SLUICE_FUZZ_NAT_TABLES_H
#define SLUICE_FUZZ_NAT_TABLES_H

#include "kernel.h"

#define NAT_SHIFT 6
#define NAT_GROUPS (1 << (NAT_BLOCK_SHIFT_MAX - NAT_SHIFT))
#define NAT_CELLS (NAT_CLASSES * NAT_PORTS / NAT_CELL_PORTS)
#define NAT_BUCKETS 16
#define NAT_INSIDE 0x0a01000d /* 10.1.0.13 */
#define NAT_REMOTE 0xc6130050 /* REMOTE4 of the fixtures */

/* Small tables, which are copied for each packet. */
static struct nat_small {
	struct nat_config config;
	struct session_config sessions;
	struct nat_group groups[NAT_GROUPS];
	struct session_bucket4 buckets[NAT_BUCKETS];
	struct session_bucket6 buckets6[NAT_BUCKETS]; /* of NAT64 */
} nat_small, nat_small_pristine;

/* Large ones, of which what a packet may have changed is put back. */
static struct nat_ports nat_cells[NAT_CELLS];
static struct nat_tuples nat_buckets[NAT_BUCKETS];
static struct nat_fragment nat_entries[NAT_FRAGMENTS];
static struct nat_saved {
	void *at;
	struct nat_ports ports; /* the largest of both */
	size_t bytes;
} nat_saved[1024];
static uint32_t nat_saved_count;
static uint64_t nat_ring_count[NAT_RING_COUNTS];

/* Memory of the program. Its content is not defined when a packet arrives. */
static struct nat_memory nat_program_memory;
/* Outside ports of the sessions of UDP and TCP. */
static uint16_t nat_outside_udp, nat_outside_tcp;

static void *nat_save(void *at, size_t bytes)
{
	struct nat_saved *saved = &nat_saved[nat_saved_count++];

	if (nat_saved_count == sizeof(nat_saved) / sizeof(*nat_saved))
		fail("a packet reads too much of the NAT tables");
	saved->at = at;
	saved->bytes = bytes;
	memcpy(&saved->ports, at, bytes);
	return at;
}

/* Finds an element of a map of source NAT. */
static void *find_nat(const void *map, uint32_t index)
{
	if (map == &nat_packets)
		return index ? NULL : &nat_program_memory;
	if (map == &nat_config)
		return index ? NULL : &nat_small.config;
	if (map == &session_config)
		return index ? NULL : &nat_small.sessions;
	if (map == &nat_groups)
		return index < NAT_GROUPS ? &nat_small.groups[index] : NULL;
	if (map == &sessions4)
		return index < NAT_BUCKETS ? &nat_small.buckets[index] : NULL;
	if (map == &sessions6)
		return index < NAT_BUCKETS ? &nat_small.buckets6[index] : NULL;
	if (map == &nat_ports)
		return index < NAT_CELLS ? nat_save(&nat_cells[index], sizeof(*nat_cells)) : NULL;
	if (map == &nat_tuples)
		return index < NAT_BUCKETS ? nat_save(&nat_buckets[index], sizeof(*nat_buckets)) : NULL;
	if (map == &nat_ring_counts)
		return index < NAT_RING_COUNTS ? &nat_ring_count[index] : NULL;
	if (map == &nat_fragments)
		return index < NAT_FRAGMENTS ? nat_save(&nat_entries[index], sizeof(*nat_entries)) : NULL;
	return NULL;
}

/* Puts everything back as it was before the first packet. */
static void begin_nat(void)
{
	while (nat_saved_count) {
		const struct nat_saved *saved = &nat_saved[--nat_saved_count];

		memcpy(saved->at, &saved->ports, saved->bytes);
	}
	memcpy(&nat_small, &nat_small_pristine, sizeof(nat_small));
	memset(&nat_program_memory, 0xa5, sizeof(nat_program_memory));
	memset(nat_ring_count, 0, sizeof(nat_ring_count));
}

/* Begins a session of the instance. Returns its outside port. */
static uint16_t nat_begin_session(const struct nat_gateway *gateway, uint8_t protocol, uint16_t inside_port,
				  uint16_t remote_port)
{
	struct nat_packet *packet = &nat_program_memory.packet;

	memset(packet, 0, sizeof(*packet));
	packet->pool = gateway->pool;
	packet->vni = gateway->vni;
	packet->inside[1] = NAT_INSIDE;
	packet->inside_port = inside_port;
	packet->remote = NAT_REMOTE;
	packet->remote_port = remote_port;
	packet->protocol = protocol;
	packet->tcp_flags = protocol == IPPROTO_TCP ? SESSION_TCP_SYN : 0;
	if (nat_out(packet) != NAT_BEGUN)
		fail("a session of the fuzz target");
	return packet->outside_port;
}

/* Lays out the tables for the NAT gateway in the tables of cells. */
static void prepare_nat(void)
{
	const struct nat_gateway *gateway = NULL;
	uint32_t outside = 0, *timeouts = (uint32_t *)&nat_small.sessions.timeouts;

	for (uint32_t cell = CELL_FIRST_FREE; cell < cells_used; cell++) {
		const struct public_prefix *public = (void *)&pristine[cell];

		uint32_t behind = *(const uint32_t *)public->inside;

		if (public->kind != NEXT_HOP_PUBLIC || !(public->flags & PUBLIC_NAT) ||
		    behind >= cells_used || ((struct nat_gateway *)&pristine[behind])->kind != NEXT_HOP_NAT)
			continue;
		outside = bpf_ntohl(*(const uint32_t *)public->outside);
		gateway = (void *)&pristine[behind];
	}
	if (!gateway)
		fail("the tables have no NAT gateway");
	for (uint32_t i = 0; i < SESSION_KEY6_WORDS; i++)
		nat_small.sessions.hash_key[i] = 0x9e3779b97f4a7c15ull * (i + 1);
	nat_small.sessions.buckets4 = NAT_BUCKETS;
	nat_small.sessions.buckets6 = NAT_BUCKETS;
	nat_small.sessions.flags = SESSION_RST_IN_DOUBT;
	for (uint32_t i = 0; i < sizeof(struct session_timeouts) / sizeof(*timeouts); i++)
		timeouts[i] = 800;
	nat_small.config.groups = NAT_GROUPS;
	nat_small.config.block_shift = NAT_SHIFT;
	nat_small.config.round = 1;
	for (uint32_t i = 0; i < NAT_GROUPS; i++)
		nat_small.groups[i].outside = outside;
	/* The ports below NAT_PORT_MIN. */
	for (uint32_t i = 0; i < NAT_PORT_MIN >> NAT_SHIFT; i++)
		nat_small.groups[0].word[i] = NAT_WITHHELD;
	nat_outside_udp = nat_begin_session(gateway, IPPROTO_UDP, 7000, 4000);
	nat_begin_session(gateway, IPPROTO_UDP, 7000, 2);
	nat_outside_tcp = nat_begin_session(gateway, IPPROTO_TCP, 7001, 33000);
	nat_saved_count = 0;
	memcpy(&nat_small_pristine, &nat_small, sizeof(nat_small));
}

#endif
