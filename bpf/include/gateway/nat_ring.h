/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway, Internet edge: the ring in which the first packets of a session of source NAT visit all gateways of the cluster before
 * one of them sends them to the Internet, or to the instance behind a public address (docs/decisions/nat-replication.md). So each gateway has the session before anyone can
 * answer, and goes on with it if the owner of the NAT gateway's vIP dies.
 *
 * The packets of the VM go through the ring until the session is confirmed, at most NAT_RING_PACKETS of a session. The owner
 * translates nothing, but sends the frame as it came, in the tunnel of its VPC, to the next gateway that is alive; each gateway
 * installs the session and passes the packet on; the last one translates and sends it, as it would if it were the owner. Later fragments, ICMP
 * errors and packets of port forwards do not use the ring, because they begin no session.
 *
 * The record, in the headers of the tunnel:
 *
 *   VXLAN group policy id    the outside port
 *   VXLAN reserved byte      bits 4..7: index of the public address in the pool; bits 0..3: nat_ring_check() of it, which is not
 *                            0, so neither is the byte: other packets have 0
 *   UDP source port          VXLAN_SOURCE_MIN, and in bits 0..5 the owner's position in the ring, in bits 6..11 that of the
 *                            gateway that gets the packet, NAT_RING_OF_REMOTE and NAT_RING_CONFIRMED
 *
 * No packet is in the ring for ever, whatever each gateway believes about the others: the distance from the owner to the position
 * of the receiver, which the packet has, grows with each gateway, and is below NAT_RING_POSITIONS. So a gateway uses the position
 * that the packet says. If that is not its own, the two gateways count positions differently, because one of them has not learned
 * yet that a gateway was added or removed. Then a gateway may be left out, which is counted; the packet is not dropped, because
 * a gateway without a controller may not learn it for long.
 *
 * Contract: enter_nat_ring() expects a packet for which nat_source() (nat_stage.h) has returned 0; take_nat_copy() one with
 * `ring`, `ring_path` and new_source_port of the record, and what nat_source() expects. Both set PACKET_IN_RING if the packet goes
 * on in the ring. take_nat_copy() returns 0 if this gateway is the last one, also if it could not install the session; FOR_RING; or the
 * program's verdict, after the drop was counted. pass_around() sends the packet on, and returns the verdict. Uses the maps of
 * nat_maps.h, `nat_packets`, `nat_ring_counts`, `cells` and those of count.h.
 */
#ifndef SLUICE_NAT_RING_H
#define SLUICE_NAT_RING_H

#include "common/nat_install.h"
#include "gateway/answer_sender.h"
#include "gateway/nat_stage.h"

/*
 * A SYN is repeated after 1, 3 and 7 s. If the ring does not work, the fourth leaves at the owner, and the others get the session by
 * the next pass.
 */
#define NAT_RING_PACKETS 3

#define NAT_RING_POSITION_MASK (NAT_RING_POSITIONS - 1)
#define NAT_RING_AT_SHIFT 6
#define NAT_RING_OF_REMOTE 0x1000u /* a remote endpoint has begun the session */
/* The session was answered, and this is a further packet of its originator. */
#define NAT_RING_CONFIRMED 0x2000u
#define NAT_RING_PATH_MASK 0x3fffu

/* Packets by what was done with them (enum nat_ring_count). */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NAT_RING_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} nat_ring_counts SEC(".maps");

static __always_inline void count_in_ring(__u32 what)
{
	__u64 *count = bpf_map_lookup_elem(&nat_ring_counts, &what);

	if (count)
		*count += 1;
}

/* Four bits of a public address, by which gateways notice that their pools differ: they do while a pool changes. */
static __always_inline __u8 nat_ring_check(__u32 address)
{
	return address % 15 + 1;
}

static __always_inline __u64 nat_ring_place(void)
{
	const struct node_config *node = cell_at(CELL_NODE);

	return node ? READ_ONCE(node->by_role) : 0;
}

/* How far a position is behind that of the owner. */
static __always_inline __u32 nat_ring_distance(__u32 position, __u32 owner)
{
	return (position - owner) & NAT_RING_POSITION_MASK;
}

/* The packet goes to the next gateway of this place. `path` is that of the record, without the receiver's position. */
static __always_inline void stay_in_ring(struct packet *packet, __u64 place, __u32 path)
{
	packet->ring_path = path | (place >> NAT_RING_NEXT_SHIFT & NAT_RING_POSITION_MASK)
					   << NAT_RING_AT_SHIFT;
	packet->next_hop = place & CELL_INDEX_MASK;
	packet->nat |= PACKET_IN_RING;
}

