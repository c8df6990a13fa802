// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * For tests: lookups in the tables, by the functions that packet programs use. The "packet" is an array of
 * queries, which are answered in place.
 */
#include "common/policy.h"
#include "common/services.h"
#include "gateway/nat_forwards.h"

char _license[] SEC("license") = "Dual BSD/GPL";

#define TABLE_QUERIES_MAX 64

enum table_query_kind {
	QUERY_IPV4 = 1,
	QUERY_IPV6,
	QUERY_INDEX,
	QUERY_ROUTE4,
	QUERY_ROUTE6,
	QUERY_POLICY,
	/* The public prefix of an outside address. */
	QUERY_PUBLIC4,
	QUERY_PUBLIC6,
	/* The public prefix of an inside address. */
	QUERY_SOURCE4,
	QUERY_SOURCE6,
	/* The NAT gateway that has an outside address. */
	QUERY_NAT_ADDRESS,
	/* The NAT gateway of a VNI. */
	QUERY_NAT,
	/* The endpoint for which another one stands at the NAT gateway of a VNI. */
	QUERY_NAT_FORWARD,
	/* The member of a service to which a packet goes. */
	QUERY_MEMBER4,
	QUERY_MEMBER6,
};

struct table_query {
	__u32 kind;
	__u32 vni;  /* QUERY_POLICY: id of the policy */
	__u64 high; /* IPv6: high half; QUERY_MEMBER*: source, of IPv6 the low half */
	/* IPv6: low half; QUERY_MEMBER*: destination, of IPv6 the low half; key of a struct nat_forward; IPv4 address or index otherwise */
	__u64 low;
	__u32 answer; /* enum exact_answer, the leaf of a route, or the rule of a policy */
	__u32 cell; /* public prefix: its VNI, and its length in bits 24..31; NAT gateway: its VNI, and number of addresses there */
	/*
	 * QUERY_POLICY, before the answer: what QUERY_PACKET_* say of the packet. Public prefix: the halves of its
	 * outside addresses, combined by exclusive or, plus three times those of its inside addresses. NAT gateway by its VNI: its
	 * limit of sessions, and the numbers of its addresses, added up with their places as weights, in bits 32..63; by an
	 * address: the number of that. QUERY_MEMBER*, before the answer: what QUERY_FLOW_* say of the packet, and its transport word;
	 * then the member's MAC address, with its number in `cell`.
	 */
	__u64 mac;
};

/* The service is in bits 0..31. */
#define QUERY_PACKET_IDENTITY_SHIFT 32
#define QUERY_PACKET_IPV6 (1ull << 48)
#define QUERY_PACKET_EGRESS (1ull << 49)

/* The transport word is in bits 0..31. */
#define QUERY_FLOW_PROTOCOL_SHIFT 32
#define QUERY_FLOW_PINNED_SHIFT 40
#define QUERY_FLOW_FRAGMENT (1ull << 48)
/* High half of all IPv6 addresses of packets to a service. */
#define QUERY_FLOW_HIGH (0xfd00ull << 48)

/* Global, so that the verifier processes it once and not for every query. */
__attribute__((noinline)) int answer_route(struct table_query *query)
{
	const struct vrf *vrf;
	__u32 cell;

	if (!query)
		return 0;
	cell = find_index(query->vni, 0);
	if (!cell || cell == INDEX_BUSY)
		return 0;
	vrf = cell_at(cell);
	if (!vrf)
		return 0;
	query->cell = cell;
	if (query->kind == QUERY_ROUTE4)
		query->answer = find_route4(READ_ONCE(vrf->lpm4), query->low);
	else
		query->answer = find_route6(READ_ONCE(vrf->lpm6), query->high, query->low);
	return 0;
}

