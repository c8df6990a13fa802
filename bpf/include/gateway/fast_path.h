/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: the fast path, for the shape that most packets have: VXLAN over IPv4 to a vIP, inside of it an IPv4 or IPv6
 * packet of TCP, UDP or ICMP without options and fragments, bridged or routed, from a host that may send in the VNI, to
 * an instance of the same VNI whose host is reached over IPv4 and whose next hop is resolved; with or without the
 * identity of its sender.
 *
 * Contract: forward_fast() does what the general path (gateway.bpf.c) does with such a packet, to the bit, and
 * returns the verdict, perhaps with FAST_UNSKIPPED. FAST_NONE: the packet has another shape, or would be dropped or
 * answered; nothing was changed and nothing was counted, and the general path handles it. So each stage only reads,
 * and returns whether the packet is still in the fast path; fast_rewrite() is the first to change something. Uses the
 * maps `cells`, `packets`, `vni_traffic` and those of flow_queue.h. Why it is as it is: docs/decisions/fast-path.md.
 */
#ifndef SLUICE_FAST_PATH_H
#define SLUICE_FAST_PATH_H

#include "common/checksum.h"
#include "common/cursor.h"
#include "common/lookup.h"
#include "common/encapsulate.h"
#include "gateway/flow_accounting.h"
#include "gateway/output.h"
#include "gateway/packet.h"
#include "gateway/sender.h"
#include "gateway/stage_end.h"
#include "gateway/vip_slots.h"

/* XDP_ABORTED, which is no verdict of a packet that was forwarded. */
#define FAST_NONE 0
/* With a verdict: the caller has to count the packet by count_unskipped(). Not called here, for the sake of the stack. */
#define FAST_UNSKIPPED 0x100

/* Positions in the packet. No IPv4 header has options. */
#define FAST_TYPE (2 * ETH_ALEN)
#define FAST_IP ETH_HLEN
#define FAST_UDP (FAST_IP + IPV4_BYTES)
#define FAST_VXLAN (FAST_UDP + UDP_BYTES)
#define FAST_FRAME TUNNEL4_BYTES
#define FAST_INNER_TYPE (FAST_FRAME + FAST_TYPE)
#define FAST_INNER (FAST_FRAME + ETH_HLEN)
/* Up to the first word of the transport header, inclusive. */
#define FAST4_BYTES (FAST_INNER + IPV4_BYTES + 4)
#define FAST6_BYTES (FAST_INNER + IPV6_BYTES + 4)

/* Ethertype, version, header length: the four bytes from the ethertype on, without what may have any value. */
#define TYPE_IPV4_MASK bpf_htonl(0xffffff00)
#define TYPE_IPV4 bpf_htonl(ETH_P_IP << 16 | IPV4_VERSION << 8)
#define TYPE_IPV6_MASK bpf_htonl(0xfffff000)
#define TYPE_IPV6 bpf_htonl(0x86dd6000)
/* Fragment field, TTL, protocol: the four bytes from the fragment field on. */
#define FRAGMENT_MASK bpf_htonl((IPV4_MORE | IPV4_OFFSET) << 16)
#define PROTOCOL_MASK bpf_htonl(0xff)
/* All of the VXLAN header but the VNI. */
#define VXLAN_MASK bpf_cpu_to_be64(0xffffffff000000ffull)
#define VXLAN_PLAIN bpf_cpu_to_be64((__u64)VXLAN_FLAGS << 32)
/* The same with an identity, which may have any value but 0. */
#define VXLAN_ID_MASK bpf_cpu_to_be64((__u64)VXLAN_GROUP_ID << 32)
#define VXLAN_GROUPED bpf_cpu_to_be64((__u64)(VXLAN_FLAGS | VXLAN_GROUP) << 32)

