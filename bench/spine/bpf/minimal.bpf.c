// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * A minimal forwarder, a peer of the gateway's program: it sends a VXLAN packet
 * on to the host of its inner IPv4 destination, out of the interface that
 * received it. One BPF hash contains the endpoints. It checks nothing but what
 * it needs to find and rewrite the headers: no sender, no MTU, no inner TTL of
 * 0, no inner checksum. It has no routes, no IPv6, no counters and no flows.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* Positions in the packet. No IPv4 header has options. */
#define OUTER_TYPE 12
#define OUTER_IP 14
#define OUTER_UDP 34
#define VNI 46
#define INNER_ETHERNET 50
#define INNER_TYPE 62
#define INNER_IP 64
#define INNER_PORTS 84
#define HEADER_BYTES 88 /* up to the inner ports, inclusive */

/* EtherType IPv4, then version 4 and five words of header, then any traffic class. */
#define IPV4_WITHOUT_OPTIONS bpf_htonl(0x08004500)
#define TYPE_MASK bpf_htonl(0xffffff00)
#define DF_AND_OFFSET bpf_htonl(0x00004000) /* identification 0, "do not fragment" */
#define TTL_AND_UDP bpf_htons(64 << 8 | 17)
#define MAC_MASK bpf_cpu_to_be64(0xffffffffffff0000ull)
#define VXLAN_PORT bpf_htons(4789)

#define LOAD(type, at) (*(type *)(data + (at)))
#define STORE(type, at, value) (*(type *)(data + (at)) = (value))

struct endpoint_key {
	__be32 vni; /* as in the VXLAN header: 24 bits, and then 8 zeros */
	__be32 address;
};

struct endpoint {
	__u8 next_hop_mac[6]; /* on the underlay, towards the host */
	__u8 mac[6];
	__be32 host;
};

/* The beginning of an Ethernet header. */
struct macs {
	__u8 destination[6];
	__u8 source[6];
};

/* What the node is on an interface. An interface without an entry has address 0. */
struct own {
	struct macs outer, inner; /* with destination 0 */
	__be32 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set before the program is loaded */
	__type(key, struct endpoint_key);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32); /* ifindex */
	__type(value, struct own);
} own SEC(".maps");

/* UDP source port of the outer header, from the inner addresses and ports. */
static __always_inline __be16 source_port(void *data)
{
	__u64 hash = LOAD(__u64, INNER_IP + 12) ^ LOAD(__u32, INNER_PORTS) * 0x9e3779b97f4a7c15ull;

	return bpf_htons(0xc000 | hash * 0xd6e8feb86659fd93ull >> 50);
}

/* Writes both MAC addresses by two stores. The compiler would copy six bytes of unknown alignment one by one. */
static __always_inline void write_macs(void *to, const void *from, const void *destination)
{
	*(__u64 *)to = *(const __u64 *)from | (*(const __u64 *)destination & MAC_MASK);
	*(__u32 *)(to + 8) = *(const __u32 *)(from + 8);
}

static __always_inline void write_outer(void *data, const struct own *own, const struct endpoint *endpoint)
{
	__u64 sum =
		(__u64)LOAD(__u32, OUTER_IP) + DF_AND_OFFSET + TTL_AND_UDP + own->address + endpoint->host;

	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	write_macs(data, &own->outer, endpoint->next_hop_mac);
	STORE(__u32, OUTER_IP + 4, DF_AND_OFFSET);
	STORE(__u16, OUTER_IP + 8, TTL_AND_UDP);
	STORE(__u16, OUTER_IP + 10, ~sum);
	STORE(__u32, OUTER_IP + 12, own->address);
	STORE(__u32, OUTER_IP + 16, endpoint->host);
	STORE(__u16, OUTER_UDP, source_port(data));
	STORE(__u16, OUTER_UDP + 6, 0);
}

static __always_inline void write_inner(void *data, const struct own *own, const struct endpoint *endpoint)
{
	/* TTL is the upper half of a word of the sum: RFC 1624. */
	__u32 sum = LOAD(__u16, INNER_IP + 10) + bpf_htons(0x0100);

	write_macs(data + INNER_ETHERNET, &own->inner, endpoint->mac);
	STORE(__u8, INNER_IP + 8, LOAD(__u8, INNER_IP + 8) - 1);
	STORE(__u16, INNER_IP + 10, sum + (sum >= 0xffff));
}

SEC("xdp.frags")
int minimal(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 ifindex = ctx->ingress_ifindex;
	struct endpoint_key key;
	struct endpoint *endpoint;
	struct own *node;

	if (data + HEADER_BYTES > end)
		return XDP_PASS;
	node = bpf_map_lookup_elem(&own, &ifindex);
	if (!node || LOAD(__u32, OUTER_IP + 16) != node->address)
		return XDP_PASS;
	if ((LOAD(__u32, OUTER_TYPE) & TYPE_MASK) != IPV4_WITHOUT_OPTIONS ||
	    (LOAD(__u32, INNER_TYPE) & TYPE_MASK) != IPV4_WITHOUT_OPTIONS)
		return XDP_PASS;
	if (LOAD(__u8, OUTER_IP + 9) != 17 || LOAD(__u16, OUTER_UDP + 2) != VXLAN_PORT)
		return XDP_PASS;
	key.vni = LOAD(__u32, VNI);
	key.address = LOAD(__u32, INNER_IP + 16);
	endpoint = bpf_map_lookup_elem(&endpoints, &key);
	if (!endpoint)
		return XDP_PASS;
	write_outer(data, node, endpoint);
	write_inner(data, node, endpoint);
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
