// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The vSwitch of a host. port_ingress processes frames of a VM, on the host's side of its port.
 * underlay_ingress processes what the underlay interface receives, and takes most packets for VMs out of it.
 * uplink_ingress processes the others, on the VXLAN device in external mode. Verdicts are enum verdict
 * (port.h).
 *
 *   VM -> anti-spoofing -> ARP, ND, DHCP, messages to the router: answered here
 *      -> security groups -> DSCP and rate of the port (qos.h)
 *         segments of connections that end after a migration are answered (reset.h), in both directions
 *                       -> (VNI, destination) is a port of this host: delivered
 *                       -> (VNI, destination) has a direct path: through the tunnel to its host
 *                       -> (VNI, destination) is a service's: to one of its members (services.h)
 *                       -> otherwise: through the tunnel to the VPC's gateway group; counted (sent_flows.h)
 *   underlay interface -> plain VXLAN, known sender, (VNI, destination) is a port: delivered
 *                      -> otherwise: to the host's stack, which passes VXLAN to the VXLAN device
 *   VXLAN device -> known sender -> (VNI, destination) is a port: delivered
 *                                -> (VNI, destination) migrates: to its host by redirect_stray (strays.h)
 *                                -> otherwise, from a host: to the gateway group (strays.h)
 *
 * A VM can set many fields of the skb. So the programs rely only on the packet's bytes, its length, its
 * interface and its segment size. A checksum that is still to be stored must not change bytes that were
 * checked (pending_checksum.h).
 */
#include "vswitch/admission.h"
#include "vswitch/decapsulate.h"
#include "vswitch/deliver.h"
#include "vswitch/dhcp.h"
#include "vswitch/dhcp6.h"
#include "vswitch/pending_checksum.h"
#include "vswitch/qos.h"
#include "vswitch/reset.h"
#include "vswitch/router_advertisement.h"
#include "vswitch/services.h"
#include "vswitch/sent_flows.h"
#include "vswitch/sources.h"
#include "vswitch/strays.h"
#include "vswitch/tunnel.h"
#include "vswitch/unknown_port.h"
#include "vswitch/vm_arp.h"
#include "vswitch/vm_icmp.h"
#include "vswitch/vm_nd.h"

/* Parses the frame, after making it linear as far as that needs. */
static __attribute__((noinline)) enum drop_reason parse_skb(struct __sk_buff *skb, struct frame *frame)
{
	__u32 reach = skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX;
	enum drop_reason reason;

	if (skb->vlan_present)
		return DROP_inner_vlan;
	for (int i = 0; i < 2; i++) {
		struct cursor cursor = cursor_at(skb, 0);

		reason = parse_frame(skb, 0, skb->len, frame);
		if (reason != DROP_inner_truncated || cursor_has(&cursor, reach))
			break;
		if (bpf_skb_pull_data(skb, reach))
			break;
	}
	return reason;
}

/* `from` of admit() for a packet to the VM at a filtered port: the identity of its sender. */
static __always_inline __u32 admit_from(const struct frame *frame)
{
	return (__u32)frame->identity << ADMIT_IDENTITY_SHIFT;
}

/* Delivers a VM's packet with a valid source to another port on this host. */
static __always_inline int send_to_port(struct __sk_buff *skb, const struct vrf *vrf, __u32 port_cell,
					struct frame *frame, const struct port *to,
					const struct exact_hit *hit)
{
	const struct node_config *node = node_at();

	if (!node)
		return port_drop(vrf->vni, DROP_stale_index);
	if (to->ifindex == skb->ifindex)
		return port_drop(vrf->vni, DROP_hairpin);
	/* What the receiver's policy is asked costs the receiver. The sender's part stays for packet_timed(). */
	frame->judged <<= 1;
	if (to->flags & PORT_FILTERED) {
		enum drop_reason reason = admit(skb, frame, to, hit->next, admit_from(frame));

		if (reason == DROP_session_reset)
			return reset_local_sender(skb, frame, vrf->vni);
		if (reason)
			return port_drop(vrf->vni, reason);
	}
	if (frame->destination_mac == load_mac(node->router_mac)) {
		if (frame->ttl <= 1)
			return send_vm_error(skb, port_cell, frame, DROP_ttl_exceeded);
		if (route_headers(skb, frame, node, delivered_mac(hit, to, node)))
			return port_drop(vrf->vni, DROP_headroom);
	} else if (frame->destination_mac != hit->mac) {
		return port_drop(vrf->vni, DROP_wrong_mac);
	}
	return deliver(skb, frame, to, vrf);
}