/* A packet in the fast path. */
struct fast {
	void *data;		   /* first byte of the packet */
	struct exact_pair buckets; /* of the destination */
	__u64 key;		   /* of the destination, in the exact match */
	__u64 check;		   /* of the destination's digest, as in the entry's value; 0 for IPv4 */
	__u64 high;		   /* IPv6 destination, high half in host order */
	__u64 low;		   /* low half, or IPv4 destination */
	__u32 routed;		   /* sent to the router's MAC address; otherwise bridged within the VPC */
	__u32 ipv6;		   /* the tenant's packet is IPv6 */
	__u32 vni;
	__u32 hash;	   /* as frame_hash() */
	__u32 frame_bytes; /* of the tenant's frame, padding included */
	__u32 flags;	   /* first word of the VXLAN header, in packet order, if the host gets identities */
};

/* Finds both buckets of the destination, and starts to load them: nothing takes as long as to wait for them. */
static __always_inline int fast_load_buckets(struct fast *fast, const struct exact_root *root)
{
	if (!exact_find_pair(root, fast->key, &fast->buckets))
		return 0;
	READ_ONCE(fast->buckets.a->version);
	READ_ONCE(fast->buckets.b->version);
	return 1;
}

/* The shortest header of the transport protocol. 0: the packet is not in the fast path. */
static __always_inline __u32 fast_transport_bytes(__u32 protocol, __u32 icmp)
{
	if (protocol == IPPROTO_TCP)
		return sizeof(struct tcp_header);
	return protocol == IPPROTO_UDP || protocol == icmp ? UDP_BYTES : 0;
}

/* First bytes of addresses of hosts, and of no others: not 0/8, 127/8 and what follows class C. */
static __always_inline int fast_host4(__u8 first)
{
	return (__u8)(first - 1) < 223 && first != 127;
}

static __always_inline int fast_parse4(struct fast *fast, const struct exact_root *root)
{
	const void *ip = fast->data + FAST_INNER;
	__u32 destination = bpf_ntohl(LOAD32(ip + 16)), source = bpf_ntohl(LOAD32(ip + 12));
	__u32 bytes = bpf_ntohs(LOAD16(ip + 2)), least;
	__u8 protocol = *(const __u8 *)(ip + 9);
	__u64 rest = protocol;

	fast->key = exact_key(EXACT_IPV4, fast->vni, destination);
	if (!fast_load_buckets(fast, root))
		return 0;
	fast->ipv6 = 0;
	fast->check = 0;
	fast->low = destination;
	least = fast_transport_bytes(protocol, IPPROTO_ICMP);
	if (!least || bytes < IPV4_BYTES + least || bytes > fast->frame_bytes - ETH_HLEN)
		return 0;
	if (LOAD32(ip + 6) & FRAGMENT_MASK || !checksum_valid(ipv4_header_sum(ip)))
		return 0;
	if (*(const __u8 *)(ip + 8) <= 1 || !fast_host4(source >> 24) || destination >= 0xe0000000)
		return 0;
	if (protocol != IPPROTO_ICMP)
		rest |= (__u64)bpf_ntohl(LOAD32(ip + IPV4_BYTES)) << 8;
	fast->hash = exact_mix((__u64)source << 32 | destination, rest);
	return 1;
}

/* Whether the packet is neighbor discovery, given its first transport word: the general path answers it. */
static __always_inline int fast_is_nd(__u32 protocol, __u32 transport)
{
	return protocol == IPPROTO_ICMPV6 && transport >> 24 >= ICMP6_ROUTER_SOLICIT &&
	       transport >> 24 <= ICMP6_REDIRECT;
}

static __always_inline int fast_parse6(struct fast *fast, const void *end, const struct exact_root *root)
{
	const void *ip = fast->data + FAST_INNER;
	__u64 high, low, hash, rest;
	__u32 bytes, least, transport;
	__u8 protocol;

	if (fast->data + FAST6_BYTES > end)
		return 0;
	fast->high = load_half(ip + 24);
	fast->low = load_half(ip + 32);
	fast->key = exact_key6(root, fast->vni, fast->high, fast->low, &fast->check);
	if (!fast_load_buckets(fast, root))
		return 0;
	fast->ipv6 = 1;
	protocol = *(const __u8 *)(ip + 6);
	transport = bpf_ntohl(LOAD32(ip + IPV6_BYTES));
	bytes = bpf_ntohs(LOAD16(ip + 4));
	least = fast_transport_bytes(protocol, IPPROTO_ICMPV6);
	if (!least || bytes < least || bytes + IPV6_BYTES > fast->frame_bytes - ETH_HLEN ||
	    fast_is_nd(protocol, transport))
		return 0;
	high = load_half(ip + 8);
	low = load_half(ip + 16);
	/* fe80::/10 and ff00::/8: routers forward neither, and a host has no address of the latter. */
	if (*(const __u8 *)(ip + 7) <= 1 || high >> 54 >= 0xfe80 >> 6 || fast->high >> 54 >= 0xfe80 >> 6 ||
	    (!high && low <= 1))
		return 0;
	rest = protocol;
	if (protocol != IPPROTO_ICMPV6)
		rest |= (__u64)transport << 8;
	hash = exact_mix(high ^ (fast->high << 7 | fast->high >> 57), rest);
	fast->hash = exact_mix(low ^ (fast->low << 9 | fast->low >> 55), hash);
	return 1;
}

