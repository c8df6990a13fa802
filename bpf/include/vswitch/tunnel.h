/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: to and from other nodes. Most packets are encapsulated here (encapsulate.h). The others are left to
 * the kernel's VXLAN device in external mode, whose tunnel key the programs set and read.
 *
 * Contract: sending returns the verdict: the packet was sent, or dropped and counted. The tenant's frame is
 * not changed. Uses the maps `cells` and those of count.h.
 */
#ifndef SLUICE_TUNNEL_H
#define SLUICE_TUNNEL_H

#include "vswitch/encapsulate.h"

/* The kernel's type of the tunnel option of VXLAN, which is not part of its API's headers. */
struct vxlan_metadata {
	__u32 gbp; /* VXLAN_GROUP_ID and VXLAN_REDIRECTED */
};

/*
 * Sends the packet to the node in `cell` by the VXLAN device, with this identity, and VXLAN_REDIRECTED if it is in it. Other
 * parameters as for tunnel_send().
 *
 * The identity is set for each packet, also if it is 0: if it is not set, a device with the flag `gbp` takes it from memory
 * that was never written (vxlan_xmit_one(), in Linux 6.1 and still in 6.18). A device without the flag ignores it.
 */
__attribute__((noinline)) int tunnel_send_by_device(struct __sk_buff *skb, __u32 cell, __u32 vni, __u32 own,
						    __u32 identity)
{
	struct bpf_tunnel_key key = { .tunnel_id = vni, .tunnel_ttl = OUTER_TTL };
	struct vxlan_metadata metadata = { .gbp = identity };
	/* The tenant's MTU leaves room for the tunnel. Fragments would hide that it does not. */
	__u64 flags = BPF_F_DONT_FRAGMENT;
	const struct next_hop *hop = cell_at(cell);
	const struct node_config *node;
	int ipv6;

	if (!hop)
		return port_drop(own, DROP_stale_index);
	ipv6 = hop->flags & NEXT_HOP_IPV6;
	if (ipv6)
		__builtin_memcpy(key.remote_ipv6, hop->address, 16);
	else
		key.remote_ipv4 = bpf_ntohl(LOAD32(hop->address));
	node = node_at();
	if (!node)
		return port_drop(own, DROP_stale_index);
	if (!(node->flags & (ipv6 ? NODE_HAS_IPV6 : NODE_HAS_IPV4)))
		return port_drop(own, DROP_no_vtep_address);
	if (ipv6) {
		__builtin_memcpy(key.local_ipv6, node->vtep6, 16);
		flags |= BPF_F_TUNINFO_IPV6;
	} else {
		key.local_ipv4 = bpf_ntohl(node->vtep4);
		flags |= BPF_F_ZERO_CSUM_TX;
	}
	if (!node->vxlan_ifindex || bpf_skb_set_tunnel_key(skb, &key, sizeof(key), flags) ||
	    bpf_skb_set_tunnel_opt(skb, &metadata, sizeof(metadata)))
		return port_drop(own, DROP_redirect);
	return bpf_redirect(node->vxlan_ifindex, 0);
}

/*
 * Sends the packet to the node `hop`, which is in `cell`, in the VNI `vni`. `hash` is the flow's under the node's
 * secret. Drops are counted for `own`, the sender's VNI. The frame's identity goes with the packet within this VNI, and to
 * nodes that know the flag.
 *
 * Of each next hop, one packet in L2_LIFETIME_NS goes to the device, even if its MAC address is known: it makes the
 * kernel confirm its neighbor entry, which redirected packets do not. Packets that follow an instance that migrates go to
 * the device, too: they are few, and only the device's path of their receiver accepts their mark.
 */
static __always_inline int tunnel_send(struct __sk_buff *skb, const struct node_config *node,
				       const struct frame *frame, struct next_hop *hop, __u32 cell, __u32 vni,
				       __u32 own, __u32 hash)
{
	__u32 identity = carried_identity(frame, hop, vni, own);
	int verdict = NOT_ENCAPSULATED;

	if (frame->flags & FRAME_REDIRECTED) {
		identity |= VXLAN_REDIRECTED;
	} else if (can_encapsulate(node, hop)) {
		if (READ_ONCE(hop->l2_expires_ns) <= bpf_ktime_get_coarse_ns())
			learn_l2(skb, cell);
		else
			verdict = encapsulate(skb, node, frame, hop, vni, identity, hash);
	}
	if (verdict == NOT_ENCAPSULATED)
		return tunnel_send_by_device(skb, cell, vni, own, identity);
	return verdict == VERDICT_SENT ? verdict : port_drop(own, DROP_headroom);
}

/*
 * Sends the packet to the gateway group of its VRF. The flow's hash, under this node's secret, selects the vIP
 * (Zeta section V-A).
 */
__attribute__((noinline)) int tunnel_to_group(struct __sk_buff *skb, __u32 vrf_cell, __u32 vni,
					      const struct frame *frame)
{
	const struct vrf *vrf = vrf_at(vrf_cell, vni);
	const struct node_config *node = node_at();
	__u32 first, count, place, hop_cell, hash, bytes = skb->len;
	const struct group *group;
	const __u32 *words;
	struct next_hop *hop;
	int verdict;

	if (!vrf || !node || !frame)
		return port_drop(0, DROP_stale_index);
	first = vrf_group(vrf) & CELL_INDEX_MASK;
	group = cell_at(first);
	if (!first || !group)
		return port_drop(vni, DROP_no_group);
	count = READ_ONCE(group->count);
	if (!count || count > GROUP_BUCKETS_MAX)
		return port_drop(vni, DROP_no_group);
	/* Buckets are words behind the count, in up to GROUP_CELLS_MAX cells. */
	hash = frame_secret_hash(frame, node->flow_secret);
	place = 1 + (((__u64)hash * count) >> 32);
	words = cell_at(first + place / (CELL_BYTES / 4));
	if (!words)
		return port_drop(vni, DROP_stale_index);
	hop_cell = words[place % (CELL_BYTES / 4)] & CELL_INDEX_MASK;
	hop = next_hop_at(hop_cell, NEXT_HOP_VTEP);
	if (!hop)
		return port_drop(vni, DROP_stale_index);
	verdict = tunnel_send(skb, node, frame, hop, hop_cell, vni, vni, hash);
	if (verdict == VERDICT_SENT)
		count_traffic(vrf->counters, bytes);
	return verdict;
}

