/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: public addresses and the VPCs' own addresses that they stand for (struct public_prefix).
 *
 * Contract: addresses are halves in host order, as in struct frame. Packet bytes are neither read nor changed. Reads only
 * the map `cells`.
 */
#ifndef SLUICE_PUBLIC_H
#define SLUICE_PUBLIC_H

#include "common/neighbor_discovery.h"
#include "gateway/cgw.h"

/*
 * Whether the address can be that of a host on the Internet: RFC 1122 section 3.2.1.3, RFC 3927, RFC 4291 section 2.5.
 * IPv6 addresses that contain an IPv4 address (::/96, ::ffff:0:0/96) are on no wire: a host would take such a packet for
 * one of the IPv4 address.
 */
static __always_inline int internet_address_valid(__u32 flags, const __u64 *address)
{
	__u64 high = address[0], low = address[1];

	if (flags & FRAME_IPV6)
		return !ipv6_multicast(high) && !ipv6_link_local(high) && (high || low >> 32 > 0xffff);
	return low >> 24 != 0 && low >> 24 != 127 && low >> 28 < 0xe && low >> 16 != 0xa9fe;
}

/* Whether the packet is what only the routers of a VM's own link may send. */
static __always_inline int is_link_control(const struct frame *frame)
{
	return is_nd(frame) ||
	       (frame->protocol == IPPROTO_ICMP && !(frame->flags & (FRAME_IPV6 | FRAME_LATER)) &&
		frame->transport >> 24 == ICMP4_REDIRECT);
}

/* The cell of the public prefix that an address of the Internet side is in; as find_public4() (lookup.h). */
static __always_inline __u32 find_public(struct packet *packet, __u32 flags, const __u64 *address)
{
	__u32 vrf = packet->public_vrf;

	if (!vrf) {
		vrf = find_public_vrf();
		packet->public_vrf = vrf;
	}
	return flags & FRAME_IPV6 ? find_public6(vrf, address[0], address[1]) : find_public4(vrf, address[1]);
}

/* The cell of the public prefix of an address of the VPC. 0: it has none. */
static __always_inline __u32 find_public_source(const struct vrf *vrf, __u32 flags, const __u64 *address)
{
	return flags & FRAME_IPV6 ? find_public_source6(vrf, address[0], address[1])
				  : find_public_source4(vrf, address[1]);
}

/*
 * Whether an IPv4 address is a private one (RFC 1918, RFC 6598), which the well-known prefix of NAT64 must not represent (RFC 6052
 * section 3.1).
 */
static __always_inline int is_private4(__u32 address)
{
	return address >> 24 == 10 || address >> 20 == 0xac1 || address >> 16 == 0xc0a8 ||
	       address >> 22 == 0x191;
}

/* Sum of the 16-bit words of an address in host order, folded. */
static __always_inline __u32 address_sum(const __u64 *address)
{
	return bpf_ntohs(~checksum_fold(halves_sum(address)));
}

/*
 * Makes the sum of an address, whose prefix was replaced, equal to `sum` again, as it was before (RFC 6296 sections 3.4 and 3.5).
 * Of a prefix of 48 bits, the word behind it changes, otherwise the first word of the interface identifier that is not 0xffff. It never
 * becomes 0xffff, so the other direction finds the same word. 0: there is no such word.
 */
static __always_inline int keep_address_sum(__u32 length, __u32 sum, __u64 *address)
{
	__u64 *half = length > 48 ? &address[1] : &address[0];
	__u32 shift = length > 48 ? 48 : 0, word;

#pragma unroll
	for (int i = 0; i < 3; i++) {
		if (shift && (*half >> shift & 0xffff) == 0xffff)
			shift -= 16;
	}
	word = *half >> shift & 0xffff;
	if (word == 0xffff)
		return 0;
	word += sum + (0xffff - address_sum(address));
	word = (word & 0xffff) + (word >> 16);
	word = (word & 0xffff) + (word >> 16);
	*half &= ~(0xffffull << shift);
	if (word != 0xffff)
		*half |= (__u64)word << shift;
	return 1;
}

/*
 * Replaces the prefix `from` of an address by `to`, which are those of the cell. 0: the address begins with other bits, cannot be
 * mapped by NPTv6, or is one of source NAT, which stands for no address of a VPC.
 */
static __always_inline int replace_prefix(const struct public_prefix *public, const __u8 *from,
					  const __u8 *to, __u64 *address)
{
	int ipv6 = public->flags & PUBLIC_IPV6;
	__u32 bits = ipv6 ? public->length : 96 + public->length;
	__u64 high = bits >= 64 ? ~0ull : ~(~0ull >> (bits & 63));
	__u64 low = bits >= 128 ? ~0ull : bits <= 64 ? 0 : ~(~0ull >> (bits & 63));
	__u64 from_high = ipv6 ? load_half(from) : 0, to_high = ipv6 ? load_half(to) : 0;
	__u64 from_low = ipv6 ? load_half(from + 8) : bpf_ntohl(LOAD32(from));
	__u64 to_low = ipv6 ? load_half(to + 8) : bpf_ntohl(LOAD32(to));
	__u32 sum;

	if (public->flags & PUBLIC_NAT || (address[0] ^ from_high) & high || (address[1] ^ from_low) & low)
		return 0;
	sum = public->flags & PUBLIC_NPTV6 ? address_sum(address) : 0;
	address[0] = to_high | (address[0] & ~high);
	address[1] = to_low | (address[1] & ~low);
	return public->flags & PUBLIC_NPTV6 ? keep_address_sum(public->length, sum, address) : 1;
}

/* Replaces an address of the VPC by the public one that the cell gives. 0: the address is not in the cell, or cannot be mapped. */
static __always_inline int to_outside(__u32 cell, __u64 *address)
{
	const struct public_prefix *public = public_prefix_at(cell);

	return public && replace_prefix(public, public->inside, public->outside, address);
}