/* Whether the VXLAN header has no flags, or only an identity. `vxlan` are its bytes without the VNI. */
static __always_inline int fast_vxlan_valid(__u64 vxlan)
{
	return vxlan == VXLAN_PLAIN || ((vxlan & ~VXLAN_ID_MASK) == VXLAN_GROUPED && vxlan & VXLAN_ID_MASK);
}

/* Stage "parse": whether the packet has the shape of the fast path. */
static __always_inline int fast_parse(const struct xdp_md *ctx, struct fast *fast,
				      const struct exact_root *root, const struct node_config *node)
{
	void *data = context_data(ctx), *end = context_end(ctx);
	__u64 vxlan, source_mac;
	__u32 bytes, type;

	if (data + FAST4_BYTES > end)
		return 0;
	vxlan = LOAD64(data + FAST_VXLAN);
	if ((LOAD32(data + FAST_TYPE) & TYPE_IPV4_MASK) != TYPE_IPV4 ||
	    (LOAD32(data + FAST_IP + 6) & (FRAGMENT_MASK | PROTOCOL_MASK)) != bpf_htonl(IPPROTO_UDP) ||
	    LOAD16(data + FAST_UDP + 2) != bpf_htons(VXLAN_PORT) || !fast_vxlan_valid(vxlan & VXLAN_MASK))
		return 0;
	fast->data = data;
	fast->flags = vxlan;
	fast->vni = bpf_ntohl(vxlan >> 32) >> 8;
	bytes = bpf_ntohs(LOAD16(data + FAST_IP + 2));
	if (!fast->vni || bytes < FAST4_BYTES - FAST_IP || bytes + FAST_IP > (__u64)(end - data) ||
	    bpf_ntohs(LOAD16(data + FAST_UDP + 4)) != bytes - IPV4_BYTES)
		return 0;
	fast->frame_bytes = bytes - (FAST_FRAME - FAST_IP);
	type = LOAD32(data + FAST_INNER_TYPE);
	if ((type & TYPE_IPV4_MASK) == TYPE_IPV4) {
		if (!fast_parse4(fast, root))
			return 0;
	} else if ((type & TYPE_IPV6_MASK) != TYPE_IPV6 || !fast_parse6(fast, end, root)) {
		return 0;
	}
	if (!checksum_valid(ipv4_header_sum(data + FAST_IP)))
		return 0;
	/* From a host's own MAC address to one that is no group. */
	source_mac = LOAD64(data + FAST_FRAME + ETH_ALEN) << 16;
	fast->routed = same_mac(data + FAST_FRAME, node->router_mac);
	return source_mac && !(source_mac & 1 << 16) && !(*(const __u8 *)(data + FAST_FRAME) & 1);
}

/* Removes the identity if the sender's host may not send one. 0: the packet is not in the fast path. */
static __always_inline int fast_check_identity(struct fast *fast, __u32 hop, __be32 source)
{
	const struct next_hop *host = next_hop_at(hop & CELL_INDEX_MASK, NEXT_HOP_VTEP);

	if (!host || !is_node4(host, source))
		return 0;
	if (READ_ONCE(host->flags) & NEXT_HOP_FOREIGN)
		fast->flags = bpf_htonl(VXLAN_FLAGS);
	return 1;
}

