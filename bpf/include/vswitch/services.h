/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: to the members of services, and into their vNICs (docs/decisions/services.md; Achelous section 5.2).
 *
 * A flow keeps its member as long as its session exists and the member may have flows: the session record of the sending port
 * has the member's number. A port without a policy has no sessions, and its flows follow the table. So do fragments, all of which
 * must reach the same member: a later one has no ports, and no session. An ICMP error goes to the member of the flow that it quotes.
 *
 * Contract: an exact match has found a service. choose_member() changes at most the session record; the packet is not changed.
 * send_to_member() routes it and sends it, or drops and counts it, and returns the verdict. Uses the maps `cells`, `admissions` and
 * those of count.h and session_maps.h.
 */
#ifndef SLUICE_VSWITCH_SERVICES_H
#define SLUICE_VSWITCH_SERVICES_H

#include "common/services.h"
#include "vswitch/admission.h"
#include "vswitch/sources.h"
#include "vswitch/tunnel.h"

/* Whether an exact match found the address of a service. */
static __always_inline int is_service(enum exact_answer found, const struct exact_hit *hit)
{
	return found == EXACT_HIT && service_at(hit->next);
}

/* The highest byte of the second word of `action`, in which a session keeps its member. */
static __always_inline __u8 *pin_of(struct session_data *data)
{
	return (__u8 *)&data->action[1] + SESSION_MEMBER_SHIFT / 8;
}

/*
 * The record of the session by which the frame has passed its own port, which is filtered: for an ICMP error, that of the packet
 * that it quotes. NULL: it passed without one.
 */
static __always_inline struct session_data *session_of_sender(const struct frame *frame, enum icmp_kind kind)
{
	__u32 zero = 0;
	struct admission *memory;

	if (frame->flags & (FRAME_FRAGMENT | FRAME_LATER) || kind == ICMP_OTHER)
		return NULL;
	memory = bpf_map_lookup_elem(&admissions, &zero);
	if (!memory)
		return NULL;
	return frame->flags & FRAME_IPV6 ? session_data_at(6, &memory->hit)
					 : session_data_at(4, &memory->hit);
}

/*
 * The cell of the member to which a packet of a VM goes; 0: the service has no member. `filtered`: the port of the VM is filtered, and its
 * policy has admitted the packet last.
 */
__attribute__((noinline)) __u32 choose_member(__u32 service_cell, const struct frame *frame, __u32 filtered)
{
	struct session_data *data;
	__u32 pin, number;
	enum icmp_kind kind;
	__u64 member;

	if (!frame)
		return 0;
	kind = icmp_kind(frame);
	data = filtered ? session_of_sender(frame, kind) : NULL;
	if (!data)
		return find_member(service_cell, frame, 0);
	pin = READ_ONCE(*pin_of(data));
	member = find_member(service_cell, frame, pin & SESSION_MEMBER_MASK);
	number = member >> MEMBER_NUMBER_SHIFT;
	/*
	 * The other bit of the byte never changes, so one store is enough. The agent repeats its own if this comes between. The slot
	 * of an ICMP error is not that of the flow that it quotes.
	 */
	if (kind != ICMP_ERROR && number && (pin & SESSION_MEMBER_MASK) != number)
		WRITE_ONCE(*pin_of(data), (pin & ~SESSION_MEMBER_MASK) | number);
	return member;
}

/* Whether the member is on this host. */
static __always_inline int is_member_here(const struct node_config *node, const struct next_hop *hop)
{
	if (!(READ_ONCE(hop->flags) & NEXT_HOP_IPV6))
		return node->flags & NODE_HAS_IPV4 && LOAD32(hop->address) == node->vtep4;
	return node->flags & NODE_HAS_IPV6 && LOAD64(hop->address) == LOAD64(node->vtep6) &&
	       LOAD64(hop->address + 8) == LOAD64(node->vtep6 + 8);
}

/* Finds the vNIC with this MAC address in the VNI. */
static __always_inline enum exact_answer find_vnic(__u32 vni, __u64 mac, struct exact_hit *hit)
{
	return find_ipv6(vni, ROUTER6_HIGH, MAC_LINK_LOCAL(mac), hit);
}

/* Sends a packet of the VNI, which is to the router's MAC address, to the member in `cell`, on another host. */
__attribute__((noinline)) int send_to_member(struct __sk_buff *skb, struct frame *frame, __u32 cell,
					     __u32 vrf_cell, __u32 vni)
{
	const struct vrf *vrf = vrf_at(vrf_cell, vni);
	const struct node_config *node = node_at();
	struct next_hop *hop = next_hop_at(cell, NEXT_HOP_VTEP);
	__u32 bytes = skb->len;
	int verdict;

	if (!frame || !vrf || !node || !hop)
		return port_drop(vni, DROP_stale_index);
	if (route_headers(skb, frame, node, load_mac(hop->mac)))
		return port_drop(vni, DROP_headroom);
	verdict = tunnel_send(skb, node, frame, hop, cell, vni, vni,
			      frame_secret_hash(frame, node->flow_secret));
	if (verdict == VERDICT_SENT)
		count_traffic(vrf->counters, bytes);
	return verdict;
}

#endif
