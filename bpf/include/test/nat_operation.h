/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * One packet of source NAT as a structure, for tests, which run the same C code as an eBPF program and natively.
 *
 * Contract: an includer that calls nat_test_run() includes nat_install.h before this, the last time if it includes this twice.
 */
#ifndef SLUICE_NAT_OPERATION_H
#define SLUICE_NAT_OPERATION_H

#include "layout/nat_layout.h"

enum nat_op {
	NAT_OP_OUT = 1,
	NAT_OP_IN,
	NAT_OP_INSTALL,
};

/* Fields as in struct nat_packet; those of the other direction's question are the answer. NAT_OP_INSTALL asks by those of both. */
struct nat_test {
	__u32 op;
	__u32 vni;
	__u32 inside;
	__u32 outside;
	__u32 address;
	__u32 remote;
	__u16 inside_port;
	__u16 outside_port;
	__u16 remote_port;
	__u8 protocol;
	__u8 tcp_flags;
	__u32 bytes;
	__u32 now;
	__u32 flags;
	__u32 answer;	 /* enum nat_answer */
	__u32 published; /* whether a record was published, which the sweep will free */
	__u32 state;
	__u32 idle;
	__u32 since;
	__u32 bucket; /* answer: where the session is, if it was installed or exists */
	__u32 slot;
	__u64 inside_high; /* of NAT64, with NAT_INSIDE_IPV6 in `vni`: the high half; the low half is `inside` */
	struct nat_pool pool;
};

#endif

#if defined(SLUICE_NAT_INSTALL_H) && !defined(SLUICE_NAT_TEST_RUN)
#define SLUICE_NAT_TEST_RUN

/* Runs a packet in memory that the includer provides. */
static __always_inline void nat_test_run(struct nat_packet *packet, struct nat_test *test)
{
	int is_out = test->op != NAT_OP_IN, is_in = test->op != NAT_OP_OUT;

	packet->pool = test->pool;
	packet->vni = test->vni;
	packet->inside[0] = is_out ? test->inside_high : 0;
	packet->inside[1] = is_out ? test->inside : 0;
	packet->inside_port = is_out ? test->inside_port : 0;
	packet->outside = 0;
	packet->address = is_in ? test->address : 0;
	packet->outside_port = is_in ? test->outside_port : 0;
	packet->remote = test->remote;
	packet->remote_port = test->remote_port;
	packet->protocol = test->protocol;
	packet->tcp_flags = test->tcp_flags;
	packet->bytes = test->bytes;
	packet->now = test->now;
	packet->flags = test->flags;
	packet->state = test->state;
	packet->idle = test->idle;
	packet->since = test->since;
	packet->hit.published = 0;
	if (is_out && is_in)
		test->answer = nat_install(packet);
	else
		test->answer = is_out ? nat_out(packet) : nat_in(packet);
	test->published = packet->hit.published;
	test->vni = packet->vni;
	test->inside_high = packet->inside[0];
	test->inside = packet->inside[1];
	test->inside_port = packet->inside_port;
	test->outside = packet->outside;
	test->address = packet->address;
	test->outside_port = packet->outside_port;
	test->bucket = packet->hit.bucket;
	test->slot = packet->hit.slot;
}

#endif