/* The packet's public address in the pool, as `ring` of a packet has it. 0: the pool does not have it any more. */
static __always_inline __u8 nat_ring_address(const struct nat_packet *nat)
{
	__u32 found = NAT_POOL_ADDRESSES_MAX;

	NAT_ROLLED
	for (__u32 i = 0; i < NAT_POOL_ADDRESSES_MAX; i++)
		if (i < nat->pool.addresses && nat->pool.address[i] == nat->address)
			found = i;
	return found == NAT_POOL_ADDRESSES_MAX ? 0 : found << 4 | nat_ring_check(nat->outside);
}

/*
 * Whether other gateways may not have the session yet, or not know that it is established. The packet that confirms it, such as the
 * last one of TCP's handshake, goes through the ring as well: otherwise an heir would end the connection after the timeout of one
 * that is not established.
 */
static __always_inline int nat_is_unconfirmed(const struct nat_packet *nat, const struct session_data *data)
{
	return !(nat->hit.state & SESSION_CONFIRMED) &&
	       READ_ONCE(data->packets[nat->hit.direction & 1]) <= NAT_RING_PACKETS;
}

/* At the owner: sends the packet into the ring, if its session is not confirmed and the ring has other gateways. */
__attribute__((noinline)) int enter_nat_ring(struct packet *packet)
{
	__u64 place = nat_ring_place();
	struct nat_memory *memory = nat_memory();
	const struct session_data *data;
	struct nat_packet *nat;
	__u32 path;

	if (!packet || !memory || !(place & CELL_INDEX_MASK) || packet->frame.flags & FRAME_LATER ||
	    packet->nat & PACKET_NO_SESSION)
		return 0;
	nat = &memory->packet;
	data = nat_session(nat);
	if (nat->flags & NAT_PEEK || !data || !nat_is_unconfirmed(nat, data))
		return 0;
	packet->ring = nat_ring_address(nat);
	if (!packet->ring)
		return 0;
	path = place >> NAT_RING_OWN_SHIFT & NAT_RING_POSITION_MASK;
	if (nat->hit.direction != SESSION_ORIGINAL)
		path |= NAT_RING_OF_REMOTE;
	else if (READ_ONCE(data->state) & SESSION_CONFIRMED)
		path |= NAT_RING_CONFIRMED;
	stay_in_ring(packet, place, path);
	/* Bytes behind the IP packet are not sent on, so the checksum that was received does not fit. */
	if (packet->frame_bytes != ETH_HLEN + packet->frame.ip_bytes)
		packet->udp_checksum = 0;
	return 0;
}

/* Finds out where the packet goes from this gateway. */
static __always_inline enum drop_reason find_place_in_ring(struct packet *packet)
{
	__u32 path = packet->ring_path, owner = path & NAT_RING_POSITION_MASK;
	__u32 at = path >> NAT_RING_AT_SHIFT & NAT_RING_POSITION_MASK, next;
	__u64 place = nat_ring_place();

	if (path & ~NAT_RING_PATH_MASK || at == owner)
		return DROP_nat_ring;
	if (!(place & NAT_RING_MEMBER) || at != (place >> NAT_RING_OWN_SHIFT & NAT_RING_POSITION_MASK))
		count_in_ring(NAT_RING_ASTRAY);
	next = place >> NAT_RING_NEXT_SHIFT & NAT_RING_POSITION_MASK;
	/* Behind the last gateway, the owner follows, or if it is dead, one that has had the packet. */
	if (place & CELL_INDEX_MASK && nat_ring_distance(next, owner) > nat_ring_distance(at, owner))
		stay_in_ring(packet, place, path & ~(NAT_RING_POSITION_MASK << NAT_RING_AT_SHIFT));
	return DROP_none;
}

/* The state of the session after this packet (struct nat_packet), which is one of the instance. */
static __always_inline __u32 nat_copy_state(const struct packet *packet, const struct nat_flow *flow)
{
	int of_remote = packet->ring_path & NAT_RING_OF_REMOTE;
	__u32 state = of_remote ? NAT_COPY_OF_REMOTE | SESSION_REPLIED : 0;

	if (packet->ring_path & NAT_RING_CONFIRMED)
		state |= SESSION_REPLIED | SESSION_CONFIRMED;
	if (flow->tcp_flags & SESSION_TCP_FIN)
		state |= of_remote ? SESSION_FIN << SESSION_REPLY : SESSION_FIN;
	if (flow->tcp_flags & SESSION_TCP_RST)
		state |= SESSION_RST;
	return state;
}

