/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: ends the TCP connections that a VM had before it migrated to this host (Achelous section 6.2, session reset). A
 * TCP accepts a RST only with the exact sequence number (RFC 5961 section 3), which no session has. So each RST is the answer
 * to a segment, which says what its sender expects (RFC 9293 section 3.10.7.1):
 *
 *   segment to the VM     its sender gets a RST with SEQ=SEG.ACK
 *   segment from the VM   the VM gets a RST with SEQ=SEG.ACK. To its receiver goes an empty ACK with SEQ=SEG.SEQ-1, as a
 *                         keep-alive probe (RFC 9293 section 3.8.4). Any TCP answers it with an ACK, which gets a RST as above
 *
 * The agent provokes a segment of a VM that sends none by itself (crates/vswitch/src/migration/resets.rs). Segments with RST or
 * without ACK, and fragments, get no answer. A segment causes at most one segment to each end.
 *
 * Contract: admit() returned DROP_session_reset for the parsed frame, at the start of the packet. The frame is counted as
 * dropped for this reason, whether or not it is answered. The packet becomes another one, which `frame` describes afterwards.
 * Uses the maps of reply.h, qos.h and tunnel.h.
 */
#ifndef SLUICE_RESET_H
#define SLUICE_RESET_H

#include "vswitch/direct.h"
#include "vswitch/reply.h"

#define TCP_BYTES ((int)sizeof(struct tcp_header))
#define SEGMENT4_BYTES (ETH_HLEN + IPV4_BYTES + TCP_BYTES)
#define SEGMENT6_BYTES (ETH_HLEN + IPV6_BYTES + TCP_BYTES)
#define SEGMENT_RST 0x04
#define SEGMENT_ACK 0x10

/* Reads the TCP header of the packet. Whether a RST is the answer to it. */
static __always_inline int read_answered(struct __sk_buff *skb, const struct frame *frame,
					 struct tcp_header *tcp)
{
	if (frame->protocol != IPPROTO_TCP || frame->flags & FRAME_FRAGMENT ||
	    context_load(skb, frame->transport_at, tcp, sizeof(*tcp)))
		return 0;
	return (tcp->flags & (SEGMENT_ACK | SEGMENT_RST)) == SEGMENT_ACK;
}

/* Length of an empty segment of the frame's family. */
static __always_inline __u32 segment_bytes(const struct frame *frame)
{
	return frame->flags & FRAME_IPV6 ? SEGMENT6_BYTES : SEGMENT4_BYTES;
}

static __always_inline void write_tcp(struct tcp_header *tcp, const struct frame *frame, __be32 sequence,
				      __be32 acknowledgment, __u8 flags)
{
	STORE32(&tcp->source, bpf_htonl(frame->transport));
	tcp->sequence = sequence;
	tcp->acknowledgment = acknowledgment;
	tcp->offset = TCP_BYTES / 4 << 4;
	tcp->flags = flags;
	tcp->window = 0;
	tcp->checksum = 0;
	tcp->urgent = 0;
}

/* Writes Ethernet, IPv4 and TCP. 0, or negative if the packet has no room. */
static __always_inline long write_segment4(struct __sk_buff *skb, const struct frame *frame, __be32 sequence,
					   __be32 acknowledgment, __u8 flags)
{
	const __u32 addresses = ETH_HLEN + __builtin_offsetof(struct ipv4_header, source);
	const __u32 checksum = ETH_HLEN + IPV4_BYTES + __builtin_offsetof(struct tcp_header, checksum);
	struct cursor cursor = cursor_at(skb, 0);
	struct ethernet_header *ethernet;

	if (!cursor_has(&cursor, SEGMENT4_BYTES))
		return -1;
	ethernet = next_header(&cursor, struct ethernet_header);
	store_mac(ethernet->destination, frame->destination_mac);
	store_mac(ethernet->source, frame->source_mac);
	ethernet->type = bpf_htons(ETH_P_IP);
	write_ipv4(next_header(&cursor, struct ipv4_header),
		   &(struct ipv4_fields){
			   .ttl = REPLY_TTL,
			   .protocol = IPPROTO_TCP,
			   .bytes = IPV4_BYTES + TCP_BYTES,
			   .fragment = IPV4_DF,
			   .source = bpf_htonl((__u32)frame->source[1]),
			   .destination = bpf_htonl((__u32)frame->destination[1]),
		   });
	write_tcp(next_header(&cursor, struct tcp_header), frame, sequence, acknowledgment, flags);
	return reply_checksum(skb, addresses, SEGMENT4_BYTES - addresses,
			      (__u64)bpf_htonl(TCP_BYTES) + bpf_htonl(IPPROTO_TCP), checksum);
}

