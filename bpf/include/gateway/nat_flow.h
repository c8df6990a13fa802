/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: the session endpoints of a packet that source NAT translates.
 *
 * Contract: read_nat_flow() expects the parsed frame, of IPv4, or of IPv6 from a VM to the prefix of NAT64, `at` bytes into the packet, and fills in `flow` of nat_memory(). The
 * packet is not changed; of its state, only `header` is. DROP_none, or the reason to drop. Uses the map `nat_packets`.
 */
#ifndef SLUICE_NAT_FLOW_H
#define SLUICE_NAT_FLOW_H

#include "common/icmp_kind.h"
#include "common/nat_maps.h"
#include "gateway/packet.h"

/*
 * The endpoints between which the packet goes, in host order; ports are those of session_layout.h. An ICMP error is taken for
 * a packet of the flow that it quotes, in its own direction: so source and destination are those of the quoted packet in
 * reverse. The source of the error itself may be another one. A later fragment has no ports. Of NAT64, protocol and ports are those
 * that the packet has as one of IPv4.
 */
struct nat_flow {
	__u64 source6
		[2]; /* of NAT64, whose destination is the IPv4 address in that of the packet; `source` is a hash of it then */
	__u32 source;
	__u32 destination;
	__u16 source_port;
	__u16 destination_port;
	__u8 protocol;
	__u8 tcp_flags; /* 0 for other protocols */
	__u8 is_answer; /* of ICMP: it begins no session, and the destination asked */
	__u8 flags;	/* NAT_PEEK for an error, NAT_QUERY */
};

/* The present packet: memory per CPU, because the stages need the stack. */
struct nat_memory {
	struct nat_packet packet;
	struct nat_flow flow;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_memory);
} nat_packets SEC(".maps");

/* It is never NULL, but the verifier wants that to be handled. */
static __always_inline struct nat_memory *nat_memory(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&nat_packets, &zero);
}

/*
 * The packet whose session was found or begun last here is not sent. So it is not one of those by which other gateways get the session
 * (nat_ring.h). Its bytes stay counted, which are only displayed.
 */
__attribute__((noinline)) int uncount_nat_packet(void)
{
	const struct nat_memory *memory = nat_memory();
	struct session_data *data;

	if (!memory)
		return 0;
	data = nat_session(&memory->packet);
	if (data)
		ADD(&data->packets[memory->packet.hit.direction & 1], -1);
	return 0;
}

/* Reads the flow of the packet that an ICMP error quotes, of which `bytes` from `offset` on are quoted. */
static __always_inline enum drop_reason read_quoted_flow(struct xdp_md *ctx, struct packet *packet,
							 struct nat_flow *flow, __u32 offset, __u32 bytes)
{
	const struct ipv4_header *ip = (const struct ipv4_header *)packet->header;
	const __be32 *words = (const __be32 *)packet->header;
	enum icmp_kind kind;
	__u32 header, ports;

	if (bytes < IPV4_BYTES || bpf_xdp_load_bytes(ctx, offset, packet->header, IPV4_BYTES))
		return DROP_inner_truncated;
	header = (ip->version & 15) * 4;
	if (ip->version >> 4 != 4 || header < IPV4_BYTES || bytes < header + ICMP_BYTES)
		return DROP_inner_truncated;
	flow->source = bpf_ntohl(ip->destination);
	flow->destination = bpf_ntohl(ip->source);
	flow->protocol = ip->protocol;
	/* An error goes to the sender of what it quotes. */
	if (flow->destination != packet->frame.destination[1] || ip->fragment & bpf_htons(IPV4_OFFSET))
		return DROP_nat_protocol;
	if (bpf_xdp_load_bytes(ctx, offset + header, packet->header, ICMP_BYTES))
		return DROP_inner_truncated;
	ports = bpf_ntohl(words[0]);
	kind = icmp_kind_of(flow->protocol, 0, ports >> 24, ports >> 16);
	if (kind == ICMP_QUERY || kind == ICMP_ANSWER)
		ports = icmp_ports(kind, ports >> 24, bpf_ntohl(words[1]) >> 16);
	else if (kind != ICMP_NONE)
		return DROP_nat_protocol;
	flow->source_port = ports;
	flow->destination_port = ports >> 16;
	flow->flags = NAT_PEEK;
	return DROP_none;
}

/* Reads the flow of the IPv6 packet that an ICMPv6 error quotes. */
static __always_inline enum drop_reason read_quoted_flow6(struct xdp_md *ctx, struct packet *packet,
							  struct nat_flow *flow, __u32 offset, __u32 bytes)
{
	const struct ipv6_header *ip = (const struct ipv6_header *)packet->header;
	const __be32 *words = (const __be32 *)packet->header;
	enum icmp_kind kind;
	__u64 source[2];
	__u32 ports;

