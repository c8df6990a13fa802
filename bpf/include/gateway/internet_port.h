/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: the port, and the next router behind it, by which a packet leaves to the Internet.
 *
 * Contract: find_internet_port() expects new_source and new_destination, and the frame's length and family, or PACKET_NAT64. It fills in
 * endpoint_mac, the MAC address of the next router, internet_ifindex and internet_mac of the port, and longest, by the MTU of port
 * and route. The kernel's FIB decides. Its answer is cached for each pair of addresses, because it also depends on the source (ECMP,
 * rules), for PATH_LIFETIME_NS: a change of the kernel's routes or neighbors applies after that time at the latest. Packet bytes
 * are neither read nor changed. Uses the maps `cells` and `internet_paths`.
 */
#ifndef SLUICE_INTERNET_PORT_H
#define SLUICE_INTERNET_PORT_H

#include "common/resolve.h"
#include "gateway/nat64.h"

/* Paths that a processor knows. Two pairs of addresses with the same slot displace each other. */
#define INTERNET_PATHS 4096
#define PATH_LIFETIME_NS 100000000ull

/* An answer of the FIB, for packets with these addresses. */
struct internet_path {
	__u64 source[2]; /* as in struct frame */
	__u64 destination[2];
	__u64 expires_ns; /* coarse clock; 0: empty */
	__u64 router_mac;
	__u32 ifindex;
	__u32 port; /* index of the underlay port with this ifindex */
	__u32 mtu;  /* of the route; in bytes of the IP packet */
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, INTERNET_PATHS);
	__type(key, __u32);
	__type(value, struct internet_path);
} internet_paths SEC(".maps");

/* The slot of the packet's addresses. It is never NULL, but the verifier wants that to be handled. */
static __always_inline struct internet_path *internet_path_of(const struct packet *packet)
{
	__u64 low = packet->new_source[1] << 32 ^ packet->new_destination[1];
	__u32 slot = exact_mix(low, packet->new_source[0] ^ packet->new_destination[0]) % INTERNET_PATHS;

	return bpf_map_lookup_elem(&internet_paths, &slot);
}

static __always_inline int is_path_of(const struct internet_path *path, const struct packet *packet)
{
	return !((path->source[0] ^ packet->new_source[0]) | (path->source[1] ^ packet->new_source[1]) |
		 (path->destination[0] ^ packet->new_destination[0]) |
		 (path->destination[1] ^ packet->new_destination[1]));
}

/* Length of the IP packet when it leaves. */
static __always_inline __u32 bytes_outside(const struct packet *packet)
{
	__u32 bytes = packet->frame_bytes - ETH_HLEN;

	return packet->nat & PACKET_NAT64 ? bytes - nat64_shrinkage(&packet->frame) : bytes;
}

/* Asks the FIB as resolve() (resolve.h) does, and writes its answer into the path. */
__attribute__((noinline)) enum drop_reason ask_internet_path(struct xdp_md *ctx, struct packet *packet)
{
	struct bpf_fib_lookup fib = { .ifindex = LOOPBACK_IFINDEX };
	const struct underlay_port *port;
	struct internet_path *path;
	int answer;

	path = packet ? internet_path_of(packet) : NULL;
	if (!path)
		return DROP_stale_index;
	path->expires_ns = 0;
	/* With a length, the kernel compares it with the MTU of the route, and tells that. */
	fib.tot_len = bytes_outside(packet);
	if (packet->frame.flags & FRAME_IPV6 && !(packet->nat & PACKET_NAT64)) {
		fib.family = AF_INET6;
		store_halves(fib.ipv6_src, packet->new_source);
		store_halves(fib.ipv6_dst, packet->new_destination);
	} else {
		fib.family = AF_INET;
		fib.ipv4_src = bpf_htonl((__u32)packet->new_source[1]);
		fib.ipv4_dst = bpf_htonl((__u32)packet->new_destination[1]);
	}
	answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	path->mtu = fib.mtu_result;
	if (answer == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		/* This answer is given before the port is known. Without a length, the kernel tells the port. */
		fib.tot_len = 0;
		fib.ifindex = LOOPBACK_IFINDEX;
		answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	}
	if (answer != BPF_FIB_LKUP_RET_SUCCESS && answer != BPF_FIB_LKUP_RET_NO_NEIGH)
		return DROP_no_internet_route;
	path->port = underlay_port_index(fib.ifindex);
	port = underlay_port_at(path->port);
	if (path->port == UNDERLAY_PORTS_MAX || !port || !(port->flags & UNDERLAY_PORT_INTERNET))
		return DROP_no_internet_route;
	if (answer == BPF_FIB_LKUP_RET_NO_NEIGH)
		return DROP_no_underlay_neighbor;
	path->router_mac = 0;
	/* By bytes, because the structure on the stack does not align them. */
	for (int i = 0; i < ETH_ALEN; i++)
		path->router_mac = path->router_mac << 8 | fib.dmac[i];
	path->ifindex = fib.ifindex;
	path->source[0] = packet->new_source[0];
	path->source[1] = packet->new_source[1];
	path->destination[0] = packet->new_destination[0];
	path->destination[1] = packet->new_destination[1];
	path->expires_ns = packet->now_ns + PATH_LIFETIME_NS;
	return DROP_none;
}

/* Expects now_ns. */
static __always_inline enum drop_reason find_internet_port(struct xdp_md *ctx, struct packet *packet)
{
	const struct internet_path *path = internet_path_of(packet);
	const struct underlay_port *port;
	enum drop_reason reason;

	if (!path)
		return DROP_stale_index;
	if (path->expires_ns <= packet->now_ns || !is_path_of(path, packet)) {
		reason = ask_internet_path(ctx, packet);
		if (reason)
			return reason;
	}
	port = underlay_port_at(path->port);
	/* The agent may have given the slot of the port to another interface. */
	if (!port || port->ifindex != path->ifindex || !(port->flags & UNDERLAY_PORT_INTERNET))
		return DROP_stale_index;
	packet->endpoint_mac = path->router_mac;
	packet->internet_ifindex = path->ifindex;
	packet->internet_mac = underlay_port_mac(port);
	packet->longest = path->mtu < port->mtu ? path->mtu : port->mtu;
	return DROP_none;
}

#endif