/*
 * The MTU of the direct path that the exact match found, if it has one and the packet, or one that it will be cut into, is longer;
 * otherwise 0.
 */
__attribute__((noinline)) __u32 exceeded_mtu(struct __sk_buff *skb, const struct frame *frame,
					     const struct exact_hit *hit)
{
	const struct next_hop *hop;
	__u32 mtu;

	if (!frame || !hit)
		return 0;
	hop = next_hop_at(hit->next, NEXT_HOP_DIRECT);
	mtu = hop ? READ_ONCE(hop->mtu) : 0;
	return mtu && longest_packet(skb, frame) > mtu ? mtu : 0;
}

/* Sends a VM's packet with a valid source by the direct path that the exact match found. */
static __always_inline int send_by_direct_path(struct __sk_buff *skb, __u32 vni, __u32 vrf_cell,
					       __u32 port_cell, struct frame *frame, struct exact_hit *hit)
{
	const struct node_config *node = node_at();

	if (node && frame->destination_mac == load_mac(node->router_mac) && frame->ttl <= 1)
		return send_vm_error(skb, port_cell, frame, DROP_ttl_exceeded);
	if (skb->len - ETH_HLEN > DIRECT_MTU_MIN) {
		__u32 mtu = exceeded_mtu(skb, frame, hit);

		if (mtu)
			return send_vm_error(skb, port_cell, frame, DROP_too_big | mtu << VM_ERROR_MTU_SHIFT);
	}
	return send_direct(skb, frame, hit, vrf_cell, vni);
}

/* Forwards a VM's packet with a valid source to a member of the service that the exact match found. */
static __always_inline int send_to_service(struct __sk_buff *skb, const struct port *port,
					   const struct vrf *vrf, __u32 vrf_cell, __u32 port_cell,
					   struct frame *frame, struct exact_hit *hit)
{
	__u32 member = choose_member(hit->next, frame, port->flags & PORT_FILTERED);
	const struct next_hop *hop = member ? next_hop_at(member, NEXT_HOP_VTEP) : NULL;
	const struct node_config *node = node_at();
	enum drop_reason reason;
	enum exact_answer found;
	const struct port *to;

	if (!node || !hop)
		return port_drop(vrf->vni, DROP_no_member);
	if (frame->destination_mac != load_mac(node->router_mac))
		return port_drop(vrf->vni, DROP_wrong_mac);
	if (frame->ttl <= 1)
		return send_vm_error(skb, port_cell, frame, DROP_ttl_exceeded);
	if (!is_member_here(node, hop))
		return send_to_member(skb, frame, member, vrf_cell, vrf->vni);
	found = find_vnic(vrf->vni, load_mac(hop->mac), hit);
	to = local_port(found, hit, vrf->vni, &reason);
	if (!to)
		return port_drop(vrf->vni, found == EXACT_MISS ? DROP_no_member : reason);
	return send_to_port(skb, vrf, port_cell, frame, to, hit);
}

/* Forwards a VM's packet with a valid source. `to_router`: its destination is the router. */
static __always_inline int forward_unicast(struct __sk_buff *skb, const struct port *port,
					   const struct vrf *vrf, __u32 vrf_cell, __u32 port_cell,
					   struct frame *frame, int to_router)
{
	struct exact_hit hit = {};
	enum drop_reason reason;
	enum exact_answer found;
	const struct port *to;
	__u32 longest;