__attribute__((noinline)) int answer_public(struct table_query *query)
{
	const struct public_prefix *public;
	const __u64 *outside, *inside;
	const struct vrf *vrf = NULL;
	__u32 cell;

	if (!query)
		return 0;
	if (query->kind == QUERY_SOURCE4 || query->kind == QUERY_SOURCE6) {
		cell = find_index(query->vni, 0);
		if (cell == INDEX_BUSY)
			return 0;
		vrf = vrf_at(cell, query->vni);
		if (!vrf)
			return 0;
	}
	if (query->kind == QUERY_PUBLIC4)
		cell = find_public4(find_public_vrf(), query->low);
	else if (query->kind == QUERY_PUBLIC6)
		cell = find_public6(find_public_vrf(), query->high, query->low);
	else if (!vrf)
		return 0;
	else if (query->kind == QUERY_SOURCE4)
		cell = find_public_source4(vrf, query->low);
	else
		cell = find_public_source6(vrf, query->high, query->low);
	if (!cell || cell == INDEX_BUSY)
		return 0;
	public = public_prefix_at(cell);
	if (!public || public->flags & PUBLIC_NAT)
		return 0;
	outside = (const __u64 *)public->outside;
	inside = (const __u64 *)public->inside;
	query->answer = EXACT_HIT;
	query->cell = (__u32) public->length << 24 | public->vni;
	query->mac = (outside[0] ^ outside[1]) + 3 * (inside[0] ^ inside[1]);
	return 0;
}

/* From the inside, as from the outside: the cell of the NAT gateway. */
static __always_inline __u32 nat_cell_of(const struct table_query *query)
{
	const struct internet *internet;
	__u32 cell = find_index(query->vni, 0);
	const struct vrf *vrf = cell == INDEX_BUSY ? NULL : vrf_at(cell, query->vni);

	internet = vrf ? internet_of(vrf) : NULL;
	return internet ? READ_ONCE(internet->nat) : 0;
}

__attribute__((noinline)) int answer_nat(struct table_query *query)
{
	const struct nat_gateway *gateway;
	const struct public_prefix *public;
	__u32 cell, count = 0;
	__u64 sum = 0;

	if (!query)
		return 0;
	if (query->kind == QUERY_NAT) {
		cell = nat_cell_of(query);
	} else {
		cell = find_public4(find_public_vrf(), query->low);
		public = !cell || cell == INDEX_BUSY ? NULL : public_prefix_at(cell);
		if (!public || !(public->flags & PUBLIC_NAT))
			return 0;
		cell = *(const __u32 *)public->inside;
		query->mac = *(const __u16 *)(public->inside + 4);
	}
	gateway = cell ? nat_gateway_at(cell) : NULL;
	if (!gateway)
		return 0;
	query->answer = EXACT_HIT;
	query->cell = gateway->vni;
	if (query->kind == QUERY_NAT_ADDRESS)
		return 0;
	for (__u32 i = 0; i < NAT_POOL_ADDRESSES_MAX; i++) {
		if (i < gateway->pool.addresses) {
			sum += (i + 1) * gateway->pool.address[i];
			count++;
		}
	}
	query->cell |= count << 24;
	query->mac = sum << 32 | gateway->pool.sessions_limit;
	return 0;
}

__attribute__((noinline)) int answer_forward(struct table_query *query)
{
	const struct nat_gateway *gateway;
	__u32 cell = query ? nat_cell_of(query) : 0;

	gateway = cell ? nat_gateway_at(cell) : NULL;
	if (!query || !gateway)
		return 0;
	query->mac = nat_forward_of(cell, query->low >> NAT_FORWARD_UDP_SHIFT & 1 ? NAT_UDP : NAT_TCP,
				    query->low & NAT_FORWARD_OUT, query->low >> NAT_FORWARD_ADDRESS_SHIFT,
				    query->low);
	query->answer = query->mac ? EXACT_HIT : EXACT_MISS;
	query->cell = query->mac ? query->vni : 0;
	return 0;
}

__attribute__((noinline)) int answer_policy(struct table_query *query)
{
	struct policy_packet packet = {};
	__u32 cell;

	if (!query)
		return 0;
	cell = find_index(0, EXACT_POLICY_ID | query->vni);
	if (cell == INDEX_BUSY)
		return 0;
	packet.high = query->high;
	packet.low = query->low;
	packet.service = query->mac;
	packet.identity = query->mac >> QUERY_PACKET_IDENTITY_SHIFT;
	packet.ipv6 = !!(query->mac & QUERY_PACKET_IPV6);
	packet.egress = !!(query->mac & QUERY_PACKET_EGRESS);
	query->cell = cell;
	query->mac = 0;
	query->answer = policy_evaluate(cell, &packet);
	return 0;
}