/* Stage "admit": the VRF of the VNI, if the packet is for this node and its sender may send in the VNI. */
static __always_inline const struct vrf *fast_admit(struct fast *fast, const struct exact_root *root)
{
	__be32 source = LOAD32(fast->data + FAST_IP + 12);
	__u32 id = bpf_ntohl(source), next;
	__u64 value;

	if (!is_vip4(LOAD32(fast->data + FAST_IP + 16), fast->data))
		return NULL;
	if (!exact_find_entry(root, exact_key(EXACT_INDEX, fast->vni, id ? id : 1), &value, &next) ||
	    (value & SENDER_CHECK_MASK) > SENDER_IPV4)
		return NULL;
	if (fast->flags != bpf_htonl(VXLAN_FLAGS) && !fast_check_identity(fast, next, source))
		return NULL;
	return vrf_at(value & CELL_INDEX_MASK, fast->vni);
}

/* Stage "route": whether the destination is an instance of the same VNI. */
static __always_inline int fast_route(const struct fast *fast, const struct vrf *vrf)
{
	__u32 leaf;

	if (fast->ipv6)
		leaf = find_route6(READ_ONCE(vrf->lpm6), fast->high, fast->low);
	else
		leaf = find_route4(READ_ONCE(vrf->lpm4), fast->low);
	return leaf >> LEAF_SCOPE_SHIFT == SCOPE_LOCAL;
}

/* Stage "endpoint": host and MAC address of the destination. The first byte of `mac` is lowest. */
static __always_inline struct next_hop *fast_endpoint(const struct fast *fast, __u64 *mac)
{
	struct next_hop *hop;
	__u64 value;
	__u32 next;

	if (!exact_read_entry(&fast->buckets, fast->key, &value, &next) ||
	    !exact_is_address(value, next, fast->check))
		return NULL;
	*mac = mac_in_packet_order(value & EXACT_MAC_MASK);
	if (!fast->routed && (LOAD64(fast->data + FAST_FRAME) ^ *mac) << 16)
		return NULL;
	hop = next_hop_at(next & CELL_INDEX_MASK, NEXT_HOP_VTEP);
	return hop && !(READ_ONCE(hop->flags) & NEXT_HOP_IPV6) ? hop : NULL;
}

/* The underlay port by which the frame is sent, if it fits. */
static __always_inline const struct underlay_port *fast_port(const struct fast *fast, const struct vrf *vrf,
							     __u64 l2)
{
	const struct underlay_port *port = underlay_port_at(l2 >> L2_PORT_SHIFT);
	__u32 bytes = fast->frame_bytes - ETH_HLEN;

	if (!port || !tunnel_ifindex(port) || (vrf->mtu && bytes > vrf->mtu) ||
	    (port->mtu > OVERHEAD4 && bytes > port->mtu - OVERHEAD4))
		return NULL;
	return port;
}

/* Stage "rewrite": writes what changes in the headers. What stays as it is: lengths, traffic class, VNI. */
static __always_inline void fast_rewrite(const struct fast *fast, const struct node_config *node,
					 const struct next_hop *hop, const struct underlay_port *port,
					 __u64 l2, __u64 mac)
{
	void *ip = fast->data + FAST_IP, *udp = fast->data + FAST_UDP, *frame = fast->data + FAST_FRAME;
	__u32 source = node->vtep4, destination = LOAD32(hop->address);
	__u32 fragment = bpf_htonl(IPV4_DF), ttl = bpf_htons(OUTER_TTL << 8 | IPPROTO_UDP);
	__u32 flags = READ_ONCE(hop->flags) & NEXT_HOP_FOREIGN ? bpf_htonl(VXLAN_FLAGS) : fast->flags;
	__u64 sum = (__u64)LOAD32(ip) + fragment + ttl + source + destination;

	store_macs(fast->data, l2, port->mac);
	STORE32(ip + 4, fragment);
	STORE32(ip + 8, ttl | (__u32)checksum_fold(sum) << 16);
	STORE64(ip + 12, source | (__u64)destination << 32);
	STORE16(udp, bpf_htons(VXLAN_SOURCE_MIN | fast->hash >> VXLAN_SOURCE_SHIFT));
	STORE16(udp + 6, 0);
	STORE32(udp + UDP_BYTES, flags);
	if (!fast->routed)
		return;
	store_macs(frame, mac, node->router_mac);
	if (fast->ipv6)
		*(__u8 *)(frame + ETH_HLEN + 7) -= 1;
	else
		ipv4_decrement_ttl(frame + ETH_HLEN);
}