	if (frame_multicast(frame))
		return port_drop(vrf->vni, DROP_multicast);
	if (to_router) {
		if (is_echo(frame))
			return echo_answer(skb, port_cell, frame);
		return port_drop(vrf->vni, DROP_no_endpoint);
	}
	if (port->flags & PORT_FILTERED) {
		reason = admit(skb, frame, port, port_cell, ADMIT_EGRESS);
		if (frame->judged && port->flags & PORT_QOS)
			credit_judged(port->scope);
		if (reason == DROP_session_reset)
			reason = reset_from_vm(skb, frame, vrf->vni);
		if (reason)
			return port_drop(vrf->vni, reason);
	}
	longest = longest_packet(skb, frame);
	if (longest > port->mtu)
		return send_vm_error(skb, port_cell, frame, DROP_too_big);
	if (port->flags & PORT_QOS) {
		reason = qos_send(skb, frame, port_cell, longest);
		if (reason)
			return port_drop(vrf->vni, reason);
	}
	if (frame->flags & FRAME_IPV6)
		found = find_ipv6(vrf->vni, frame->destination[0], frame->destination[1], &hit);
	else
		found = find_ipv4(vrf->vni, frame->destination[1], &hit);
	if (found == EXACT_MISS) {
		__u32 bytes = skb->len, vni = vrf->vni;
		int verdict = tunnel_to_group(skb, vrf_cell, vni, frame);

		if (verdict == VERDICT_SENT)
			count_sent(frame, vrf_cell, bytes);
		return verdict;
	}
	to = local_port(found, &hit, vrf->vni, &reason);
	if (to)
		return send_to_port(skb, vrf, port_cell, frame, to, &hit);
	if (is_service(found, &hit))
		return send_to_service(skb, port, vrf, vrf_cell, port_cell, frame, &hit);
	if (is_direct(found, &hit))
		return send_by_direct_path(skb, vrf->vni, vrf_cell, port_cell, frame, &hit);
	return port_drop(vrf->vni, reason);
}

/* Sends an ARP request or a neighbor solicitation of a VM to a gateway. It counts for the port's rate. */
static __always_inline int ask_gateway(struct __sk_buff *skb, const struct port *port, const struct vrf *vrf,
				       __u32 vrf_cell, __u32 port_cell, struct frame *frame)
{
	if (port->flags & PORT_QOS) {
		enum drop_reason reason = qos_send(skb, frame, port_cell, skb->len - ETH_HLEN);

		if (reason)
			return port_drop(vrf->vni, reason);
	}
	return tunnel_to_group(skb, vrf_cell, vrf->vni, frame);
}

/* Whether the packet is UDP to this port, given in host order. */
static __always_inline int is_udp_to(const struct frame *frame, __u16 destination)
{
	return frame->protocol == IPPROTO_UDP && !(frame->flags & FRAME_LATER) &&
	       (__u16)frame->transport == destination;
}

#define IGMP_QUERY 0x11

/* IGMP from a VM. Multicast is not forwarded, so reports have no effect. Only a router sends queries. */
static __always_inline int igmp_from_vm(struct __sk_buff *skb, const struct vrf *vrf,
					const struct frame *frame)
{
	__u8 type = 0;

	if (context_load(skb, frame->transport_at, &type, 1))
		return port_drop(vrf->vni, DROP_inner_truncated);
	return type == IGMP_QUERY ? port_drop(vrf->vni, DROP_forged_control) : VERDICT_ABSORBED;
}

static __always_inline int ipv4_from_vm(struct __sk_buff *skb, const struct port *port, const struct vrf *vrf,
					__u32 vrf_cell, __u32 port_cell, struct frame *frame)
{
	__u32 own = bpf_ntohl(port->address4), router = bpf_ntohl(port->router4);
	__u32 source = frame->source[1], destination = frame->destination[1];

	/* DHCP clients receive there, and not all of them check the source port. */
	if (is_udp_to(frame, DHCP_CLIENT_PORT))
		return port_drop(vrf->vni, DROP_forged_control);
	if (source && source != own && !may_send(port, port_cell, frame))
		return port_drop(vrf->vni, DROP_spoofed_ip);
	if (frame->protocol == IPPROTO_IGMP && ipv4_multicast(destination))
		return igmp_from_vm(skb, vrf, frame);
	if (is_udp_to(frame, DHCP_SERVER_PORT) && frame->transport >> 16 == DHCP_CLIENT_PORT &&
	    (destination == 0xffffffff || destination == router)) {
		if (!own || !router) /* a subnet without IPv4 */
			return port_drop(vrf->vni, DROP_multicast);
		if (frame->flags & FRAME_FRAGMENT)
			return port_drop(vrf->vni, DROP_dhcp_malformed);
		return dhcp_answer(skb, port_cell, frame->transport_at + UDP_BYTES);
	}
	if (!source)
		return port_drop(vrf->vni, DROP_spoofed_ip);
	return forward_unicast(skb, port, vrf, vrf_cell, port_cell, frame, router && destination == router);
}

