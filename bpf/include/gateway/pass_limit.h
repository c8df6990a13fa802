/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: how many packets each processor passes on to the owner of a NAT gateway. They use this gateway, the underlay and the
 * owner, so a flood to the addresses of one tenant must not fill all of these.
 *
 * Contract: may_pass_on() expects `counters`, of the VPC that sends the packet, or of the one that gets it from the Internet, and now_ns. Uses the maps
 * `nat_config` and `pass_budget`.
 */
#ifndef SLUICE_PASS_LIMIT_H
#define SLUICE_PASS_LIMIT_H

#include "common/nat_maps.h"
#include "common/token_bucket.h"
#include "gateway/packet.h"

/*
 * By vrf.counters of the VPC; VPCs without counters of their own share one. A bucket is full again within a moment, so it is not reset when another
 * VNI gets the index.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VNI_COUNTERS_MAX);
	__type(key, __u32);
	__type(value, struct token_bucket);
} pass_budget SEC(".maps");

/* Whether the packet may be passed on. If so, it takes a token. */
static __always_inline int may_pass_on(const struct packet *packet)
{
	const struct nat_config *nat = nat_config_at();
	__u32 token_ns = nat ? READ_ONCE(nat->pass_token_ns) : 0, counters = packet->counters;
	struct token_bucket *bucket;

	if (!token_ns)
		return 1;
	bucket = bpf_map_lookup_elem(&pass_budget, &counters);
	return bucket && take_token(bucket, packet->now_ns, token_ns, READ_ONCE(nat->pass_burst));
}

#endif