/* Describes the session of a packet to nat_install(), by its record. */
static __always_inline enum drop_reason describe_copy(const struct packet *packet, struct nat_memory *memory)
{
	struct nat_packet *nat = &memory->packet;
	enum drop_reason reason = describe_to_nat(packet, packet->nat_gateway, packet->vni, memory);
	const struct nat_group *group;
	__u32 index = packet->ring >> 4;

	if (reason)
		return reason;
	if (!nat_prepare(nat))
		return DROP_nat_protocol;
	if (packet->frame.flags & FRAME_LATER || memory->flow.flags & NAT_PEEK || memory->flow.is_answer ||
	    index >= nat->pool.addresses)
		return DROP_nat_ring;
	nat->address = nat->pool.address[index & (NAT_POOL_ADDRESSES_MAX - 1)];
	group = nat_first_group(nat);
	nat->outside = group ? READ_ONCE(group->outside) : 0;
	if (!nat->outside || nat_ring_check(nat->outside) != (packet->ring & 15))
		return DROP_nat_ring;
	nat->outside_port = packet->new_source_port;
	describe_inside(packet, memory);
	nat->remote = memory->flow.destination;
	nat->remote_port = memory->flow.destination_port;
	nat->state = nat_copy_state(packet, &memory->flow);
	/* The owner's NAT gateway shares ports as this one, except for a moment while that changes. */
	if (nat->pool.flags & NAT_SHARES_PORTS)
		nat->state |= NAT_COPY_OF_SHARED;
	/* The record of a later packet may know less than what another gateway has copied. */
	if (!(memory->flow.tcp_flags & SESSION_TCP_SYN))
		nat->flags |= NAT_ADDS_STATE;
	nat->idle = 0;
	return DROP_none;
}

/* Counts why the session was not installed. */
static __always_inline void count_copy(enum nat_answer answer)
{
	if (answer == NAT_TAKEN || answer == NAT_ELSEWHERE)
		count_in_ring(NAT_RING_TAKEN);
	else if (answer == NAT_FULL)
		count_in_ring(NAT_RING_FULL);
	else if (answer == NAT_BUSY)
		count_in_ring(NAT_RING_BUSY);
}

/* Finds out where a packet with a record goes, and which session it is of. 0, or the program's verdict. */
__attribute__((noinline)) int read_nat_record(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	struct nat_memory *memory = nat_memory();
	enum drop_reason reason;

	if (!packet || !memory)
		return drop(0, DROP_stale_index);
	reason = find_place_in_ring(packet);
	if (!reason)
		reason = read_nat_flow(ctx, packet, at);
	if (!reason)
		reason = describe_copy(packet, memory);
	if (!reason)
		return 0;
	if (!(packet->nat & PACKET_IN_RING))
		return drop(packet->vni, reason);
	/* The others may know what this gateway does not. */
	count_in_ring(NAT_RING_UNKNOWN);
	return FOR_RING;
}

/* Decides about a packet whose session was installed with this answer, as take_nat_copy(). */
__attribute__((noinline)) int use_nat_copy(struct packet *packet, __u32 answer)
{
	struct nat_memory *memory = nat_memory();

	if (!packet || !memory)
		return drop(0, DROP_stale_index);
	count_copy(answer);
	/* The next gateways get the session also if this one could not install it. */
	if (packet->nat & PACKET_IN_RING)
		return FOR_RING;
	/*
	 * The owner has the session, and gets the answer. So the packet leaves as the record says, also if this gateway could not
	 * install it.
	 */
	packet->new_source[0] = 0;
	packet->new_source[1] = memory->packet.outside;
	packet->nat |= PACKET_NAT_SOURCE;
	count_in_ring(NAT_RING_LEFT);
	return 0;
}

/* At another gateway than the owner: installs the session of a packet with a record. Not a function: nat_install() needs the stack. */
static __always_inline int take_nat_copy(struct xdp_md *ctx, struct packet *packet, __u32 at)
{
	struct nat_memory *memory = nat_memory();
	int verdict = read_nat_record(ctx, packet, at);

	if (verdict || !memory)
		return verdict;
	return use_nat_copy(packet, nat_install(&memory->packet));
}

/* Sends the packet to the next gateway of the ring, unchanged in a tunnel of its VPC. */
__attribute__((noinline)) int pass_around(struct xdp_md *ctx, struct packet *packet)
{
	enum drop_reason reason;

	if (!packet)
		return drop(0, DROP_stale_index);
	/* As a frame that is bridged, it stays as it is. */
	packet->routed = 0;
	reason = forward_to_host(ctx, packet);
	if (reason)
		return drop_to_sender(ctx, packet, reason);
	count_in_ring(packet->nat & PACKET_NAT_SOURCE ? NAT_RING_ENTERED : NAT_RING_PASSED);
	return packet->verdict;
}

#endif
