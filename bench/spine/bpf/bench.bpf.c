// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The generator, the reflector and the sink of bench/spine. The generator
 * writes a whole VXLAN packet from a template each time, with a random inner
 * destination, so that it does not matter what a returned page contains.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define PACKET_BYTES 112 /* 110 of headers and payload, and 2 to make whole words */
#define INNER_IP 64	 /* 14 + 20 + 8 + 8 + 14 */
#define INNER_UDP 84
#define FIRST_PORT 1024

struct generator {
	__u64 packet[PACKET_BYTES / 8];
	__u32 base;	 /* first inner destination, host order */
	__u32 count;	 /* destinations are base .. base + count - 1 */
	__u32 check;	 /* sum of the inner IPv4 header without checksum and destination */
	__u32 ports;	 /* UDP source ports of the inner packets, from 1024 on: a flow each */
	__u32 elephants; /* flows to the first destinations that get one packet in eight; 0 for none */
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct generator);
} generator SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} received SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} measured SEC(".maps");

static __always_inline int write_packet(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, address, sum, count, ports;
	struct generator *from = bpf_map_lookup_elem(&generator, &zero);
	__u64 *to = data;

	if (!from || data + PACKET_BYTES > end)
		return -1;
#pragma unroll
	for (int i = 0; i < PACKET_BYTES / 8; i++)
		to[i] = from->packet[i];
	count = from->count;
	ports = from->ports;
	if (from->elephants && (bpf_get_prandom_u32() & 7) == 0) {
		count = from->elephants;
		ports = 1;
	}
	address = from->base + (__u32)(((__u64)bpf_get_prandom_u32() * count) >> 32);
	sum = from->check + (address >> 16) + (address & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*(__be16 *)(data + INNER_IP + 10) = bpf_htons(~sum & 0xffff);
	*(__be16 *)(data + INNER_IP + 16) = bpf_htons(address >> 16);
	*(__be16 *)(data + INNER_IP + 18) = bpf_htons(address & 0xffff);
	*(__be16 *)(data + INNER_UDP) =
		bpf_htons(FIRST_PORT + (__u16)((bpf_get_prandom_u32() & 0xffff) * ports >> 16));
	return 0;
}

/* Live frames: out of the interface that the run names, to its peer. */
SEC("xdp")
int generate(struct xdp_md *ctx)
{
	return write_packet(ctx) ? XDP_ABORTED : XDP_TX;
}

/* Timed runs: the packet, and then the program to be measured. */
SEC("xdp.frags")
int generate_and_call(struct xdp_md *ctx)
{
	if (write_packet(ctx))
		return XDP_ABORTED;
	bpf_tail_call(ctx, &measured, 0);
	return XDP_ABORTED;
}

/* The time of a run without a program. A tail call needs the same kind of program as the gateway's. */
SEC("xdp.frags")
int accept(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_TX;
}

/* The least that a gateway could do: send back with addresses swapped. */
SEC("xdp")
int reflect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u16 *mac = data;
	__u32 *ip = data + 26, swap32;

	if (data + 34 > end)
		return XDP_DROP;
#pragma unroll
	for (int i = 0; i < 3; i++) {
		__u16 swap = mac[i];

		mac[i] = mac[i + 3];
		mac[i + 3] = swap;
	}
	swap32 = ip[0];
	ip[0] = ip[1];
	ip[1] = swap32;
	return XDP_TX;
}

/* Passes to the kernel's own forwarding. A veth interface delivers XDP frames only to a peer with a program. */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

/* Counts what comes back as VXLAN. */
SEC("xdp")
int sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&received, &zero);

	if (count && data + 42 <= end && *(__be16 *)(data + 12) == bpf_htons(0x0800) &&
	    *(__be16 *)(data + 36) == bpf_htons(4789))
		(*count)++;
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
