// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The generator, the mirror and the sink of bench/internet. The generator writes VXLAN packets of VMs to the Internet, UDP with
 * checksums, from a template. Each packet belongs to one of vms * ports * remotes sessions: a random one, or the next one. The
 * mirror stands for the Internet: it answers each packet. The sink counts the answers that come back as VXLAN. The stamp answers as
 * the mirror does, and says from which public endpoint the packet came.
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
#define VXLAN_GROUP 44 /* the group policy id, which has the outside port of a record */
#define VXLAN_RESERVED 49

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

/* How the rig ends: what takes the part of the last gateway of a ring needs it, and the mirror. */
struct edge {
	__u8 macs[12]; /* of `web` and of `out`: the beginning of a frame to the Internet */
	__u32 out;     /* index of the interface `out` */
	__u32 outside; /* the first public address of the NAT gateway, host order */
	__u32 silent;  /* the mirror counts packets, and does not answer */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edge);
} edge SEC(".maps");

/* A session as a gateway of a ring tells it to the next one, in network order. */
struct record {
	__u32 source;
	__u32 destination;
	__u16 port;
	__u16 outside_port;
	__u8 address; /* the reserved byte of VXLAN (nat_ring.h) */
	__u8 unused[3];
};

/* The packets of generate_records(): its user makes room for more. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} records SEC(".maps");

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

/* Writes the template. */
static __always_inline struct generator *write_template(void *data, void *end)
{
	__u32 zero = 0;
	struct generator *from = bpf_map_lookup_elem(&generator, &zero);
	__u64 *to = data;

	if (!from || data + PACKET_BYTES > end)
		return 0;
#pragma unroll
	for (int i = 0; i < PACKET_BYTES / 8; i++)
		to[i] = from->packet[i];
	return from;
}

/* Writes the inner addresses and the inner source port, in host order. */
static __always_inline void write_session(void *data, const struct generator *from, __u32 source,
					  __u32 destination, __u32 port)
{
	__u32 sum = (source >> 16) + (source & 0xffff) + (destination >> 16) + (destination & 0xffff);

	*(__be16 *)(data + INNER_IP + 10) = folded(from->ip_sum + sum);
	write_address(data + INNER_IP + 12, source);
	write_address(data + INNER_IP + 16, destination);
	*(__be16 *)(data + INNER_UDP) = bpf_htons(port);
	*(__be16 *)(data + INNER_UDP + 6) = folded(from->udp_sum + sum + port);
}

static __always_inline int write_packet(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct generator *from = write_template(data, end);
	__u32 source, destination, port;

	if (!from || data + PACKET_BYTES > end)
		return -1;
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
	write_session(data, from, source + from->vm, destination + from->remote, port + FIRST_PORT);
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

/* Live frames of the ring, one of each record: as `generate`. */
SEC("xdp")
int generate_records(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct generator *from = write_template(data, end);
	const struct record *record;
	__u32 number;

	if (!from || data + PACKET_BYTES > end)
		return XDP_ABORTED;
	number = __sync_fetch_and_add(&from->next, 1);
	record = bpf_map_lookup_elem(&records, &number);
	if (!record)
		return XDP_ABORTED;
	write_session(data, from, bpf_ntohl(record->source), bpf_ntohl(record->destination),
		      bpf_ntohs(record->port));
	*(__u16 *)(data + VXLAN_GROUP) = record->outside_port;
	*(__u8 *)(data + VXLAN_RESERVED) = record->address;
	return XDP_TX;
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
	__u32 *ip = data + 26, swap32, zero = 0;
	const struct edge *ending;

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
	ending = bpf_map_lookup_elem(&edge, &zero);
	return ending && ending->silent ? XDP_DROP : XDP_TX;
}

/* The remote endpoints of the load: 100.64.0.0/10. */
#define REMOTES 0x64400000u
#define REMOTES_MASK 0xffc00000u
#define STAMP 16 /* where in the UDP payload the public address and port are written */

/* Remote endpoints behind a router: answer datagrams with the public endpoint that they came from. The rest is the kernel's. */
SEC("xdp")
int stamp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u16 *mac = data, *port = data + 34, *check = data + 40, *seen = data + 42 + STAMP, swap16;
	__u32 *ip = data + 26, swap32;

	if (data + 42 + STAMP + 6 > end || *(__be16 *)(data + 12) != bpf_htons(0x0800) ||
	    *(__u8 *)(data + 14) != 0x45 || *(__u8 *)(data + 23) != 17 ||
	    (bpf_ntohl(ip[1]) & REMOTES_MASK) != REMOTES)
		return XDP_PASS;
#pragma unroll
	for (int i = 0; i < 3; i++) {
		swap16 = mac[i];
		mac[i] = mac[i + 3];
		mac[i + 3] = swap16;
	}
	__builtin_memcpy(seen, &ip[0], 4);
	seen[2] = port[0];
	/* The sum of the IPv4 header stays; a datagram over IPv4 needs none. */
	*check = 0;
	swap32 = ip[0];
	ip[0] = ip[1];
	ip[1] = swap32;
	swap16 = port[0];
	port[0] = port[1];
	port[1] = swap16;
	return XDP_TX;
}

/* What a one's complement checksum becomes if a word of 32 bits changes. */
static __always_inline void change_check(void *at, __u32 before, __u32 after)
{
	__u32 sum = (__u16)~bpf_ntohs(*(__be16 *)at);

	before = ~before;
	sum += (before >> 16) + (before & 0xffff) + (after >> 16) + (after & 0xffff);
	*(__be16 *)at = folded(sum);
}

/* The part of the last gateway of a ring, as short as it can be: sends the packet to the Internet as its record says. */
static __always_inline int leave_ring(struct xdp_md *ctx, __u32 index, __u32 outside_port)
{
	__u32 zero = 0, source, port;
	const struct edge *ending = bpf_map_lookup_elem(&edge, &zero);
	void *data, *end;

	if (!ending || bpf_xdp_adjust_head(ctx, TUNNEL_BYTES))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + 42 > end)
		return XDP_ABORTED;
	__builtin_memcpy(data, ending->macs, 12);
	source = bpf_ntohs(*(__be16 *)(data + 26)) << 16 | bpf_ntohs(*(__be16 *)(data + 28));
	port = bpf_ntohs(*(__be16 *)(data + 34));
	change_check(data + 24, source, ending->outside + index);
	change_check(data + 40, source, ending->outside + index);
	change_check(data + 40, port, outside_port);
	write_address(data + 26, ending->outside + index);
	*(__be16 *)(data + 34) = bpf_htons(outside_port);
	return bpf_redirect(ending->out, 0);
}

/* Counts what comes back as VXLAN. A packet of the ring goes to the Internet. */
SEC("xdp")
int sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + OUTER_PORT + 4 <= end && *(__be16 *)(data + 12) == bpf_htons(0x0800) &&
	    *(__be16 *)(data + OUTER_PORT + 2) == bpf_htons(4789)) {
		if (data + VXLAN_RESERVED + 1 <= end && *(__u8 *)(data + VXLAN_RESERVED))
			return leave_ring(ctx, *(__u8 *)(data + VXLAN_RESERVED) >> 4,
					  bpf_ntohs(*(__be16 *)(data + VXLAN_GROUP)));
		count(0);
	}
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