static __always_inline int ipv6_from_vm(struct __sk_buff *skb, const struct port *port, const struct vrf *vrf,
					__u32 vrf_cell, __u32 port_cell, struct frame *frame)
{
	int own, to_router;

	if (is_control_icmp6(frame)) {
		struct nd_decision decision = {};
		int verdict = nd_from_vm(skb, port_cell, frame, &decision);

		if (verdict == VERDICT_ND_ANSWER)
			return nd_answer(skb, port_cell, frame, &decision);
		if (verdict == VERDICT_ROUTER_ADVERTISEMENT)
			return router_advertise(skb, port_cell, frame->source[0], frame->source[1]);
		if (verdict == VERDICT_FORWARD)
			return ask_gateway(skb, port, vrf, vrf_cell, port_cell, frame);
		return verdict;
	}
	if (is_udp_to(frame, DHCP6_CLIENT_PORT))
		return port_drop(vrf->vni, DROP_forged_control);
	if (is_dhcp6_request(frame) && is_udp_to(frame, DHCP6_SERVER_PORT)) {
		if (!port_has_ipv6(port))
			return port_drop(vrf->vni, DROP_multicast);
		return dhcp6_answer(skb, port_cell, frame);
	}
	own = is_port_address6(port, frame->source);
	to_router = is_router6(port, frame->destination);
	if (!own && !ipv6_link_local(frame->source[0]) && !may_send(port, port_cell, frame))
		return port_drop(vrf->vni, DROP_spoofed_ip);
	/* From and to link-local addresses, only the router is reached. */
	if (ipv6_link_local(frame->source[0]) ? !to_router
					      : ipv6_link_local(frame->destination[0]) && !to_router)
		return port_drop(vrf->vni, frame_multicast(frame) ? DROP_multicast : DROP_link_local);
	return forward_unicast(skb, port, vrf, vrf_cell, port_cell, frame, to_router);
}

static __always_inline int frame_from_vm(struct __sk_buff *skb, struct frame *frame)
{
	__u32 port_cell = find_index(0, skb->ifindex), vrf_cell;
	const struct port *port;
	const struct vrf *vrf;
	enum drop_reason reason;
	int verdict;

	if (!port_cell) {
		count_unknown_port(skb->ifindex);
		return port_drop(0, DROP_unknown_port);
	}
	if (port_cell == INDEX_BUSY)
		return port_drop(0, DROP_table_busy);
	port = vm_port_at(port_cell);
	if (!port)
		return port_drop(0, DROP_stale_index);
	vrf_cell = READ_ONCE(port->vrf);
	vrf = vrf_at(vrf_cell, port->vni);
	if (!vrf)
		return port_drop(0, DROP_unknown_vni);
	if (port->flags & PORT_QOS) {
		reason = credit_enter(port->scope, skb->len);
		if (reason)
			return port_drop(vrf->vni, reason);
	}
	reason = parse_skb(skb, frame);
	if (reason)
		return port_drop(vrf->vni, reason);
	frame->identity = port_identity(port, port_cell);
	if (frame->source_mac != load_mac(port->mac) &&
	    !may_send_from_mac(port, port_cell, frame->source_mac))
		return port_drop(vrf->vni, DROP_spoofed_mac);
	if (checksum_misplaced(skb, frame))
		return port_drop(vrf->vni, DROP_pending_checksum);
	if (frame->ethertype == ETH_P_IP)
		return ipv4_from_vm(skb, port, vrf, vrf_cell, port_cell, frame);
	if (frame->ethertype == ETH_P_IPV6)
		return ipv6_from_vm(skb, port, vrf, vrf_cell, port_cell, frame);
	verdict = arp_from_vm(skb, port_cell, frame);
	if (verdict == VERDICT_FORWARD)
		return ask_gateway(skb, port, vrf, vrf_cell, port_cell, frame);
	return verdict;
}

SEC("tc")
int port_ingress(struct __sk_buff *skb)
{
	struct frame *frame = frame_begin();
	int verdict;

	if (!frame)
		return port_drop(0, DROP_stale_index);
	time_packet(frame);
	verdict = frame_from_vm(skb, frame);
	packet_timed(frame, COST_SENT);
	return verdict;
}

/* Finds the receiver of a frame to an address, of which the exact match found an entry: of a service, the vNIC on this host. */
static __always_inline enum exact_answer find_bonded(enum exact_answer found, __u32 vni,
						     const struct frame *frame, struct exact_hit *hit,
						     enum drop_reason *reason)
{
	if (!is_service(found, hit))
		return found;
	found = find_vnic(vni, frame->destination_mac, hit);
	*reason = found == EXACT_MISS ? DROP_no_member : DROP_none;
	return found;
}

