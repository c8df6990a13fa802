/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Fuzz target: the programs of the vSwitch, compiled natively under
 * AddressSanitizer and UndefinedBehaviorSanitizer, with a copy of the tables
 * that the fixtures use.
 *
 * Input: a struct setup, its patches of the tables, and the frame. The tables
 * are restored after each run. Besides memory errors it finds frames that break
 * a guarantee to tenants:
 *
 * - A VM's frame leaves only with the port's own addresses, in the port's own
 *   VNI or by a direct path, no longer than the MTU, and without the messages
 *   that only a router or a DHCP server sends. This still holds after a device
 *   has filled in a checksum that the VM left pending.
 * - An answer returns to the VM that asked, with valid checksums.
 * - A frame from the underlay is delivered only if a known node sent it, in the
 *   VNI and to the addresses of the port.
 * - A frame leaves with the identity of its port, or of the node that sent it
 *   here, within its VNI and to nodes with a vSwitch or gateways, and with none
 *   otherwise.
 * - A packet that the program on the underlay interface decapsulates is delivered
 *   as if the VXLAN device had decapsulated it. It changes no other packet.
 * - The outer headers that a program writes are valid.
 */
#include "skb.h"

#include "../bpf/vswitch.bpf.c"

#define SWITCH_PORT 0x03   /* number of the port */
#define SWITCH_SPLIT 0x04  /* only the Ethernet header is linear */
#define SWITCH_BUDGET 0x08 /* the budget of ICMP errors is used up */
#define SWITCH_UPLINK 0x10 /* from the underlay, not from a VM */
#define SWITCH_HOST 0x20   /* uplink: the sender is a host, not a gateway */
#define SWITCH_IPV6 0x40   /* uplink: the sender has an IPv6 address */
#define SWITCH_TAG 0x80	   /* the frame has a VLAN tag, which the kernel keeps outside of it */

#define OFFLOAD_CHECKSUM 0x01 /* VM: a checksum is pending */
#define OFFLOAD_NO_KEY 0x02   /* uplink: the packet did not come through a tunnel */
#define OFFLOAD_RESOLVED 0x04 /* next hops are resolved */
#define OFFLOAD_OUTER 0x08    /* uplink, IPv4: with its outer headers, on the underlay interface */
#define OFFLOAD_FIB 0x10      /* the kernel has no neighbor entries */
#define OFFLOAD_FILTERED 0x20 /* all ports need sessions; no policy denies anything */
#define OFFLOAD_KEEP 0x40     /* the sessions of the packet before exist still */
#define OFFLOAD_IDENTITY 0x80 /* uplink: the packet carries an identity */

/* The first bytes of an input. */
struct setup {
	uint8_t switches;    /* SWITCH_* */
	uint8_t patches;     /* number of patches to the tables that follow */
	uint8_t offload;     /* OFFLOAD_* */
	uint8_t sender;	     /* uplink: changes the last byte of the sender's address */
	uint8_t vni[3];	     /* uplink: changes the VNI, which is the port's otherwise */
	uint8_t gso_size[2]; /* little endian; 0: the packet is not to be cut into segments */
	uint8_t csum_start
		[2]; /* OFFLOAD_OUTER: the byte of the outer headers that is changed, modulo their length */
	uint8_t csum_offset[2]; /* OFFLOAD_OUTER: how */
};

#define IDENTITY 0x0102

#define PORTS_MAX 4
#define NODES_MAX 64
#define IFINDEX_MAX 65536

#define PORT_DHCP_CLIENT 68
#define PORT_DHCP6_CLIENT 546

static uint32_t ports[PORTS_MAX], ports_used;
/* Nodes from which packets are accepted, and one of each kind and family to choose from. */
static struct next_hop known_nodes[NODES_MAX], nodes[2][2];
static uint32_t known_nodes_used;
static struct token_bucket strays_left, unknown_receivers_left;
static struct remote_identity remote_identity;
static uint64_t lost, refused, share, claim_share, of_unknown_port;
/* Memory of the programs. Its content is not defined when a packet arrives. */
static struct {
	struct frame frame;
	struct sum_chunk sum;
	struct dhcp_request dhcp;
	struct dhcp6_request dhcp6;
	struct quote quote;
} memory;

/* The session tables. */
#define BUCKETS 8
static struct {
	struct session_config config;
	struct session_bucket4 ipv4[BUCKETS];
	struct session_bucket6 ipv6[BUCKETS];
	struct session_share share;
	struct admission admission;
	__u64 fragments[FRAGMENT_PARTS * FRAGMENTS_OF_PART];
} filter;

