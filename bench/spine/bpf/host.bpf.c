// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The traffic of the part vswitch of bench/spine: the generator of small packets of VMs, alone and in VXLAN, and
 * the program that counts packets where they leave a host. The generator writes the whole packet from a template
 * each time, so that it does not matter what a returned page contains.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FRAME_BYTES 106	 /* Ethernet, IPv4, UDP and 64 bytes */
#define TUNNEL_BYTES 50	 /* Ethernet, IPv4, UDP and VXLAN */
#define PACKET_BYTES 160 /* both, in whole words */
#define OUTER_PORT 34
#define MAC_HOST 2 /* the last four bytes of a VM's MAC are its address */
#define IP_CHECKSUM 24
#define IP_DESTINATION 30
#define SOURCE_PORT 34
#define DESTINATION_PORT 36
#define FIRST_PORT 1024
#define SOURCE_PORTS 0x7fff /* mask of their numbers */
#define FRESH_PORT 10000    /* first destination port of new flows: FRESH_PORT in vswitch/frames.rs */

struct traffic {
	__u64 packet[PACKET_BYTES / 8]; /* without destination, checksum and source ports */
	__u32 base;			/* first destination, host order */
	__u32 count;			/* destinations are base .. base + count - 1 */
	__u32 check;			/* sum of the IPv4 header without checksum and destination */
	__u32 ports;			/* mask of the numbers of random source ports */
	__u32 fresh; /* 0: random flows; otherwise each packet begins the next flow, by this number */
	__u32 unused;
};

struct arrived {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct traffic);
} traffic SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arrived);
} arrived SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[PACKET_BYTES]);
} kept SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} measured SEC(".maps");

static __always_inline struct traffic *traffic_now(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&traffic, &zero);
}

/* Writes the packet, whose VM's frame is at `frame`. 0, or negative if the packet is too short. */
static __always_inline int write_packet(void *data, void *end, struct traffic *from, __u32 frame)
{
	__u32 bytes = frame + FRAME_BYTES, random = bpf_get_prandom_u32(), address, sum;
	const __be16 *tail;
	__u64 *words = data;

	if (!from || data + bytes > end)
		return -1;
	tail = (const __be16 *)from->packet;
#pragma unroll
	for (__u32 i = 0; i < bytes / 8; i++)
		words[i] = from->packet[i];
#pragma unroll
	for (__u32 i = bytes / 8 * 4; i < bytes / 2; i++)
		((__be16 *)data)[i] = tail[i];
	address = from->base + (__u32)(((__u64)bpf_get_prandom_u32() * from->count) >> 32);
	sum = from->check + (address >> 16) + (address & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*(__be16 *)(data + frame + MAC_HOST) = bpf_htons(address >> 16);
	*(__be16 *)(data + frame + MAC_HOST + 2) = bpf_htons(address & 0xffff);
	*(__be16 *)(data + frame + IP_CHECKSUM) = bpf_htons(~sum & 0xffff);
	*(__be16 *)(data + frame + IP_DESTINATION) = bpf_htons(address >> 16);
	*(__be16 *)(data + frame + IP_DESTINATION + 2) = bpf_htons(address & 0xffff);
	if (from->fresh) {
		__u32 flow = __sync_fetch_and_add(&from->fresh, 1);

		*(__be16 *)(data + frame + SOURCE_PORT) = bpf_htons(FIRST_PORT + (flow & SOURCE_PORTS));
		*(__be16 *)(data + frame + DESTINATION_PORT) = bpf_htons(FRESH_PORT + (flow >> 15 & 0x3fff));
	} else {
		*(__be16 *)(data + frame + SOURCE_PORT) = bpf_htons(FIRST_PORT + (random & from->ports));
	}
	if (frame)
		*(__be16 *)(data + OUTER_PORT) = bpf_htons(0xc000 | random >> 18);
	return 0;
}

/* Live frames: the kernel receives a VM's frame on the interface that the run names. */
SEC("xdp")
int send_frame(struct xdp_md *ctx)
{
	int failed = write_packet((void *)(long)ctx->data, (void *)(long)ctx->data_end, traffic_now(), 0);

	return failed ? XDP_ABORTED : XDP_PASS;
}

/* The same, in VXLAN. */
SEC("xdp")
int send_tunneled(struct xdp_md *ctx)
{
	int failed = write_packet((void *)(long)ctx->data, (void *)(long)ctx->data_end, traffic_now(),
				  TUNNEL_BYTES);

	return failed ? XDP_ABORTED : XDP_PASS;
}

/* Counts a packet that has arrived, and ends it. */
SEC("tc")
int arrive(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct arrived *count = bpf_map_lookup_elem(&arrived, &zero);

	if (count) {
		count->packets++;
		count->bytes += skb->len;
	}
	return TC_ACT_SHOT;
}

/* Keeps the packet for a test, and passes it on to the next program. */
SEC("tc")
int keep(struct __sk_buff *skb)
{
	__u32 zero = 0;
	__u8 *packet = bpf_map_lookup_elem(&kept, &zero);

	if (!packet)
		return TC_ACT_UNSPEC;
	if (skb->len == TUNNEL_BYTES + FRAME_BYTES)
		bpf_skb_load_bytes(skb, 0, packet, TUNNEL_BYTES + FRAME_BYTES);
	else
		bpf_skb_load_bytes(skb, 0, packet, FRAME_BYTES);
	return TC_ACT_UNSPEC;
}

/* Timed runs: a VM's frame, and then the program to be measured. */
SEC("tc")
int write_and_call(struct __sk_buff *skb)
{
	if (write_packet((void *)(long)skb->data, (void *)(long)skb->data_end, traffic_now(), 0))
		return TC_ACT_UNSPEC;
	bpf_tail_call(skb, &measured, 0);
	return TC_ACT_UNSPEC;
}

/* The time of a run without a program. */
SEC("tc")
int nothing(struct __sk_buff *skb)
{
	(void)skb;
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