/*
 * Looks up the destination of a frame from the underlay. `reason` is set to why it must be dropped, or
 * DROP_none.
 */
static __always_inline enum exact_answer find_receiver(struct __sk_buff *skb, __u32 vni, struct frame *frame,
						       struct exact_hit *hit, enum drop_reason *reason)
{
	struct cursor cursor = cursor_at(skb, ETH_HLEN);
	struct arp_message arp = {};
	const struct arp_header *header;

	*reason = DROP_multicast;
	if (frame->destination_mac & MAC_GROUP_BIT)
		return EXACT_MISS;
	*reason = DROP_none;
	if (frame->ethertype == ETH_P_IPV6)
		return find_bonded(find_ipv6(vni, frame->destination[0], frame->destination[1], hit), vni,
				   frame, hit, reason);
	if (frame->ethertype == ETH_P_IP)
		return find_bonded(find_ipv4(vni, frame->destination[1], hit), vni, frame, hit, reason);
	/* Gateways send only ARP replies. */
	header = take_header(&cursor, struct arp_header);
	*reason = header ? parse_arp(header, frame, &arp) : DROP_inner_truncated;
	if (!*reason && arp.operation != ARP_REPLY)
		*reason = DROP_multicast;
	frame->destination[1] = arp.target;
	if (*reason)
		return EXACT_MISS;
	return find_bonded(find_ipv4(vni, arp.target, hit), vni, frame, hit, reason);
}

/* Whether the packet is what a DHCP server sends to a client. Only this host answers its VMs. */
static __always_inline int is_dhcp_answer(const struct frame *frame)
{
	return is_udp_to(frame, frame->flags & FRAME_IPV6 ? DHCP6_CLIENT_PORT : DHCP_CLIENT_PORT);
}

/*
 * Whether the frame is a control message that only this host sends to its VMs: anything about the
 * router, answers of DHCP, and all requests. ARP and ND messages of a gateway are answers about other VMs.
 */
static __always_inline int is_forged(struct __sk_buff *skb, const struct frame *frame,
				     const struct port *port)
{
	__u8 type = frame->transport >> 24;
	__u64 target[2];
	__be32 sender;

	if (frame->ethertype == ETH_P_ARP)
		return context_load(skb, ETH_HLEN + __builtin_offsetof(struct arp_header, sender), &sender,
				    sizeof(sender)) ||
		       sender == port->router4;
	if (!is_control_icmp6(frame))
		return is_dhcp_answer(frame);
	if (type != ICMP6_ADVERT ||
	    context_load(skb, ND_AT + __builtin_offsetof(struct nd_header, target), target, sizeof(target)))
		return 1;
	load_halves(target, target);
	return is_router6(port, target);
}

SEC("tc")
int uplink_ingress(struct __sk_buff *skb)
{
	struct tunnel_sender from = {};
	struct exact_hit hit = {};
	struct frame *frame = frame_begin();
	enum drop_reason reason;
	const struct port *port;
	const struct vrf *vrf;
	__u32 vni = 0, vrf_cell;
	enum exact_answer found;

	if (!frame)
		return port_drop(0, DROP_stale_index);
	reason = tunnel_read(skb, &vni, &from);
	if (reason)
		return port_drop(0, reason);
	reason = check_tunnel_sender(&from, vni);
	vrf_cell = tunnel_vrf(&from, vni);
	if (vrf_cell == INDEX_BUSY)
		return port_drop(0, DROP_table_busy);
	vrf = vni ? vrf_at(vrf_cell, vni) : NULL;
	if (reason)
		return port_drop(vrf && reason == DROP_foreign_sender ? vni : 0, reason);
	if (!vrf)
		return port_drop(0, DROP_unknown_vni);
	reason = parse_skb(skb, frame);
	if (reason)
		return port_drop(vni, reason);
	frame->identity = from.identity;
	found = find_receiver(skb, vni, frame, &hit, &reason);
	if (reason)
		return port_drop(vni, reason);
	if (is_stray(found, &hit)) {
		const struct next_hop *moved = moved_path(found, &hit);

		if (!moved) {
			found = find_delegated(vrf_cell, vni, frame, &hit);
			moved = moved_path(found, &hit);
		}
		if (moved)
			return redirect_stray(skb, frame, &from, moved, &hit, vrf_cell, vni);
		if (found == EXACT_MISS)
			return forward_stray(skb, frame, &from, vrf_cell, vni);
	}
	port = local_port(found, &hit, vni, &reason);
	if (!port)
		return port_drop(vni, reason);
	if (!accept_mac(skb, frame, port, &hit))
		return port_drop(vni, DROP_wrong_mac);
	if (frame->ethertype != ETH_P_ARP && !source_valid(frame))
		return port_drop(vni, DROP_inner_source);
	if (is_forged(skb, frame, port))
		return port_drop(vni, DROP_forged_control);
	if (port->flags & PORT_FILTERED && frame->ethertype != ETH_P_ARP && !is_control_icmp6(frame)) {
		reason = admit(skb, frame, port, hit.next, admit_from(frame));
		if (reason == DROP_session_reset)
			return reset_remote_sender(skb, frame, &hit, vrf_cell, vni);
		if (reason)
			return port_drop(vni, reason);
	}
	return deliver(skb, frame, port, vrf);
}