/* Whether this node owns the vIP in this cell. */
static __always_inline int is_owned_vip(__u32 cell)
{
	const struct next_hop *vip = next_hop_at(cell, NEXT_HOP_VIP);

	return vip && READ_ONCE(vip->flags) & NEXT_HOP_OWNED;
}

/* Replaces a public address by that of the VPC. 0: the address is not in the cell, or is not the map of one. */
static __always_inline int to_inside(__u32 cell, __u64 *address)
{
	const struct public_prefix *public = public_prefix_at(cell);

	return public && replace_prefix(public, public->outside, public->inside, address);
}

/* Why to_outside() or to_inside() has refused an address: `unmapped` if NPTv6 maps no address to it or from it. */
static __always_inline enum drop_reason unmapped_reason(__u32 cell, enum drop_reason unmapped)
{
	const struct public_prefix *public = public_prefix_at(cell);

	return public && public->flags & PUBLIC_NPTV6 ? unmapped : DROP_stale_index;
}

/* The flags of the frame as it gets into the VPC: NAT64 changes its family. */
static __always_inline __u32 inside_flags(const struct packet *packet)
{
	return packet->nat & PACKET_NAT64 ? packet->frame.flags ^ FRAME_IPV6 : packet->frame.flags;
}

/*
 * Whether the VPC may get a packet from this address of the Internet: its own routes must lead there. So no packet from
 * the Internet seems to come from the VPC or from a peer of it, and each can be answered.
 */
static __always_inline enum drop_reason check_way_back(const struct packet *packet, const struct vrf *vrf)
{
	__u32 leaf = find_leaf(vrf, inside_flags(packet), packet->new_source);

	if (!leaf)
		return DROP_no_route;
	return leaf >> LEAF_SCOPE_SHIFT == SCOPE_INTERNET ? DROP_none : DROP_martian_source;
}

/* The address of the instance that gets packets to new_destination, by the VPC's own routes. */
static __always_inline enum drop_reason find_own_instance(struct packet *packet, const struct vrf *vrf)
{
	__u32 leaf = find_leaf(vrf, inside_flags(packet), packet->new_destination);

	switch (leaf >> LEAF_SCOPE_SHIFT) {
	case SCOPE_LOCAL:
		packet->endpoint[0] = packet->new_destination[0];
		packet->endpoint[1] = packet->new_destination[1];
		packet->endpoint_ipv6 = !!(inside_flags(packet) & FRAME_IPV6);
		return DROP_none;
	case SCOPE_NEXT_HOP:
		return read_next_hop(leaf, packet->final_vni, packet->endpoint, &packet->endpoint_ipv6);
	case SCOPE_DROP:
		return DROP_route_drop;
	default:
		return leaf ? DROP_no_endpoint : DROP_no_route;
	}
}

/* Sets new_source, which is of IPv4, to the address of IPv6 that stands for it behind the NAT gateway of destination_public. */
static __always_inline enum drop_reason embed_source(struct packet *packet)
{
	const struct public_prefix *public = public_prefix_at(packet->destination_public);
	__u32 cell = public && public->flags & PUBLIC_NAT ? LOAD32(public->inside) : 0;
	const struct nat_gateway *gateway = cell ? nat_gateway_at(cell) : NULL;
	const __u64 *prefix = gateway ? nat64_prefix(gateway, cell) : NULL;

	if (!prefix)
		return DROP_no_nat_session;
	packet->new_source[0] = prefix[0];
	packet->new_source[1] = prefix[1] | (__u32)packet->new_source[1];
	return DROP_none;
}

/*
 * Stage "inside": the instance that gets a packet to a public address. Expects the frame, destination_public,
 * new_source, and final_vni with its VRF in the cell `vrf_cell`; new_destination with PACKET_NAT_DESTINATION. With PACKET_NAT64,
 * new_source becomes one of IPv6. Fills in
 * final_vrf, new_destination, mtu, endpoint, endpoint_ipv6,
 * endpoint_mac and next_hop. ICMP redirects and neighbor discovery are refused. Returns DROP_none or the reason to drop;
 * error_type is then set if the sender gets an ICMP error.
 */
__attribute__((noinline)) enum drop_reason find_inside(struct packet *packet, __u32 vrf_cell)
{
	struct exact_hit hit = {};
	const struct vrf *vrf;
	enum drop_reason reason;

	if (!packet)
		return DROP_stale_index;
	if (is_link_control(&packet->frame))
		return DROP_forged_control;
	vrf = vrf_at(vrf_cell, packet->final_vni);
	if (!vrf)
		return DROP_stale_index;
	if (!(packet->nat & PACKET_NAT_DESTINATION)) {
		packet->new_destination[0] = packet->frame.destination[0];
		packet->new_destination[1] = packet->frame.destination[1];
		if (!to_inside(packet->destination_public, packet->new_destination))
			return unmapped_reason(packet->destination_public, DROP_no_endpoint);
	}
	packet->final_vrf = vrf_cell;
	packet->mtu = READ_ONCE(vrf->mtu);
	reason = packet->nat & PACKET_NAT64 ? embed_source(packet) : DROP_none;
	if (!reason)
		reason = check_way_back(packet, vrf);
	if (!reason)
		reason = find_own_instance(packet, vrf);
	if (!reason)
		reason = find_endpoint(packet->final_vni, packet->endpoint_ipv6, packet->endpoint, &hit);
	if (reason)
		return reason;
	packet->endpoint_mac = hit.mac;
	packet->next_hop = hit.next;
	reason = choose_member(packet);
	return reason ? reason : check_ttl(packet);
}

#endif
