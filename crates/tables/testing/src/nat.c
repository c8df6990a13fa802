// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The packets' side of source NAT in a process: the functions of nat.h and nat_install.h.
 */
#include "scheduled.h"

#include "layout/nat_layout.h"
#include "layout/session_layout.h"
#include "nat.h"

/* The tables of the packet that is running. All packets on one thread use the same tables. */
static _Thread_local struct sluice_nat_tables current;

static struct session_bucket4 *session_bucket4_at(__u32 index)
{
	return index < current.bucket_count ? &current.buckets[index] : NULL;
}

static struct session_bucket6 *session_bucket6_at(__u32 index)
{
	return index < current.bucket6_count ? &current.buckets6[index] : NULL;
}

static struct session_config *session_config_at(void)
{
	return current.sessions;
}

static struct nat_config *nat_config_at(void)
{
	return current.config;
}

static struct nat_group *nat_group_at(__u32 index)
{
	return index < current.group_count ? &current.groups[index] : NULL;
}

static struct nat_ports *nat_ports_at(__u32 index)
{
	return index < current.cell_count ? &current.cells[index] : NULL;
}

static struct nat_tuples *nat_tuples_at(__u32 index)
{
	return index < current.tuple_count ? &current.tuples[index] : NULL;
}

#include "common/sessions.h"

static int find_session4(const struct session_query *query, __u32 now, struct session_hit *hit)
{
	return session_find(4, query, now, hit);
}

static int create_session4(const struct session_query *query, __u32 action0, __u32 action1, __u32 now,
			   struct session_hit *hit)
{
	return session_create(4, current.sessions, query, action0, action1, now, hit);
}

static int find_session6(const struct session_query *query, __u32 now, struct session_hit *hit)
{
	return session_find(6, query, now, hit);
}

static int create_session6(const struct session_query *query, __u32 action0, __u32 action1, __u32 now,
			   struct session_hit *hit)
{
	return session_create(6, current.sessions, query, action0, action1, now, hit);
}

#define NAT_FUNCTION static
#include "common/nat_install.h"
#include "test/nat_operation.h"

void sluice_nat_run(const struct sluice_nat_tables *tables, struct nat_test *test)
{
	/* The pattern shows what is read before it is set. */
	struct nat_packet packet;

	memset(&packet, 0xa5, sizeof(packet));
	current = *tables;
	nat_test_run(&packet, test);
}