/*
 * Fills in what count_unskipped() (flow_accounting.h) needs of a packet, which was rewritten meanwhile. `end` is that of the
 * packet: the verifier of Linux 6.1 has forgotten that an IPv6 packet was checked to be so long.
 */
static __always_inline void fast_describe(struct packet *packet, const struct fast *fast, const void *end,
					  __u32 outer_source, const struct vrf *vrf)
{
	const void *ip = fast->data + FAST_INNER;
	struct frame *frame = &packet->frame;

	if (fast->ipv6 && fast->data + FAST6_BYTES <= end) {
		load_halves(frame->source, ip + 8);
		frame->destination[0] = fast->high;
		frame->protocol = *(const __u8 *)(ip + 6);
		frame->transport = bpf_ntohl(LOAD32(ip + IPV6_BYTES));
		frame->flags = FRAME_IPV6;
	} else {
		frame->source[0] = 0;
		frame->source[1] = bpf_ntohl(LOAD32(ip + 12));
		frame->destination[0] = 0;
		frame->protocol = *(const __u8 *)(ip + 9);
		frame->transport = bpf_ntohl(LOAD32(ip + IPV4_BYTES));
		frame->flags = 0;
	}
	frame->destination[1] = fast->low;
	packet->vni = fast->vni;
	packet->ipv6 = 0;
	packet->outer_source[0] = 0;
	packet->outer_source[1] = outer_source;
	packet->frame_bytes = fast->frame_bytes;
	packet->elephant_bytes = vrf_elephant_bytes(vrf);
}

__attribute__((noinline)) int forward_fast(struct xdp_md *ctx)
{
	const struct node_config *node = cell_at(CELL_NODE);
	const struct exact_root *root = cell_at(CELL_EXACT_ROOT);
	struct packet *packet = packet_memory();
	const struct underlay_port *port;
	const struct next_hop *hop;
	__u32 outer_source, ifindex;
	const struct vrf *vrf;
	struct fast fast;
	__u64 mac, l2, now_ns;

	if (!node || !root || !packet || !(node->flags & NODE_HAS_IPV4))
		return FAST_NONE;
	STAGE_END(STAGE_BEGIN, node);
	if (!fast_parse(ctx, &fast, root, node))
		return FAST_NONE;
	STAGE_END(STAGE_PARSE, fast.hash + fast.key);
	vrf = fast_admit(&fast, root);
	if (!vrf)
		return FAST_NONE;
	STAGE_END(STAGE_ADMIT, vrf);
	if (!fast_route(&fast, vrf))
		return FAST_NONE;
	STAGE_END(STAGE_ROUTE, vrf);
	hop = fast_endpoint(&fast, &mac);
	if (!hop)
		return FAST_NONE;
	STAGE_END(STAGE_ENDPOINT, hop->l2 + mac);
	now_ns = coarse_now(packet);
	if (READ_ONCE(hop->l2_expires_ns) <= now_ns)
		return FAST_NONE;
	l2 = READ_ONCE(hop->l2);
	port = fast_port(&fast, vrf, l2);
	if (!port)
		return FAST_NONE;
	STAGE_END(STAGE_NEXT_HOP, port);
	ifindex = port->ifindex;
	outer_source = bpf_ntohl(LOAD32(fast.data + FAST_IP + 12));
	fast_rewrite(&fast, node, hop, port, l2, mac);
	STAGE_END(STAGE_REWRITE, outer_source);
	count_traffic(READ_ONCE(vrf->counters), fast.frame_bytes);
	if (flow_is_skipped(&packet->sampler, now_ns))
		return send_by(ctx, ifindex);
	fast_describe(packet, &fast, context_end(ctx), outer_source, vrf);
	return send_by(ctx, ifindex) | FAST_UNSKIPPED;
}

#endif