/* As write_segment4(), of IPv6. */
static __always_inline long write_segment6(struct __sk_buff *skb, const struct frame *frame, __be32 sequence,
					   __be32 acknowledgment, __u8 flags)
{
	const __u32 addresses = ETH_HLEN + __builtin_offsetof(struct ipv6_header, source);
	const __u32 checksum = ETH_HLEN + IPV6_BYTES + __builtin_offsetof(struct tcp_header, checksum);
	struct cursor cursor = cursor_at(skb, 0);
	struct ethernet_header *ethernet;
	struct ipv6_header *ip;

	if (!cursor_has(&cursor, SEGMENT6_BYTES))
		return -1;
	ethernet = next_header(&cursor, struct ethernet_header);
	store_mac(ethernet->destination, frame->destination_mac);
	store_mac(ethernet->source, frame->source_mac);
	ethernet->type = bpf_htons(ETH_P_IPV6);
	ip = next_header(&cursor, struct ipv6_header);
	write_ipv6(ip, &(struct ipv6_fields){
			       .next = IPPROTO_TCP,
			       .hop_limit = REPLY_TTL,
			       .bytes = TCP_BYTES,
		       });
	store_halves(ip->source, frame->source);
	store_halves(ip->destination, frame->destination);
	write_tcp(next_header(&cursor, struct tcp_header), frame, sequence, acknowledgment, flags);
	return reply_checksum(skb, addresses, SEGMENT6_BYTES - addresses,
			      (__u64)bpf_htonl(TCP_BYTES) + bpf_htonl(IPPROTO_TCP), checksum);
}

/*
 * Writes an empty segment over the packet, which has its length (segment_bytes()). Addresses and ports are those of the frame.
 * DROP_none, or why it cannot.
 */
__attribute__((noinline)) enum drop_reason write_segment(struct __sk_buff *skb, const struct frame *frame,
							 __u32 sequence, __u32 acknowledgment, __u32 flags)
{
	long failed;

	if (!frame)
		return DROP_stale_index;
	if (frame->flags & FRAME_IPV6)
		failed = write_segment6(skb, frame, sequence, acknowledgment, flags);
	else
		failed = write_segment4(skb, frame, sequence, acknowledgment, flags);
	return failed ? DROP_headroom : DROP_none;
}

/* Exchanges sender and receiver. */
static __always_inline void turn_around(struct frame *frame)
{
	__u64 mac = frame->source_mac, high = frame->source[0], low = frame->source[1];

	frame->source_mac = frame->destination_mac;
	frame->source[0] = frame->destination[0];
	frame->source[1] = frame->destination[1];
	frame->destination_mac = mac;
	frame->destination[0] = high;
	frame->destination[1] = low;
	frame->transport = frame->transport << 16 | frame->transport >> 16;
}

/* What an empty segment is, instead of the packet that was parsed. */
static __always_inline void describe_segment(struct frame *frame)
{
	frame->flags = (frame->flags & FRAME_IPV6) | FRAME_DF;
	frame->ip_bytes = segment_bytes(frame) - ETH_HLEN;
	frame->transport_at = segment_bytes(frame) - TCP_BYTES;
	frame->ttl = REPLY_TTL;
	frame->traffic_class = 0;
}