__attribute__((noinline)) int answer_member(struct table_query *query)
{
	const struct next_hop *hop;
	struct exact_hit hit = {};
	struct frame frame = {};
	enum exact_answer found;
	__u64 member = 0;

	if (!query)
		return 0;
	frame.source[1] = query->high;
	frame.destination[1] = query->low;
	frame.transport = query->mac;
	frame.protocol = query->mac >> QUERY_FLOW_PROTOCOL_SHIFT;
	if (query->mac & QUERY_FLOW_FRAGMENT)
		frame.flags = FRAME_FRAGMENT;
	if (query->kind == QUERY_MEMBER6) {
		frame.flags |= FRAME_IPV6;
		frame.source[0] = QUERY_FLOW_HIGH;
		frame.destination[0] = QUERY_FLOW_HIGH;
		found = find_ipv6(query->vni, frame.destination[0], frame.destination[1], &hit);
	} else {
		found = find_ipv4(query->vni, frame.destination[1], &hit);
	}
	if (found == EXACT_HIT)
		member = find_member(hit.next, &frame, query->mac >> QUERY_FLOW_PINNED_SHIFT & 0xff);
	hop = member ? next_hop_at(member, NEXT_HOP_VTEP) : NULL;
	query->answer = hop ? EXACT_HIT : EXACT_MISS;
	query->cell = member >> MEMBER_NUMBER_SHIFT;
	query->mac = hop ? load_mac(hop->mac) : 0;
	return 0;
}

/* Answers as the fast path does, which finds most entries. False: it did not find the entry. */
static __always_inline int answer_entry(struct table_query *query)
{
	const struct exact_root *root = cell_at(CELL_EXACT_ROOT);
	__u64 key, value, check = 0;
	__u32 next;

	if (!root)
		return 0;
	if (query->kind == QUERY_INDEX)
		key = exact_key(EXACT_INDEX, query->vni, query->low);
	else if (query->kind == QUERY_IPV4)
		key = exact_key(EXACT_IPV4, query->vni, query->low);
	else
		key = exact_key6(root, query->vni, query->high, query->low, &check);
	if (!exact_find_entry(root, key, &value, &next) || !exact_is_address(value, next, check))
		return 0;
	query->answer = EXACT_HIT;
	query->cell = next & CELL_INDEX_MASK;
	query->mac = query->kind == QUERY_INDEX ? 0 : value & EXACT_MAC_MASK;
	return 1;
}

/* `fast`: as the fast path, if that finds the entry. */
__attribute__((noinline)) int answer_exact(struct table_query *query, __u32 fast)
{
	struct exact_hit hit = {};
	__u32 cell;

	if (!query)
		return 0;
	if (fast && answer_entry(query))
		return 0;
	if (query->kind == QUERY_INDEX) {
		cell = find_index(query->vni, query->low);
		query->answer = cell == INDEX_BUSY ? EXACT_BUSY : cell ? EXACT_HIT : EXACT_MISS;
		query->cell = query->answer == EXACT_HIT ? cell : 0;
		return 0;
	}
	if (query->kind == QUERY_IPV4)
		query->answer = find_ipv4(query->vni, query->low, &hit);
	else
		query->answer = find_ipv6(query->vni, query->high, query->low, &hit);
	if (query->answer == EXACT_HIT) {
		query->cell = hit.next;
		query->mac = hit.mac;
	}
	return 0;
}

SEC("xdp")
int tables_test(struct xdp_md *ctx)
{
	for (__u32 i = 0; i < TABLE_QUERIES_MAX; i++) {
		struct table_query *at = (void *)(long)ctx->data;
		void *end = (void *)(long)ctx->data_end;
		struct table_query query;

		at += i;
		if ((void *)(at + 1) > end)
			break;
		query = *at;
		query.answer = 0;
		query.cell = 0;
		if (query.kind == QUERY_POLICY) {
			answer_policy(&query);
		} else if (query.kind == QUERY_MEMBER4 || query.kind == QUERY_MEMBER6) {
			answer_member(&query);
		} else {
			query.mac = 0;
			if (query.kind == QUERY_NAT_FORWARD)
				answer_forward(&query);
			else if (query.kind >= QUERY_NAT_ADDRESS)
				answer_nat(&query);
			else if (query.kind >= QUERY_PUBLIC4)
				answer_public(&query);
			else if (query.kind == QUERY_ROUTE4 || query.kind == QUERY_ROUTE6)
				answer_route(&query);
			else
				answer_exact(&query, bpf_get_prandom_u32() & 1);
		}
		at = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
		at += i;
		if ((void *)(at + 1) > end)
			break;
		*at = query;
	}
	return XDP_PASS;
}
