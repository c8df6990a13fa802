// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The generator, the mirror and the sink of bench/internet. The generator writes VXLAN packets of VMs to the Internet, UDP with
 * checksums, from a template. Each packet belongs to one of vms * ports * remotes sessions: a random one, or the next one. The
 * mirror stands for the Internet: it answers each packet. The sink counts the answers that come back as VXLAN.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define PACKET_BYTES 112 /* 110 of headers and payload, and 2 to make whole words */
#define OUTER_PORT 34	 /* 14 + 20 */
#define INNER_IP 64	 /* 14 + 20 + 8 + 8 + 14 */
#define INNER_UDP 84
#define FIRST_PORT 1024
#define TUNNEL_BYTES 50

struct generator {
	__u64 packet[PACKET_BYTES / 8];
	__u64 next; /* the next session, if they are in order */
	__u32 vm;   /* addresses of the first VM and of the first remote, host order */
	__u32 remote;
	__u32 vms; /* how many there are, and of inner source ports from FIRST_PORT on */
	__u32 ports;
	__u32 remotes;
	__u32 in_order;
	__u32 ip_sum; /* of the inner IPv4 header without checksum and addresses */
	__u32 udp_sum; /* of pseudo header, UDP header and payload without addresses, source port and checksum */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct generator);
} generator SEC(".maps");

/* Packets that the sink and the mirror got. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} received SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} measured SEC(".maps");

static __always_inline __be16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return bpf_htons(~sum & 0xffff);
}

static __always_inline __u32 below(__u32 count)
{
	return ((__u64)bpf_get_prandom_u32() * count) >> 32;
}

static __always_inline void write_address(void *at, __u32 address)
{
	*(__be16 *)at = bpf_htons(address >> 16);
	*(__be16 *)(at + 2) = bpf_htons(address & 0xffff);
}

/* In repeated runs, the packet has no tunnel any more, and no padding. Its memory gets its first length again. */
static __always_inline int restore_length(struct xdp_md *ctx)
{
	int bytes = (long)ctx->data_end - (long)ctx->data;

	if (bytes < PACKET_BYTES && bpf_xdp_adjust_head(ctx, -TUNNEL_BYTES))
		return -1;
	bytes = (long)ctx->data_end - (long)ctx->data;
	return bytes < PACKET_BYTES ? bpf_xdp_adjust_tail(ctx, PACKET_BYTES - bytes) : 0;
}

static __always_inline int write_packet(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, source, destination, port, sum;
	struct generator *from = bpf_map_lookup_elem(&generator, &zero);
	__u64 *to = data;

	if (!from || data + PACKET_BYTES > end)
		return -1;
#pragma unroll
	for (int i = 0; i < PACKET_BYTES / 8; i++)
		to[i] = from->packet[i];
	if (from->in_order) {
		__u64 session = __sync_fetch_and_add(&from->next, 1);

		if (!from->vms || !from->ports || !from->remotes)
			return -1;
		source = session % from->vms;
		session /= from->vms;
		port = session % from->ports;
		destination = session / from->ports % from->remotes;
	} else {
		source = below(from->vms);
		port = below(from->ports);
		destination = below(from->remotes);
	}
	source += from->vm;
	destination += from->remote;
	port += FIRST_PORT;
	sum = (source >> 16) + (source & 0xffff) + (destination >> 16) + (destination & 0xffff);
	*(__be16 *)(data + INNER_IP + 10) = folded(from->ip_sum + sum);
	write_address(data + INNER_IP + 12, source);
	write_address(data + INNER_IP + 16, destination);
	*(__be16 *)(data + INNER_UDP) = bpf_htons(port);
	*(__be16 *)(data + INNER_UDP + 6) = folded(from->udp_sum + sum + port);
	return 0;
}

static __always_inline void count(__u32 which)
{
	__u64 *number = bpf_map_lookup_elem(&received, &which);

	if (number)
		(*number)++;
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
	if (restore_length(ctx) || write_packet(ctx))
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

/* Passes to the kernel's own forwarding. A veth interface delivers XDP frames only to a peer with a program. */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

/* The Internet: answers, with addresses and ports swapped. The sums stay. */
SEC("xdp")
int mirror(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u16 *mac = data, *port = data + 34, swap16;
	__u32 *ip = data + 26, swap32;

	if (data + 42 > end || *(__be16 *)(data + 12) != bpf_htons(0x0800) || *(__u8 *)(data + 23) != 17)
		return XDP_DROP;
#pragma unroll
	for (int i = 0; i < 3; i++) {
		swap16 = mac[i];
		mac[i] = mac[i + 3];
		mac[i + 3] = swap16;
	}
	swap32 = ip[0];
	ip[0] = ip[1];
	ip[1] = swap32;
	swap16 = port[0];
	port[0] = port[1];
	port[1] = swap16;
	count(1);
	return XDP_TX;
}

/* Counts what comes back as VXLAN. */
SEC("xdp")
int sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + OUTER_PORT + 4 <= end && *(__be16 *)(data + 12) == bpf_htons(0x0800) &&
	    *(__be16 *)(data + OUTER_PORT + 2) == bpf_htons(4789))
		count(0);
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
