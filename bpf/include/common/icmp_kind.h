/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What an ICMP message has to do with sessions, and the ports that it has there (session_layout.h).
 *
 * Contract: the packet is neither read nor changed. Uses no map.
 */
#ifndef SLUICE_ICMP_KIND_H
#define SLUICE_ICMP_KIND_H

#include "common/frame.h"

/* Kinds of ICMP messages. */
enum icmp_kind {
	ICMP_NONE,   /* the packet is not ICMP */
	ICMP_QUERY,  /* begins a session, by its identifier; its code is 0 (RFC 792, RFC 4443) */
	ICMP_ANSWER, /* belongs to a session */
	ICMP_ERROR,  /* belongs to the session of the packet that it quotes */
	ICMP_OTHER,  /* has no session: each one is judged by the policy */
};

static __always_inline enum icmp_kind icmp_kind_of(__u8 protocol, int ipv6, __u8 type, __u8 code)
{
	if (ipv6) {
		if (protocol != IPPROTO_ICMPV6)
			return ICMP_NONE;
		if (type < ICMP6_INFORMATION)
			return ICMP_ERROR;
		if (type == ICMP6_ECHO)
			return code ? ICMP_OTHER : ICMP_QUERY;
		return type == ICMP6_ECHO_REPLY ? ICMP_ANSWER : ICMP_OTHER;
	}
	if (protocol != IPPROTO_ICMP)
		return ICMP_NONE;
	switch (type) {
	case ICMP4_ECHO:
	case ICMP4_TIMESTAMP:
		return code ? ICMP_OTHER : ICMP_QUERY;
	case ICMP4_ECHO_REPLY:
	case ICMP4_TIMESTAMP_REPLY:
		return ICMP_ANSWER;
	case ICMP4_UNREACHABLE:
	case ICMP4_TIME_EXCEEDED:
	case ICMP4_PARAMETER_PROBLEM:
		return ICMP_ERROR;
	default:
		return ICMP_OTHER;
	}
}

static __always_inline enum icmp_kind icmp_kind(const struct frame *frame)
{
	return icmp_kind_of(frame->protocol, frame->flags & FRAME_IPV6, frame->transport >> 24,
			    frame->transport >> 16);
}

/* The ports of the session of a query or an answer (session_layout.h), source port in the upper half. */
static __always_inline __u32 icmp_ports(enum icmp_kind kind, __u8 type, __u16 id)
{
	if (kind == ICMP_QUERY)
		return (__u32)id << 16 | type;
	/* The type of an answer is one more than that of its query, except for an echo of IPv4. */
	return (__u32)(type == ICMP4_ECHO_REPLY ? ICMP4_ECHO : type - 1) << 16 | id;
}

#endif