/*
 * Turns the packet into the RST to its sender. DROP_none, or why it is dropped; DROP_session_reset: it gets no answer.
 */
__attribute__((noinline)) enum drop_reason answer_with_reset(struct __sk_buff *skb, struct frame *frame,
							     __u32 vni)
{
	struct tcp_header tcp = {};
	enum drop_reason reason;

	if (!frame)
		return DROP_stale_index;
	if (!read_answered(skb, frame, &tcp))
		return DROP_session_reset;
	reason = reply_begin(skb, segment_bytes(frame));
	if (reason)
		return reason;
	describe_segment(frame);
	turn_around(frame);
	reason = write_segment(skb, frame, tcp.acknowledgment, 0, SEGMENT_RST);
	if (!reason)
		count_drop(vni, DROP_session_reset);
	return reason;
}

/*
 * Sends the RST to the VM from which the packet came, and turns the packet into the probe of its receiver, which goes on as a
 * packet of the VM. DROP_none, or why it is dropped; DROP_session_reset: it gets no answer.
 */
__attribute__((noinline)) enum drop_reason reset_from_vm(struct __sk_buff *skb, struct frame *frame,
							 __u32 vni)
{
	struct tcp_header tcp = {};
	enum drop_reason reason;

	if (!frame)
		return DROP_stale_index;
	if (!read_answered(skb, frame, &tcp))
		return DROP_session_reset;
	reason = reply_begin(skb, segment_bytes(frame));
	if (reason)
		return reason;
	describe_segment(frame);
	turn_around(frame);
	reason = write_segment(skb, frame, tcp.acknowledgment, 0, SEGMENT_RST);
	if (reason)
		return reason;
	skb->priority = QOS_PRIORITY_HIGH;
	/* If the queue of the port is full, the next segment of the VM gets another one. */
	bpf_clone_redirect(skb, skb->ifindex, 0);
	skb->priority = 0;
	turn_around(frame);
	reason = write_segment(skb, frame, bpf_htonl(bpf_ntohl(tcp.sequence) - 1), tcp.acknowledgment,
			       SEGMENT_ACK);
	if (!reason)
		count_drop(vni, DROP_session_reset);
	return reason;
}

/* Answers a segment of a VM of this host to another one of this host. */
static __always_inline int reset_local_sender(struct __sk_buff *skb, struct frame *frame, __u32 vni)
{
	enum drop_reason reason = answer_with_reset(skb, frame, vni);

	return reason ? port_drop(vni, reason) : reply_send(skb);
}

/*
 * Answers a segment from the underlay to the VM at the port in the cell hit->next. The answer goes the way of the VM's packets
 * and counts for its rate: many segments do not make the port send more than its own VM may.
 */
static __always_inline int reset_remote_sender(struct __sk_buff *skb, struct frame *frame,
					       struct exact_hit *hit, __u32 vrf_cell, __u32 vni)
{
	enum drop_reason reason = answer_with_reset(skb, frame, vni);
	const struct port *port = vm_port_at(hit->next);
	enum exact_answer found;

	if (reason)
		return port_drop(vni, reason);
	if (!port)
		return port_drop(vni, DROP_stale_index);
	frame->identity = port_identity(port, hit->next);
	if (port->flags & PORT_QOS) {
		reason = qos_send(skb, frame, hit->next, skb->len - ETH_HLEN);
		if (reason)
			return port_drop(vni, reason);
	}
	if (frame->flags & FRAME_IPV6)
		found = find_ipv6(vni, frame->destination[0], frame->destination[1], hit);
	else
		found = find_ipv4(vni, frame->destination[1], hit);
	if (found == EXACT_MISS)
		return tunnel_to_group(skb, vrf_cell, vni, frame);
	if (is_direct(found, hit))
		return send_direct(skb, frame, hit, vrf_cell, vni);
	return port_drop(vni, found == EXACT_BUSY ? DROP_table_busy : DROP_not_local);
}

#endif
