/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The maps of the session tables, and the functions of sessions.h for packet programs.
 *
 * Contract: the agent sets the sizes of `sessions4` and `sessions6` before it loads the program; an includer may
 * define SESSION_BUCKETS, their size where it does not. The
 * functions exist once, so that the verifier processes each once and not for every caller.
 */
#ifndef SLUICE_SESSION_MAPS_H
#define SLUICE_SESSION_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "layout/session_layout.h"

#ifndef SESSION_BUCKETS
#define SESSION_BUCKETS 64
#endif

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct session_config);
} session_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SESSION_BUCKETS);
	__type(key, __u32);
	__type(value, struct session_bucket4);
} sessions4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SESSION_BUCKETS);
	__type(key, __u32);
	__type(value, struct session_bucket6);
} sessions6 SEC(".maps");

static __always_inline struct session_bucket4 *session_bucket4_at(__u32 index)
{
	return bpf_map_lookup_elem(&sessions4, &index);
}

static __always_inline struct session_bucket6 *session_bucket6_at(__u32 index)
{
	return bpf_map_lookup_elem(&sessions6, &index);
}

static __always_inline struct session_config *session_config_at(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&session_config, &zero);
}

#include "common/sessions.h"

/* session_find() and session_create() (sessions.h) for each family. */
__attribute__((noinline)) enum session_answer find_session4(const struct session_query *query, __u32 now,
							    struct session_hit *hit)
{
	if (!query || !hit)
		return SESSION_MISS;
	return session_find(4, query, now, hit);
}

__attribute__((noinline)) enum session_answer find_session6(const struct session_query *query, __u32 now,
							    struct session_hit *hit)
{
	if (!query || !hit)
		return SESSION_MISS;
	return session_find(6, query, now, hit);
}

__attribute__((noinline)) enum session_answer create_session4(const struct session_query *query,
							      __u32 action0, __u32 action1, __u32 now,
							      struct session_hit *hit)
{
	struct session_config *config = session_config_at();

	if (!config || !query || !hit)
		return SESSION_MISS;
	return session_create(4, config, query, action0, action1, now, hit);
}

__attribute__((noinline)) enum session_answer create_session6(const struct session_query *query,
							      __u32 action0, __u32 action1, __u32 now,
							      struct session_hit *hit)
{
	struct session_config *config = session_config_at();

	if (!config || !query || !hit)
		return SESSION_MISS;
	return session_create(6, config, query, action0, action1, now, hit);
}

#endif