/*
 * The port that may get the parsed frame from the underlay without further questions but its policy, and how the
 * destination was found; NULL: none.
 */
static __always_inline const struct port *plain_receiver(const struct frame *frame, __u32 vrf_cell, __u32 vni,
							 struct exact_hit *hit)
{
	enum drop_reason reason;
	const struct port *port;
	enum exact_answer found;

	if (frame->destination_mac & MAC_GROUP_BIT || is_control_icmp6(frame) || is_dhcp_answer(frame) ||
	    !source_valid(frame))
		return NULL;
	if (frame->flags & FRAME_IPV6)
		found = find_ipv6(vni, frame->destination[0], frame->destination[1], hit);
	else
		found = find_ipv4(vni, frame->destination[1], hit);
	found = find_bonded(found, vni, frame, hit, &reason);
	if (is_stray(found, hit))
		found = find_delegated(vrf_cell, vni, frame, hit);
	port = local_port(found, hit, vni, &reason);
	return port && (frame->destination_mac == load_mac(port->mac) || frame->destination_mac == hit->mac)
		     ? port
		     : NULL;
}

static __always_inline int frame_from_underlay(struct __sk_buff *skb, struct frame *frame)
{
	const struct node_config *node = node_at();
	struct tunnel_sender from = {};
	struct exact_hit hit = {};
	const struct port *port;
	const struct vrf *vrf;
	__u32 vni = 0, vrf_cell;

	if (!node || !read_underlay(skb, node, &vni, &from))
		return VERDICT_PASSED;
	if (!vni || check_tunnel_sender(&from, vni))
		return VERDICT_PASSED;
	vrf_cell = tunnel_vrf(&from, vni);
	vrf = vrf_at(vrf_cell, vni);
	if (!vrf)
		return VERDICT_PASSED;
	if (parse_frame(skb, TUNNEL4_BYTES, skb->len - TUNNEL4_BYTES, frame) ||
	    frame->ethertype == ETH_P_ARP || !can_decapsulate(frame) || may_be_merged(skb, frame) ||
	    !can_be_marked(&from, frame))
		return VERDICT_PASSED;
	frame->identity = from.identity;
	port = plain_receiver(frame, vrf_cell, vni, &hit);
	if (!port || remove_outer_headers(skb, frame->flags & FRAME_IPV6))
		return VERDICT_PASSED;
	if (!accept_mac(skb, frame, port, &hit))
		return port_drop(vni, DROP_wrong_mac);
	if (from.is_congested)
		bpf_skb_ecn_set_ce(skb);
	if (port->flags & PORT_FILTERED) {
		enum drop_reason reason = admit(skb, frame, port, hit.next, admit_from(frame));

		if (reason == DROP_session_reset)
			return reset_remote_sender(skb, frame, &hit, vrf_cell, vni);
		if (reason)
			return port_drop(vni, reason);
	}
	return deliver(skb, frame, port, vrf);
}

SEC("tc")
int underlay_ingress(struct __sk_buff *skb)
{
	struct frame *frame = frame_begin();
	int verdict;

	if (!frame)
		return VERDICT_PASSED;
	time_packet(frame);
	verdict = frame_from_underlay(skb, frame);
	if (verdict != VERDICT_PASSED)
		packet_timed(frame, COST_RECEIVED);
	return verdict;
}

char LICENSE[] SEC("license") = "GPL";
