/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Fuzz target: the programs of the vSwitch, compiled natively under
 * AddressSanitizer and UndefinedBehaviorSanitizer, over a copy of the tables
 * that the fixtures use.
 *
 * Input: one byte of switches, one byte that counts patches to the tables, four
 * bytes for each patch, and the frame. The tables are whole again after each
 * run. Besides memory errors it finds frames that break what tenants are
 * promised: a VM's frame leaves only with the port's own addresses, in the
 * port's own VNI, to where it belongs; an answer goes back to who asked.
 */
#include "skb.h"

#include "../bpf/vswitch.bpf.c"

/* Nothing is left to a device. */
struct sk_buff native_skb;

#define SWITCH_PORT 0x03   /* which port */
#define SWITCH_SPLIT 0x04  /* only the Ethernet header is linear */
#define SWITCH_BUDGET 0x08 /* no budget for ICMP errors */
#define SWITCH_UPLINK 0x10 /* from the underlay, in the port's VNI */
#define SWITCH_GSO 0x20	   /* to be cut into segments */
#define SWITCH_HOST 0x20   /* uplink: from a host, not a gateway */
#define SWITCH_IPV6 0x40   /* uplink: from an IPv6 underlay */
#define SWITCH_TAG 0x80	   /* a VLAN tag beside the frame */

#define PORTS_MAX 4
#define IFINDEX_MAX 65536
#define SEGMENT_BYTES 1000

static uint32_t ports[PORTS_MAX], ports_used;
/* A gateway and a host, of each family. */
static struct next_hop nodes[2][2];
static struct token_bucket strays_left;
static uint64_t lost;

static void *own_map(const void *map, uint32_t index)
{
	if (map == &stray_budget)
		return index ? NULL : &strays_left;
	return map == &events_lost && !index ? &lost : NULL;
}

static int is_host(const struct next_hop *hop)
{
	return !!(hop->flags & NEXT_HOP_HOST);
}

/* Ports by their interfaces, and known senders. */
static void prepare(void)
{
	for (uint32_t ifindex = 1; ifindex < IFINDEX_MAX && ports_used < PORTS_MAX; ifindex++) {
		uint32_t cell = find_index(0, ifindex);

		if (cell && port_at(cell))
			ports[ports_used++] = cell;
	}
	for (uint32_t cell = CELL_FIRST_FREE; cell < cells_used; cell++) {
		const struct next_hop *hop = (void *)&pristine[cell];
		struct exact_hit hit = {};
		uint64_t address[2] = { load_half(hop->address), load_half(hop->address + 8) };

		if (hop->kind != NEXT_HOP_VTEP)
			continue;
		if (hop->flags & NEXT_HOP_IPV6 ? find_ipv6(0, address[0], address[1], &hit) == EXACT_HIT
					       : find_ipv4(0, address[0] >> 32, &hit) == EXACT_HIT)
			nodes[is_host(hop)][hop->flags & NEXT_HOP_IPV6] = *hop;
	}
	if (ports_used < PORTS_MAX || !nodes[0][0].kind || !nodes[0][1].kind || !nodes[1][0].kind ||
	    !nodes[1][1].kind) {
		fprintf(stderr, "the tables hold no %u ports and nodes of each kind\n", PORTS_MAX);
		exit(1);
	}
}

static const struct port *pristine_port(uint32_t cell)
{
	return (const void *)&pristine[cell];
}

static const struct port *port_with(uint32_t ifindex)
{
	for (uint32_t i = 0; i < PORTS_MAX; i++)
		if (pristine_port(ports[i])->ifindex == ifindex)
			return pristine_port(ports[i]);
	return NULL;
}

/* That the frame's source is the port's own, as its kind of packet says it. */
static void check_source(const struct port *port, const uint8_t *frame, uint32_t length)
{
	if (memcmp(frame + ETH_ALEN, port->mac, ETH_ALEN))
		fail("a frame with a foreign MAC address left its port");
	if (frame[12] == 0x08 && frame[13] == 0x00) {
		if (length < 34 || memcmp(frame + 26, &port->address4, 4))
			fail("a packet with a foreign IPv4 address left its port");
	} else if (frame[12] == 0x86 && frame[13] == 0xdd) {
		if (length < 54 || memcmp(frame + 22, port->address6, 16))
			fail("a packet with a foreign IPv6 address left its port");
	} else if (frame[12] == 0x08 && frame[13] == 0x06) {
		if (length < 42 || memcmp(frame + 22, port->mac, ETH_ALEN) ||
		    memcmp(frame + 28, &port->address4, 4))
			fail("ARP with a foreign address left its port");
	} else {
		fail("a frame that is neither IP nor ARP left its port");
	}
}

/* That what the network says to a VM is whole: who to, how long, which checksums. */
static void check_answer(const struct port *port, const uint8_t *frame, uint32_t length)
{
	uint32_t total;

	/* Who has no address yet is answered by multicast (RFC 4861 section 6.2.6). */
	if ((memcmp(frame, port->mac, ETH_ALEN) && !(frame[0] & 1)) ||
	    !memcmp(frame + ETH_ALEN, port->mac, ETH_ALEN))
		fail("an answer with the wrong MAC addresses");
	if (frame[12] == 0x08 && frame[13] == 0x00) {
		total = frame[16] << 8 | frame[17];
		if (length < 34 || total + 14 > length || residue(frame + 14, (frame[14] & 15) * 4, 0))
			fail("IPv4 header of an answer");
	} else if (frame[12] == 0x86 && frame[13] == 0xdd) {
		total = frame[18] << 8 | frame[19];
		if (length < 54 || total + 54 > length)
			fail("IPv6 header of an answer");
		/* An echo reply may carry on a checksum that was wrong when it came. */
		if (frame[20] == IPPROTO_ICMPV6 && frame[54] != ICMP6_ECHO_REPLY &&
		    residue(frame + 22, 32 + total, total + IPPROTO_ICMPV6))
			fail("ICMPv6 checksum of an answer");
	}
}