	if (bytes < IPV6_BYTES + ICMP_BYTES || bpf_xdp_load_bytes(ctx, offset, packet->header, IPV6_BYTES))
		return DROP_inner_truncated;
	if ((bpf_ntohl(ip->version) & 0xf0000000) != IPV6_VERSION)
		return DROP_inner_truncated;
	load_halves(source, ip->source);
	load_halves(flow->source6, ip->destination);
	flow->protocol = ip->next;
	/* An error goes to the sender of what it quotes. */
	if (source[0] != packet->frame.destination[0] || source[1] != packet->frame.destination[1])
		return DROP_nat_protocol;
	if (bpf_xdp_load_bytes(ctx, offset + IPV6_BYTES, packet->header, ICMP_BYTES))
		return DROP_inner_truncated;
	ports = bpf_ntohl(words[0]);
	kind = icmp_kind_of(flow->protocol, 1, ports >> 24, ports >> 16);
	if (kind == ICMP_QUERY || kind == ICMP_ANSWER) {
		flow->protocol = IPPROTO_ICMP;
		ports = icmp_ports(kind, kind == ICMP_QUERY ? ICMP4_ECHO : ICMP4_ECHO_REPLY,
				   bpf_ntohl(words[1]) >> 16);
	} else if (flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP) {
		return DROP_nat_protocol;
	}
	flow->source_port = ports;
	flow->destination_port = ports >> 16;
	flow->flags = NAT_PEEK;
	return DROP_none;
}

static __always_inline enum drop_reason read_icmp_flow(struct xdp_md *ctx, struct packet *packet,
						       struct nat_flow *flow, __u32 offset)
{
	__u32 headers = packet->frame.transport_at - ETH_HLEN + ICMP_BYTES, ports;
	const __be16 *id = (const __be16 *)packet->header;
	enum icmp_kind kind = icmp_kind(&packet->frame);
	__u32 type = packet->frame.transport >> 24, quoted;
	int ipv6 = packet->frame.flags & FRAME_IPV6;

	quoted = packet->frame.ip_bytes > headers ? packet->frame.ip_bytes - headers : 0;
	offset += ICMP_BYTES;
	if (kind == ICMP_ERROR)
		return ipv6 ? read_quoted_flow6(ctx, packet, flow, offset, quoted)
			    : read_quoted_flow(ctx, packet, flow, offset, quoted);
	if (ipv6)
		type = kind == ICMP_QUERY ? ICMP4_ECHO : ICMP4_ECHO_REPLY;
	if (kind == ICMP_OTHER || kind == ICMP_NONE)
		return DROP_nat_protocol;
	offset -= ICMP_BYTES - __builtin_offsetof(struct icmp_header, rest);
	if (bpf_xdp_load_bytes(ctx, offset, packet->header, sizeof(*id)))
		return DROP_inner_truncated;
	ports = icmp_ports(kind, type, bpf_ntohs(*id));
	flow->source_port = ports >> 16;
	flow->destination_port = ports;
	if (kind == ICMP_QUERY)
		flow->flags = NAT_QUERY;
	flow->is_answer = kind == ICMP_ANSWER;
	return DROP_none;
}

__attribute__((noinline)) enum drop_reason read_nat_flow(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	struct nat_memory *memory = nat_memory();
	struct nat_flow *flow;
	__u32 offset;

	if (!packet || !memory)
		return DROP_stale_index;
	flow = &memory->flow;
	flow->source = packet->frame.source[1];
	if (packet->frame.flags & FRAME_IPV6) {
		flow->source6[0] = packet->frame.source[0];
		flow->source6[1] = packet->frame.source[1];
		flow->source = exact_mix(flow->source6[0], flow->source6[1]);
	}
	flow->destination = packet->frame.destination[1];
	flow->source_port = packet->frame.transport >> 16;
	flow->destination_port = packet->frame.transport;
	flow->protocol = packet->frame.protocol;
	flow->tcp_flags = 0;
	flow->is_answer = 0;
	flow->flags = 0;
	if (packet->frame.flags & FRAME_LATER)
		return DROP_none;
	offset = at + packet->frame.transport_at;
	switch (flow->protocol) {
	case IPPROTO_TCP:
		offset += __builtin_offsetof(struct tcp_header, flags);
		return bpf_xdp_load_bytes(ctx, offset, &flow->tcp_flags, 1) ? DROP_inner_truncated
									    : DROP_none;
	case IPPROTO_UDP:
		return DROP_none;
	case IPPROTO_ICMPV6:
		flow->protocol = IPPROTO_ICMP;
		return read_icmp_flow(ctx, packet, flow, offset);
	case IPPROTO_ICMP:
		if (!(packet->frame.flags & FRAME_IPV6))
			return read_icmp_flow(ctx, packet, flow, offset);
	}
	return DROP_nat_protocol;
}

#endif