/* Empties the session tables. */
static void reset_sessions(void)
{
	memset(&filter, 0, sizeof(filter));
	filter.config.buckets4 = filter.config.buckets6 = BUCKETS;
	for (int i = 0; i < SESSION_KEY6_WORDS; i++)
		filter.config.hash_key[i] = 0x9e3779b97f4a7c15ull * (i + 1);
	filter.config.timeouts = (struct session_timeouts){ 1920, 59520, 1920, 960, 2400, 480, 2400, 0 };
	filter.share.limit = 40;
}

static void *session_map(const void *map, uint32_t index)
{
	if (map == &session_config)
		return index ? NULL : &filter.config;
	if (map == &sessions4)
		return index < BUCKETS ? &filter.ipv4[index] : NULL;
	if (map == &sessions6)
		return index < BUCKETS ? &filter.ipv6[index] : NULL;
	if (map == &session_shares)
		return index < 1 << 16 ? &filter.share : NULL;
	if (map == &fragments)
		return index < FRAGMENT_PARTS * FRAGMENTS_OF_PART ? &filter.fragments[index] : NULL;
	return map == &admissions && !index ? &filter.admission : NULL;
}

static void *own_map(const void *map, uint32_t index)
{
	void *found = session_map(map, index);

	if (found)
		return found;
	if (map == &stray_budget)
		return index ? NULL : &strays_left;
	if (map == &unknown_receiver_budget)
		return index ? NULL : &unknown_receivers_left;
	/* The index is the VNI. The VMs of half of the VPCs are known. */
	if (map == &remote_identities)
		return index & 4 ? &remote_identity : NULL;
	if (map == &frames)
		return index ? NULL : &memory.frame;
	if (map == &sum_chunks)
		return index ? NULL : &memory.sum;
	if (map == &dhcp_requests)
		return index ? NULL : &memory.dhcp;
	if (map == &dhcp6_requests)
		return index ? NULL : &memory.dhcp6;
	if (map == &quotes)
		return index ? NULL : &memory.quote;
	if (map == &unknown_ports)
		return &of_unknown_port;
	if (map == &claim_shares)
		return index < CLAIM_SHARES ? &claim_share : NULL;
	if (map == &event_shares)
		return index < EVENT_SHARES ? &share : NULL;
	if (map == &events_refused)
		return index ? NULL : &refused;
	return map == &events_lost && !index ? &lost : NULL;
}

struct sk_buff *native_skb(void)
{
	static struct sk_buff skb;
	uint32_t headroom = tc.skb.data - (uint32_t)(uintptr_t)ARENA;

	skb.ip_summed = tc.checksum_pending ? CHECKSUM_PARTIAL : 0;
	skb.csum_start = headroom + tc.csum_start;
	skb.csum_offset = tc.csum_offset;
	skb.network_header = headroom + ETH_HLEN;
	return &skb;
}

void *bpf_cast_to_kern_ctx(void *ctx)
{
	if (ctx != &tc.skb)
		abort();
	return native_skb();
}

static int is_host(const struct next_hop *hop)
{
	return !!(hop->flags & NEXT_HOP_HOST);
}

static uint16_t load16(const uint8_t *bytes)
{
	return bytes[0] | bytes[1] << 8;
}