/* Whether a direct path leads where the packet was sent. */
static int is_direct_path(void)
{
	for (uint32_t cell = CELL_FIRST_FREE; cell < cells_used; cell++) {
		const struct next_hop *hop = (void *)&pristine[cell];
		int ipv6 = hop->flags & NEXT_HOP_IPV6;

		if (hop->kind != NEXT_HOP_DIRECT || hop->vni != tc.key.tunnel_id ||
		    tc.key_family != (ipv6 ? 6 : 4))
			continue;
		if (ipv6 ? !memcmp(tc.key.remote_ipv6, hop->address, 16)
			 : tc.key.remote_ipv4 == bpf_ntohl(LOAD32(hop->address)))
			return 1;
	}
	return 0;
}

/* A stray: on to a gateway, as it was, and the agent knows who sent it. */
static void check_stray(const struct port *in, const struct next_hop *sender, const uint8_t *frame,
			const uint8_t *packet, uint32_t length)
{
	const struct stray_event *event = (void *)kernel.record;

	if (!is_host(sender))
		fail("a gateway's stray went back to one");
	if (tc.key.tunnel_id != in->vni || memcmp(frame, packet, length))
		fail("a stray was changed");
	if (kernel.posted && (event->vni != in->vni || event->ipv6 > 1 || event->reserved[0] ||
			      event->sender_ipv6 != (sender->flags & NEXT_HOP_IPV6)))
		fail("what an event says");
}

static void check_redirect(const struct port *from, const struct next_hop *sender, const uint8_t *packet)
{
	static uint8_t frame[2 * PACKET_MAX];
	const struct node_config *node = (void *)&pristine[CELL_NODE];
	const struct port *to = port_with(tc.redirected_to);
	uint32_t length = tc.skb.len, uplink = sender != NULL;

	if (length < ETH_HLEN || length > sizeof(frame) || bpf_skb_load_bytes(&tc.skb, 0, frame, length))
		fail("length of what is sent");
	if (!uplink && to == from) {
		check_answer(from, frame, length);
		return;
	}
	if (to) {
		if (to->vni != from->vni)
			fail("a frame crossed from one VNI into another");
		if (memcmp(frame, to->mac, ETH_ALEN))
			fail("a frame for another station was delivered");
		/* What was routed has the router's MAC now. */
		if (!uplink && memcmp(frame + ETH_ALEN, node->router_mac, ETH_ALEN))
			check_source(from, frame, length);
		return;
	}
	if (tc.redirected_to != node->vxlan_ifindex)
		fail("a frame was sent to no port");
	if (uplink) {
		check_stray(from, sender, frame, packet, length);
		return;
	}
	if (!tc.key_family || (tc.key.tunnel_id != from->vni && !is_direct_path()))
		fail("a frame was sent into another VNI");
	/* What was routed has the router's MAC now. */
	if (is_direct_path() && !memcmp(frame + ETH_ALEN, node->router_mac, ETH_ALEN))
		memcpy(frame + ETH_ALEN, from->mac, ETH_ALEN);
	check_source(from, frame, length);
}

static void run(const uint8_t *packet, uint32_t length, uint8_t switches, int judge)
{
	const struct port *port = pristine_port(ports[switches & SWITCH_PORT]);
	int uplink = !!(switches & SWITCH_UPLINK), family = !!(switches & SWITCH_IPV6), verdict;
	const struct next_hop *sender = &nodes[!!(switches & SWITCH_HOST)][family];
	uint64_t sent = traffic_count.packets;

	receive(packet, length, switches & SWITCH_SPLIT ? ETH_HLEN : length);
	tc.skb.gso_size = switches & SWITCH_GSO && !uplink ? SEGMENT_BYTES : 0;
	tc.skb.vlan_present = !!(switches & SWITCH_TAG);
	tc.skb.ifindex = port->ifindex;
	if (uplink) {
		tc.key_family = family ? 6 : 4;
		tc.key.tunnel_id = port->vni;
		if (family)
			memcpy(tc.key.remote_ipv6, sender->address, 16);
		else
			tc.key.remote_ipv4 = bpf_ntohl(LOAD32(sender->address));
		tc.skb.ifindex = ((struct node_config *)&pristine[CELL_NODE])->vxlan_ifindex;
	}
	verdict = uplink ? uplink_ingress(&tc.skb) : port_ingress(&tc.skb);
	if (verdict == TC_ACT_SHOT) {
		if (traffic_count.packets != sent)
			fail("dropped, and counted as sent");
	} else if (verdict != TC_ACT_REDIRECT) {
		fail("verdict");
	} else if (judge) {
		check_redirect(port, uplink ? sender : NULL, packet);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	uint32_t patches;

	if (size < 2 + ETH_HLEN)
		return 0;
	patches = input[1] % (PATCHES_MAX + 1);
	if (size < 2 + patches * PATCH_BYTES + ETH_HLEN || size > PACKET_MAX)
		return 0;
	kernel.now_ns = 1;
	bucket.refilled_ns = ~0ull;
	bucket.tokens = !(input[0] & SWITCH_BUDGET);
	strays_left = bucket;
	kernel.posted = 0;
	patch(input + 2, patches);
	/* What patched tables promise is nobody's: then only memory is watched. */
	run(input + 2 + patches * PATCH_BYTES, size - 2 - patches * PATCH_BYTES, input[0], !patches);
	memcpy(tables, pristine, cells_used * sizeof(struct cell));
	return 0;
}
