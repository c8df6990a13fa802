/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: the program by which the agent installs sessions that other gateways describe, so that it uses the code of
 * packets. It is attached nowhere: the agent runs it (BPF_PROG_TEST_RUN).
 *
 * Contract: the "packet" is an array of at most NAT_COPIES_MAX struct nat_copy, which are answered in place. The VNI must be that of
 * the NAT gateway that has the public address; the tables say so, and the number of the address. One thread at a time runs it.
 *
 * It is an XDP program, because the kernel runs these within an RCU read side, as for packets. A program of type "syscall" can
 * sleep, so the agent's grace periods do not wait for it, and the argument of nat_layout.h does not apply to it.
 */
#ifndef SLUICE_NAT_COPY_H
#define SLUICE_NAT_COPY_H

#include "common/nat_install.h"
#include "gateway/public.h"

struct nat_copying {
	struct nat_packet packet;
	struct nat_copy copy;
};

/* The present session. Packets, which may interrupt the program, have their own memory (nat_packets). */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_copying);
} nat_copying SEC(".maps");

/* Finds the number of the public address. 0, or why the session is not installed. */
static __always_inline int find_nat_number(const struct nat_copy *copy, struct nat_packet *packet)
{
	__u32 cell = find_public4(find_public_vrf(), copy->outside);
	const struct public_prefix *public;
	struct nat_group *group;

	if (cell == INDEX_BUSY)
		return NAT_BUSY;
	public = public_prefix_at(cell);
	if (!public || !(public->flags & PUBLIC_NAT) || public->vni != (copy->vni & NAT_VNI_MASK))
		return NAT_NO_ADDRESS;
	packet->address = LOAD16(public->inside + 4);
	group = nat_prepare(packet) ? nat_first_group(packet) : NULL;
	/* The number may be that of another address, for a moment after a change. */
	return group && READ_ONCE(group->outside) == copy->outside ? 0 : NAT_NO_ADDRESS;
}

/* Global, so that the verifier processes it once and not for every session. */
__attribute__((noinline)) int install_copy(struct nat_copying *memory)
{
	struct nat_packet *packet;
	struct nat_copy *copy;

	if (!memory)
		return 0;
	packet = &memory->packet;
	copy = &memory->copy;
	packet->vni = copy->vni;
	packet->inside[0] = copy->inside[0];
	packet->inside[1] = copy->inside[1];
	packet->remote = copy->remote;
	packet->inside_port = copy->inside_port;
	packet->outside_port = copy->outside_port;
	packet->remote_port = copy->remote_port;
	packet->protocol = copy->protocol;
	packet->tcp_flags = 0;
	packet->bytes = 0;
	packet->now = session_ticks(bpf_ktime_get_coarse_ns());
	packet->flags = copy->flags & NAT_OF_OWNER;
	packet->state = copy->state;
	packet->idle = copy->idle;
	packet->since = copy->since;
	copy->answer =
		nat_class(copy->protocol) == NAT_CLASSES ? NAT_PROTOCOL : find_nat_number(copy, packet);
	if (!copy->answer)
		copy->answer = nat_install(packet);
	copy->bucket = packet->hit.bucket;
	copy->slot = packet->hit.slot;
	return 0;
}

SEC("xdp")
int nat_copy(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct nat_copying *memory = bpf_map_lookup_elem(&nat_copying, &zero);

	if (!memory)
		return XDP_ABORTED;
	for (__u32 i = 0; i < NAT_COPIES_MAX; i++) {
		struct nat_copy *at = (void *)(long)ctx->data;
		void *end = (void *)(long)ctx->data_end;

		at += i;
		if ((void *)(at + 1) > end)
			break;
		memory->copy = *at;
		install_copy(memory);
		at = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
		at += i;
		if ((void *)(at + 1) > end)
			break;
		*at = memory->copy;
	}
	return XDP_PASS;
}

#endif