/* Finds the ports by their interfaces, and the known senders. */
static void prepare(void)
{
	for (uint32_t ifindex = 1; ifindex < IFINDEX_MAX && ports_used < PORTS_MAX; ifindex++) {
		uint32_t cell = find_index(0, ifindex);

		if (cell && vm_port_at(cell))
			ports[ports_used++] = cell;
	}
	for (uint32_t cell = CELL_FIRST_FREE; cell < cells_used; cell++) {
		const struct next_hop *hop = (void *)&pristine[cell];
		struct exact_hit hit = {};
		uint64_t address[2] = { load_half(hop->address), load_half(hop->address + 8) };

		if (hop->kind != NEXT_HOP_VTEP || known_nodes_used == NODES_MAX)
			continue;
		if (hop->flags & NEXT_HOP_IPV6 ? find_ipv6(0, address[0], address[1], &hit) == EXACT_HIT
					       : find_ipv4(0, address[0] >> 32, &hit) == EXACT_HIT) {
			known_nodes[known_nodes_used++] = *hop;
			nodes[is_host(hop)][hop->flags & NEXT_HOP_IPV6] = *hop;
		}
	}
	if (ports_used < PORTS_MAX || !nodes[0][0].kind || !nodes[0][1].kind || !nodes[1][0].kind ||
	    !nodes[1][1].kind) {
		fprintf(stderr, "the tables need %u ports, and a gateway and a host of each family\n",
			PORTS_MAX);
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

static int is_ipv4(const uint8_t *frame)
{
	return frame[12] == 0x08 && frame[13] == 0x00;
}

static int is_ipv6(const uint8_t *frame)
{
	return frame[12] == 0x86 && frame[13] == 0xdd;
}

static int is_arp(const uint8_t *frame)
{
	return frame[12] == 0x08 && frame[13] == 0x06;
}

/*
 * What the port with further sources has, in crates/datapath/tests/fuzz/vswitch.rs: 10.1.70.0/24, 10.1.0.70, and 10.1.0.80
 * in turn with others; fd00:1:0:9::/64, fd00:1::70, and fd00:1::80, which it does not hold.
 */
static int has_ipv4(const struct port *port, const uint8_t *address)
{
	if (!memcmp(address, &port->address4, 4))
		return 1;
	if (!(port->flags & PORT_SOURCES) || address[0] != 10 || address[1] != 1)
		return 0;
	return address[2] == 70 || (!address[2] && (address[3] == 70 || address[3] == 80));
}

static int has_ipv6(const struct port *port, const uint8_t *address, int holds)
{
	static const uint8_t prefix[8] = { 0xfd, 0, 0, 1, 0, 0, 0, 9 };
	static const uint8_t subnet[15] = { 0xfd, 0, 0, 1 };

	if (!memcmp(address, port->address6, 16))
		return 1;
	if (!(port->flags & PORT_SOURCES))
		return 0;
	if (!memcmp(address, prefix, sizeof(prefix)))
		return 1;
	return !memcmp(address, subnet, sizeof(subnet)) &&
	       (address[15] == 0x70 || (address[15] == 0x80 && !holds));
}

/* Whether the VM may send from the MAC address: that of the port, or of its pair. */
static int has_mac(const struct port *port, const uint8_t *mac)
{
	static const uint8_t of_pair[ETH_ALEN] = { 0, 0, 0x5e, 0, 1, 7 };

	return !memcmp(mac, port->mac, ETH_ALEN) ||
	       (port->flags & PORT_SOURCES && !memcmp(mac, of_pair, ETH_ALEN));
}

/* Checks that the frame's source is the port's own, at each place where its kind of packet has a source. */
static void check_source(const struct port *port, const uint8_t *frame, uint32_t length)
{
	if (!has_mac(port, frame + ETH_ALEN))
		fail("a frame with a foreign MAC address left its port");
	if (is_ipv4(frame)) {
		if (length < 34 || !has_ipv4(port, frame + 26))
			fail("a packet with a foreign IPv4 address left its port");
	} else if (is_ipv6(frame)) {
		if (length < 54 || !has_ipv6(port, frame + 22, 0))
			fail("a packet with a foreign IPv6 address left its port");
	} else if (is_arp(frame)) {
		if (length < 42 || memcmp(frame + 22, frame + ETH_ALEN, ETH_ALEN) ||
		    !has_ipv4(port, frame + 28))
			fail("ARP with a foreign address left its port");
	} else {
		fail("a frame that is neither IP nor ARP left its port");
	}
}

/* Checks that a frame which is delivered to a port is for its addresses. */
static void check_destination(const struct port *to, const uint8_t *frame, uint32_t length)
{
	/* Answers to ARP and neighbor discovery come to the MAC address that has asked. */
	int is_control = is_arp(frame) || (is_ipv6(frame) && length >= 54 && frame[20] == IPPROTO_ICMPV6);

	if (memcmp(frame, to->mac, ETH_ALEN) && !(to->flags & PORT_SOURCES && is_control))
		fail("a frame for another MAC address was delivered");
	if (is_ipv4(frame) && (length < 34 || !has_ipv4(to, frame + 30)))
		fail("a packet for another IPv4 address was delivered");
	if (is_ipv6(frame) && (length < 54 || !has_ipv6(to, frame + 38, 1)))
		fail("a packet for another IPv6 address was delivered");
	if (is_arp(frame) && (length < 42 || !has_ipv4(to, frame + 38)))
		fail("ARP for another address was delivered");
}

/* Offset of the transport header of a packet whose protocol is `protocol`; 0 if it is not, or has none. */
static uint32_t transport_of(const uint8_t *frame, uint32_t length, uint8_t protocol)
{
	uint32_t at = 0;

	if (is_ipv4(frame) && length >= 34 && frame[23] == protocol &&
	    !((frame[20] << 8 | frame[21]) & 0x1fff))
		at = 14 + (frame[14] & 15) * 4;
	if (is_ipv6(frame) && length >= 54 && frame[20] == protocol)
		at = 54;
	return at && at + 8 <= length ? at : 0;
}

/* Checks that the frame is not a message that a VM gets from its own host only. */
static void check_control(const uint8_t *frame, uint32_t length, int from_vm)
{
	uint32_t at = transport_of(frame, length, IPPROTO_UDP);
	uint16_t to = at ? frame[at + 2] << 8 | frame[at + 3] : 0;

	if (from_vm && (is_ipv4(frame) ? to == PORT_DHCP_CLIENT : to == PORT_DHCP6_CLIENT))
		fail("a VM sent a message of a DHCP server");
	at = is_ipv6(frame) ? transport_of(frame, length, IPPROTO_ICMPV6) : 0;
	if (at && (frame[at] == ICMP6_ROUTER_ADVERT || frame[at] == ICMP6_REDIRECT))
		fail("a router's message did not come from the router");
}

/* Checks that each packet which the frame is, or will be cut into, fits the port's MTU. */
static void check_length(const struct port *from, const uint8_t *frame, uint32_t length, uint32_t gso_size)
{
	uint32_t tcp = transport_of(frame, length, IPPROTO_TCP),
		 udp = transport_of(frame, length, IPPROTO_UDP);
	uint32_t bytes = length - ETH_HLEN, header = 8;

	/* SCTP's segments are packets already, each of its own size. */
	if ((!tcp && !udp) || gso_size == GSO_BY_FRAGS)
		return;
	if (tcp && gso_size) {
		header = tcp + 20 <= length ? (frame[tcp + 12] >> 4) * 4 : 0;
		if (header < 20)
			return; /* without a whole TCP header the kernel makes no segments */
	}
	if (gso_size)
		bytes = (tcp ? tcp : udp) - ETH_HLEN + header + gso_size;
	if (bytes > from->mtu)
		fail("a packet longer than the MTU left its port");
}

static int has_valid_ipv4_checksum(const uint8_t *frame, uint32_t length)
{
	uint32_t header = (frame[14] & 15) * 4;

	return is_ipv4(frame) && length >= 14 + header && !residue(frame + 14, header, 0);
}

/* Checks an answer to a VM: receiver, lengths and checksums. */
static void check_answer(const struct port *port, const uint8_t *frame, uint32_t length)
{
	uint32_t total;

	/* A VM without an address is answered by multicast (RFC 4861 section 6.2.6). */
	if ((!has_mac(port, frame) && !(frame[0] & 1)) || has_mac(port, frame + ETH_ALEN))
		fail("an answer with the wrong MAC addresses");
	if (is_ipv4(frame)) {
		total = frame[16] << 8 | frame[17];
		if (length < 34 || total + 14 > length || !has_valid_ipv4_checksum(frame, length))
			fail("IPv4 header of an answer");
	} else if (is_ipv6(frame)) {
		total = frame[18] << 8 | frame[19];
		if (length < 54 || total + 54 > length)
			fail("IPv6 header of an answer");
		/* An echo reply has the checksum of its request, which may be wrong. */
		if (frame[20] == IPPROTO_ICMPV6 && frame[54] != ICMP6_ECHO_REPLY &&
		    residue(frame + 22, 32 + total, total + IPPROTO_ICMPV6))
			fail("ICMPv6 checksum of an answer");
		if (frame[20] == IPPROTO_UDP && residue(frame + 22, 32 + total, total + IPPROTO_UDP))
			fail("UDP checksum of an answer");
	}
}

/* Whether the packet was sent to the host and the VNI of a direct path. */
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

/* The packet as it came. */
struct received {
	const uint8_t *frame;
	uint32_t length;
	uint32_t gso_size;
	const struct port *port;       /* the VM's port; NULL: it came from the underlay */
	const struct next_hop *sender; /* underlay: NULL: an unknown node, or no tunnel key */
	uint32_t vni;		       /* underlay */
	uint16_t identity;	       /* underlay: in the VXLAN header; 0: none */
};

/* The node with the address in the packet's tunnel key, or NULL. */
static const struct next_hop *node_of_key(void)
{
	for (uint32_t i = 0; i < known_nodes_used; i++) {
		const struct next_hop *hop = &known_nodes[i];

		if (tc.key_family == 6
			    ? hop->flags & NEXT_HOP_IPV6 && !memcmp(hop->address, tc.key.remote_ipv6, 16)
			    : tc.key_family == 4 && !(hop->flags & NEXT_HOP_IPV6) &&
				      bpf_ntohl(LOAD32(hop->address)) == tc.key.remote_ipv4)
			return hop;
	}
	return NULL;
}

static int is_foreign(const struct next_hop *node)
{
	return node && node->flags & NEXT_HOP_FOREIGN;
}

/* The identity of a packet from the underlay that a node vouches for. */
static uint16_t trusted_identity(const struct received *in)
{
	return is_foreign(in->sender) ? 0 : in->identity;
}

/* Checks the identity of a packet that is sent through the tunnel. `identity` and `vni` are its sender's. */
static void check_identity_sent(uint16_t identity, uint32_t vni)
{
	uint32_t expected = tc.key.tunnel_id == vni && !is_foreign(node_of_key()) ? identity : 0;

	if (!tc.has_gbp || tc.gbp != expected)
		fail("identity of a packet that is sent");
}

/* A stray is forwarded to a gateway without changes, and the event names its sender. */
static void check_stray(const struct received *in, const uint8_t *frame, uint32_t length)
{
	const struct stray_event *event = (void *)kernel.record;

	if (!is_host(in->sender))
		fail("a stray of a gateway was sent back to a gateway");
	if (tc.key.tunnel_id != in->vni || length != in->length || memcmp(frame, in->frame, length))
		fail("a stray was changed");
	check_identity_sent(trusted_identity(in), in->vni);
	if (kernel.posted && (event->vni != in->vni || event->ipv6 > 1 || event->reserved[0] ||
			      event->sender_ipv6 != (in->sender->flags & NEXT_HOP_IPV6)))
		fail("fields of an event");
}

static void check_from_underlay(const struct received *in, const struct port *to, const uint8_t *frame,
				uint32_t length)
{
	if (!in->sender)
		fail("a packet of an unknown node was accepted");
	if (!to) {
		check_stray(in, frame, length);
		return;
	}
	if (to->vni != in->vni)
		fail("a packet of another VNI was delivered");
	if (memory.frame.identity != trusted_identity(in))
		fail("identity of a packet from the underlay");
	check_destination(to, frame, length);
	check_control(frame, length, 0);
}

static void check_from_vm(const struct received *in, const struct port *to, uint8_t *frame, uint32_t length)
{
	const struct node_config *node = (void *)&pristine[CELL_NODE];
	const struct port *from = in->port;

	if (to == from) {
		check_answer(from, frame, length);
		return;
	}
	if (to) {
		if (to->vni != from->vni)
			fail("a frame crossed from one VNI into another");
		check_destination(to, frame, length);
	} else if (!tc.key_family || (tc.key.tunnel_id != from->vni && !is_direct_path())) {
		fail("a frame was sent into another VNI");
	} else {
		check_identity_sent(from->identity, from->vni);
	}
	if (memory.frame.identity != from->identity)
		fail("identity of a VM");
	check_control(frame, length, 1);
	check_length(from, frame, length, in->gso_size);
	if (has_valid_ipv4_checksum(in->frame, in->length) && !has_valid_ipv4_checksum(frame, length))
		fail("forwarding broke the checksum of an IPv4 header");
	/* A routed frame has the router's MAC address. */
	if ((to || is_direct_path()) && !memcmp(frame + ETH_ALEN, node->router_mac, ETH_ALEN))
		memcpy(frame + ETH_ALEN, from->mac, ETH_ALEN);
	check_source(from, frame, length);
}

/* Checks the outer headers of a packet, and makes their tunnel the packet's tunnel key. */
static void check_outer(const uint8_t *packet, uint32_t length)
{
	const struct node_config *node = (void *)&pristine[CELL_NODE];
	const uint8_t *ip = packet + ETH_HLEN, *udp = ip + IPV4_BYTES, *vxlan = udp + UDP_BYTES;
	uint32_t ip_bytes = length - ETH_HLEN;
	const uint8_t plain[4] = { 8 }, grouped[4] = { 0x88, 0, vxlan[2], vxlan[3] };

	if (length < TUNNEL4_BYTES + ETH_HLEN || memcmp(packet, fib_mac, ETH_ALEN) ||
	    memcmp(packet + ETH_ALEN, node->port[0].mac, ETH_ALEN) || !is_ipv4(packet))
		fail("outer Ethernet header");
	if (ip[0] != 0x45 || ip[1] & 0xfc || (ip[1] & 3) == 3 || (uint32_t)(ip[2] << 8 | ip[3]) != ip_bytes ||
	    ip[6] != 0x40 || ip[7] || ip[8] != 64 || ip[9] != IPPROTO_UDP || residue(ip, 20, 0) ||
	    memcmp(ip + 12, &node->vtep4, 4))
		fail("outer IPv4 header");
	if (udp[0] < 0xc0 || udp[2] != 0x12 || udp[3] != 0xb5 ||
	    (uint32_t)(udp[4] << 8 | udp[5]) != ip_bytes - IPV4_BYTES || udp[6] || udp[7])
		fail("outer UDP header");
	if (memcmp(vxlan, vxlan[2] || vxlan[3] ? grouped : plain, sizeof(plain)) || vxlan[7])
		fail("VXLAN header");
	tc.key_family = 4;
	tc.has_gbp = 1;
	tc.gbp = vxlan[2] << 8 | vxlan[3];
	tc.key.tunnel_id = vxlan[4] << 16 | vxlan[5] << 8 | vxlan[6];
	tc.key.remote_ipv4 = bpf_ntohl(LOAD32(ip + 16));
}

/* Checks a frame that was redirected. */
static void check_redirect(const struct received *in)
{
	static uint8_t packet[2 * PACKET_MAX];
	uint8_t *frame = packet;
	const struct node_config *node = (void *)&pristine[CELL_NODE];
	const struct port *to = port_with(tc.redirected_to);
	uint32_t length = tc.skb.len;

	if (length < ETH_HLEN || length > sizeof(packet) || bpf_skb_load_bytes(&tc.skb, 0, packet, length))
		fail("length of a frame that is sent");
	if (!to && tc.redirected_to != node->vxlan_ifindex && tc.redirected_to != FIB_IFINDEX)
		fail("a frame was sent out of an interface that is not a port");
	if (tc.encapsulated != (!to && tc.redirected_to == FIB_IFINDEX))
		fail("a frame is encapsulated twice, or not at all");
	/*
	 * A device fills in the pending checksum. The VM can choose its value; assume that it changes each
	 * bit.
	 */
	if (tc.checksum_pending && checksum_place() >= 0 && (uint32_t)checksum_place() + 2 <= length) {
		frame[checksum_place()] ^= 0xff;
		frame[checksum_place() + 1] ^= 0xff;
	}
	if (tc.encapsulated) {
		check_outer(packet, length);
		frame += TUNNEL4_BYTES;
		length -= TUNNEL4_BYTES;
	}
	if (in->port)
		check_from_vm(in, to, frame, length);
	else
		check_from_underlay(in, to, frame, length);
}

/* Makes the packet one with this identity, as the VXLAN device shows it. */
static void receive_identity(struct received *in, uint16_t identity)
{
	in->identity = identity;
	tc.gbp = identity;
	tc.has_gbp = 1;
}

/* Makes the packet one that came through the tunnel. */
static void receive_from_underlay(const struct setup *setup, const struct port *port, struct received *in)
{
	int ipv6 = !!(setup->switches & SWITCH_IPV6);
	const struct next_hop *node = &nodes[!!(setup->switches & SWITCH_HOST)][ipv6];

	tc.skb.ifindex = ((struct node_config *)&pristine[CELL_NODE])->vxlan_ifindex;
	in->vni = port->vni ^ (setup->vni[0] | setup->vni[1] << 8 | setup->vni[2] << 16);
	if (setup->offload & OFFLOAD_NO_KEY)
		return;
	tc.key_family = ipv6 ? 6 : 4;
	tc.key.tunnel_id = in->vni;
	if (ipv6) {
		memcpy(tc.key.remote_ipv6, node->address, 16);
		((uint8_t *)tc.key.remote_ipv6)[15] ^= setup->sender;
	} else {
		tc.key.remote_ipv4 = bpf_ntohl(LOAD32(node->address)) ^ setup->sender;
	}
	if (setup->offload & OFFLOAD_IDENTITY)
		receive_identity(in, IDENTITY);
	in->sender = node_of_key();
}

/* Makes the packet one that came from a VM, perhaps with a pending checksum. */
static void receive_from_vm(const struct setup *setup, const struct port *port, struct received *in)
{
	uint32_t place = load16(setup->csum_start) + load16(setup->csum_offset);

	in->port = port;
	tc.skb.ifindex = port->ifindex;
	/* The kernel accepts only a checksum in the linear part (skb_partial_csum_set). */
	if (!(setup->offload & OFFLOAD_CHECKSUM) || place + 2 > linear_bytes())
		return;
	tc.checksum_pending = 1;
	tc.csum_start = load16(setup->csum_start);
	tc.csum_offset = load16(setup->csum_offset);
}

/* Filters all ports. */
static void filter_ports(void)
{
	for (uint32_t i = 0; i < PORTS_MAX; i++) {
		struct port *port = (void *)&tables[ports[i]];

		port->flags |= PORT_FILTERED;
		port->scope = i + 1;
	}
}

/* Resolves the next hops that have IPv4. */
static void resolve_all(void)
{
	for (uint32_t cell = CELL_FIRST_FREE; cell < cells_used; cell++) {
		struct next_hop *hop = (void *)&tables[cell];

		if ((hop->kind != NEXT_HOP_VTEP && hop->kind != NEXT_HOP_DIRECT) ||
		    hop->flags & NEXT_HOP_IPV6)
			continue;
		memcpy(&hop->l2, fib_mac, ETH_ALEN);
		hop->l2_expires_ns = ~0ull;
	}
}

/* Writes the outer headers of a packet to this node, one byte of them changed. */
static void write_outer(const struct setup *setup, uint8_t *packet, uint32_t frame_bytes)
{
	const struct node_config *node = (void *)&pristine[CELL_NODE];
	uint32_t bytes = IPV4_BYTES + UDP_BYTES + VXLAN_BYTES + frame_bytes, vni = tc.key.tunnel_id;
	struct ethernet_header *ethernet = (void *)packet;
	struct udp_header *udp = (void *)(packet + ETH_HLEN + IPV4_BYTES);
	struct vxlan_header *vxlan = (void *)(udp + 1);

	memcpy(ethernet->destination, node->port[0].mac, ETH_ALEN);
	memcpy(ethernet->source, fib_mac, ETH_ALEN);
	ethernet->type = bpf_htons(ETH_P_IP);
	write_ipv4((void *)(ethernet + 1), &(struct ipv4_fields){
						   .bytes = bytes,
						   .fragment = IPV4_DF,
						   .ttl = 61,
						   .protocol = IPPROTO_UDP,
						   .source = bpf_htonl(tc.key.remote_ipv4),
						   .destination = node->vtep4,
					   });
	*udp = (struct udp_header){ bpf_htons(50000), bpf_htons(VXLAN_PORT), bpf_htons(bytes - IPV4_BYTES),
				    0 };
	*vxlan = (struct vxlan_header){ bpf_htonl(vxlan_flags(tc.gbp)), bpf_htonl(vni << 8) };
	packet[load16(setup->csum_start) % TUNNEL4_BYTES] ^= setup->csum_offset[0];
}

/* Runs the program of the underlay interface. What it delivers, the VXLAN device's program must deliver as well. */
static void run_outer(const struct setup *setup, const uint8_t *frame, uint32_t length, struct received *in)
{
	static uint8_t packet[PACKET_MAX + TUNNEL4_BYTES], delivered[PACKET_MAX + TUNNEL4_BYTES];
	const struct node_config *node = (void *)&pristine[CELL_NODE];
	struct bpf_tunnel_key key = tc.key;
	uint32_t total = length + TUNNEL4_BYTES, to, linear = total;
	uint16_t identity;
	uint64_t sent = traffic_count.packets;
	const struct port *receiver;
	int verdict;

	write_outer(setup, packet, length);
	memcpy(packet + TUNNEL4_BYTES, frame, length);
	if (setup->switches & SWITCH_SPLIT)
		linear = TUNNEL4_BYTES + ETH_HLEN;
	receive(packet, total, linear);
	tc.skb.ifindex = FIB_IFINDEX;
	tc.skb.gso_size = in->gso_size;
	tc.skb.vlan_present = !!(setup->switches & SWITCH_TAG);
	tc.skb.pkt_type = memcmp(packet, node->port[0].mac, ETH_ALEN) ? PACKET_OTHERHOST : PACKET_HOST;
	verdict = underlay_ingress(&tc.skb);
	if (verdict == TC_ACT_UNSPEC) {
		if (tc.skb.len != total || bpf_skb_load_bytes(&tc.skb, 0, delivered, total) ||
		    memcmp(packet, delivered, total) || traffic_count.packets != sent || tc.redirected_to)
			fail("a packet was changed or counted, and passed on");
		return;
	}
	/* A port may refuse what belongs to no session. */
	if (verdict == TC_ACT_SHOT && setup->offload & OFFLOAD_FILTERED && traffic_count.packets == sent)
		return;
	if (verdict != TC_ACT_REDIRECT || traffic_count.packets != sent + 1)
		fail("a packet of the underlay was neither passed on nor delivered");
	if (setup->patches)
		return;
	to = tc.redirected_to;
	if (tc.skb.len != length || bpf_skb_load_bytes(&tc.skb, 0, delivered, length))
		fail("a frame was cut or extended");
	/* An address that changes its VM is reached by the router's MAC address, which becomes the port's. */
	receiver = port_with(to);
	if (receiver && !memcmp(frame, node->router_mac, ETH_ALEN) &&
	    !memcmp(delivered, receiver->mac, ETH_ALEN))
		memcpy(delivered, node->router_mac, ETH_ALEN);
	if (memcmp(frame, delivered, length))
		fail("a frame was changed");
	identity = memory.frame.identity;
	key.tunnel_id = packet[46] << 16 | packet[47] << 8 | packet[48];
	receive(frame, length, length);
	tc.skb.ifindex = node->vxlan_ifindex;
	tc.key = key;
	tc.key_family = 4;
	in->vni = key.tunnel_id;
	in->sender = node_of_key();
	in->identity = 0;
	if (packet[42] & 0x80)
		receive_identity(in, packet[44] << 8 | packet[45]);
	if (uplink_ingress(&tc.skb) != TC_ACT_REDIRECT || tc.redirected_to != to)
		fail("the VXLAN device would not have delivered the packet, or to another port");
	if (memory.frame.identity != identity)
		fail("the VXLAN device would have shown another identity");
	check_redirect(in);
}

static void run(const struct setup *setup, const uint8_t *packet, uint32_t length)
{
	const struct port *port = pristine_port(ports[setup->switches & SWITCH_PORT]);
	struct received in = { .frame = packet, .length = length, .gso_size = load16(setup->gso_size) };
	uint64_t sent = traffic_count.packets;
	int verdict;

	receive(packet, length, setup->switches & SWITCH_SPLIT ? ETH_HLEN : length);
	memset(&memory, 0xa5, sizeof(memory));
	tc.skb.gso_size = in.gso_size;
	tc.skb.vlan_present = !!(setup->switches & SWITCH_TAG);
	tc.unresolved = !!(setup->offload & OFFLOAD_FIB);
	if (setup->offload & OFFLOAD_RESOLVED)
		resolve_all();
	if (setup->offload & OFFLOAD_FILTERED)
		filter_ports();
	if (!(setup->offload & OFFLOAD_KEEP))
		reset_sessions();
	memset(&filter.admission, 0xa5, sizeof(filter.admission));
	if (setup->switches & SWITCH_UPLINK)
		receive_from_underlay(setup, port, &in);
	else
		receive_from_vm(setup, port, &in);
	if (tc.key_family == 4 && setup->offload & OFFLOAD_OUTER) {
		run_outer(setup, packet, length, &in);
		return;
	}
	verdict = in.port ? port_ingress(&tc.skb) : uplink_ingress(&tc.skb);
	if (verdict == TC_ACT_SHOT) {
		if (traffic_count.packets != sent)
			fail("a packet was dropped and counted as sent");
	} else if (verdict != TC_ACT_REDIRECT) {
		fail("an unknown verdict");
	} else if (!setup->patches) {
		/* With patched tables there are no guarantees, and only memory errors are detected. */
		check_redirect(&in);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	struct setup setup;
	const uint8_t *patches = input + sizeof(setup), *frame;

	if (size < sizeof(setup) + ETH_HLEN || size > PACKET_MAX)
		return 0;
	memcpy(&setup, input, sizeof(setup));
	setup.patches %= PATCHES_MAX + 1;
	frame = patches + setup.patches * PATCH_BYTES;
	if (input + size < frame + ETH_HLEN)
		return 0;
	kernel.now_ns = 1;
	bucket.refilled_ns = ~0ull;
	bucket.tokens = !(setup.switches & SWITCH_BUDGET);
	strays_left = bucket;
	kernel.posted = 0;
	patch(patches, setup.patches);
	run(&setup, frame, input + size - frame);
	memcpy(tables, pristine, cells_used * sizeof(struct cell));
	return 0;
}
