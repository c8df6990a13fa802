/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Source NAT in a process: its memory, and the call for a packet.
 */
#ifndef SLUICE_TESTING_NAT_H
#define SLUICE_TESTING_NAT_H

#include <stddef.h>
#include <string.h>

#include "test/nat_operation.h"

struct sluice_nat_tables {
	struct nat_config *config;
	struct nat_group *groups;
	struct nat_ports *cells;
	struct nat_tuples *tuples;
	struct session_config *sessions;
	struct session_bucket4 *buckets;
	struct session_bucket6 *buckets6;
	size_t group_count;
	size_t cell_count;
	size_t tuple_count;
	size_t bucket_count;
	size_t bucket6_count;
};

void sluice_nat_run(const struct sluice_nat_tables *tables, struct nat_test *test);

#endif