/* The node that sent a frame through the tunnel. */
struct tunnel_sender {
	__u64 address[2];	   /* as in struct frame */
	struct exact_sender entry; /* of a host; otherwise 0 */
	__u16 identity;		   /* of the tenant's sender; 0: none, or not vouched for */
	__u8 ipv6;		   /* the address is IPv6 */
	__u8 is_host;		   /* the node is a host, not a gateway */
	__u8 is_congested;	   /* the underlay has marked the packet */
	__u8 is_redirected;	   /* the packet follows an instance that migrates */
};

/*
 * The identity in the VXLAN header of a frame from the VXLAN device, and VXLAN_REDIRECTED; negative if it has other flags of
 * Group Policy. The device drops packets with any flags that it does not know.
 */
static __always_inline long tunnel_identity(struct __sk_buff *skb)
{
	struct vxlan_metadata metadata = {};

	/* Without an identity, the packet has no option. */
	if (bpf_skb_get_tunnel_opt(skb, &metadata, sizeof(metadata)) < 0)
		return 0;
	return metadata.gbp & ~(VXLAN_GROUP_ID | VXLAN_REDIRECTED) ? -1 : (long)metadata.gbp;
}

/* Reads VNI, sender and identity of a frame from the VXLAN device. */
__attribute__((noinline)) enum drop_reason tunnel_read(struct __sk_buff *skb, __u32 *vni,
						       struct tunnel_sender *from)
{
	struct bpf_tunnel_key key = {};
	long identity = tunnel_identity(skb);

	if (!vni || !from)
		return DROP_stale_index;
	if (!bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0)) {
		from->address[1] = key.remote_ipv4;
	} else if (!bpf_skb_get_tunnel_key(skb, &key, sizeof(key), BPF_F_TUNINFO_IPV6)) {
		__be64 remote[2]; /* aligned, which the verifier demands on the stack */

		__builtin_memcpy(remote, key.remote_ipv6, sizeof(remote));
		from->ipv6 = 1;
		load_halves(from->address, remote);
	} else {
		return DROP_no_tunnel_key;
	}
	if (identity < 0)
		return DROP_vxlan_flags;
	from->identity = identity;
	from->is_redirected = !!(identity & VXLAN_REDIRECTED);
	*vni = key.tunnel_id & 0xffffff;
	return DROP_none;
}

/*
 * Whether the sender is a gateway, or the reason to drop its frame; DROP_foreign_sender: it is another host. Removes the
 * identity of a host without a vSwitch.
 */
__attribute__((noinline)) enum drop_reason check_gateway(struct tunnel_sender *from)
{
	const struct next_hop *sender;
	struct exact_hit hit = {};
	enum exact_answer found;

	if (!from)
		return DROP_stale_index;
	if (from->ipv6)
		found = find_ipv6(0, from->address[0], from->address[1], &hit);
	else
		found = find_ipv4(0, from->address[1], &hit);
	if (found == EXACT_BUSY)
		return DROP_table_busy;
	sender = found == EXACT_HIT ? next_hop_at(hit.next, NEXT_HOP_VTEP) : NULL;
	if (!sender)
		return DROP_unknown_vtep;
	if (READ_ONCE(sender->flags) & NEXT_HOP_FOREIGN)
		from->identity = 0;
	return READ_ONCE(sender->flags) & NEXT_HOP_HOST ? DROP_foreign_sender : DROP_none;
}

/* Whether any host may send to this one in the VNI (VRF_BONDED). */
static __always_inline int accepts_any_host(__u32 vni)
{
	__u32 cell = vni ? find_index(vni, 0) : 0;
	const struct vrf *vrf = cell == INDEX_BUSY ? NULL : vrf_at(cell, vni);

	return vrf && READ_ONCE(vrf->flags) & VRF_BONDED;
}

/*
 * Whether the sender may send to this host in the VNI: any gateway (one lookup), a host that a gateway has
 * permitted (one more, which also finds the VRF), or in a VNI with bonding vNICs any host (two more).
 */
static __always_inline enum drop_reason check_tunnel_sender(struct tunnel_sender *from, __u32 vni)
{
	enum drop_reason reason = check_gateway(from);

	if (reason != DROP_foreign_sender)
		return reason;
	switch (find_sender(vni, from->ipv6, from->address[0], from->address[1], &from->entry)) {
	case EXACT_HIT:
		from->is_host = 1;
		return DROP_none;
	case EXACT_BUSY:
		return DROP_table_busy;
	default:
		if (!accepts_any_host(vni))
			return DROP_foreign_sender;
		from->is_host = 1;
		return DROP_none;
	}
}

/* The cell of the VNI's VRF, after check_tunnel_sender(). 0 and INDEX_BUSY are as for find_index(). */
static __always_inline __u32 tunnel_vrf(const struct tunnel_sender *from, __u32 vni)
{
	return from->entry.vrf ? from->entry.vrf : find_index(vni, 0);
}

#endif
