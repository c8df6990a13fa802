/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Evaluates a policy of cells.h: which rule permits a packet.
 *
 * Contract: the caller reads the word `policy` of its struct port once, and passes it on. It knows the remote's
 * identity: a number for the set of groups that the remote has, 0 if none is known. For ingress the remote is the
 * source, for egress the destination. Addresses are in host order, IPv6 as halves. Nothing is written. Tables that
 * are damaged, or that have lost the policy, permit nothing.
 *
 * Cost: at most POLICY_READS_MAX4 or POLICY_READS_MAX6 cells (cells.h), whatever the rules and packets are. Usually it is
 * five to fifteen (docs/decisions/policies.md).
 */
#ifndef SLUICE_POLICY_H
#define SLUICE_POLICY_H

#include "common/lookup.h"

/* Answers of policy_evaluate() besides the ids of rules. */
#define POLICY_DENIED 0u
#define POLICY_UNRESTRICTED 0xffffffffu /* the port has no policy: everything is permitted */

struct policy_packet {
	__u64 high; /* the remote's address; IPv4 in `low` */
	__u64 low;
	__u32 service;	/* policy_service() or policy_service_of_fragment() */
	__u16 identity; /* the remote's */
	__u8 ipv6;
	__u8 egress;
};

/* The service of a packet with a transport header. `port`: the destination port; ICMP: type << 8 | code; 0: none. */
static __always_inline __u32 policy_service(__u8 protocol, __u16 port)
{
	return (__u32)protocol << SERVICE_PROTOCOL_SHIFT | (__u32)port << SERVICE_PORT_SHIFT;
}

/* The service of a later fragment: only rules for all of its protocol match. */
static __always_inline __u32 policy_service_of_fragment(__u8 protocol)
{
	return (__u32)protocol << SERVICE_PROTOCOL_SHIFT | SERVICE_NO_TRANSPORT;
}

/* The rule of service set `number` that permits a service. 0: none does. */
static __always_inline __u32 policy_find_in_set(const struct policy *policy, __u32 number, __u32 service)
{
	const __u64 *words;

	if (!number || number > policy->set_count)
		return 0;
	number--;
	words = cell_at(policy->sets + number / 8);
	return words ? find_route4(READ_ONCE(words[number % 8]), service) : 0;
}

/*
 * The id of a rule that permits the packet, of the policy at `cell`; POLICY_DENIED or POLICY_UNRESTRICTED. If
 * several rules permit it, the answer is one of them.
 */
__attribute__((noinline)) __u32 policy_evaluate(__u32 cell, const struct policy_packet *packet)
{
	const struct policy *policy;
	__u32 rule;

	if (!packet)
		return POLICY_DENIED;
	if (!cell)
		return POLICY_UNRESTRICTED;
	policy = cell_at(cell + (packet->egress ? 1 : 0));
	if (!policy || policy->kind != NEXT_HOP_POLICY)
		return POLICY_DENIED;
	rule = find_route4(packet->ipv6 ? policy->any[1] : policy->any[0], packet->service);
	if (rule)
		return rule;
	if (packet->ipv6)
		rule = find_route6(policy->addresses[1], packet->high, packet->low);
	else
		rule = find_route4(policy->addresses[0], packet->low);
	rule = policy_find_in_set(policy, rule, packet->service);
	if (rule || !packet->identity)
		return rule;
	rule = find_route4(policy->identities, (__u32)packet->identity << POLICY_IDENTITY_SHIFT |
						       (packet->ipv6 ? POLICY_IDENTITY_IPV6 : 0));
	return policy_find_in_set(policy, rule, packet->service);
}

#endif
