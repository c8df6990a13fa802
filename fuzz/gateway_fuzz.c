/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Fuzz target: the whole gateway program, compiled natively under
 * AddressSanitizer and UndefinedBehaviorSanitizer, with a copy of the tables
 * that the fixtures use.
 *
 * Input: a struct setup, its patches of the tables, and the packet. The tables
 * are restored after each run. Besides memory errors it finds verdicts that
 * break the contract of gateway.bpf.c: drops that no counter counts, packets
 * for the kernel that were changed, packets sent with wrong lengths or
 * checksums, tenants' packets sent although no known node sent them or
 * their VNI does not exist, packets to the Internet without a public source
 * or with another checksum than they came with, and identities that leave their VNI, or go to or
 * come from a host without a vSwitch, records of the ring that are accepted from hosts or sent to them, and packets that the ring
 * has changed. Each packet is then processed once more by the
 * general path alone, which must do the same in all that can be seen.
 */
#include "xdp.h"

#include "../bpf/gateway.bpf.c"

#include "meter_table.h"
#include "nat_tables.h"
#include "translated.h"

#define SWITCH_PORT 0x01    /* received on the second port */
#define SWITCH_SPLIT 0x02   /* a part of the packet is in fragments */
#define SWITCH_BUDGET 0x04  /* the budget of ICMP errors is used up */
#define SWITCH_FIB 0x18	    /* 0: the kernel's FIB has a route; otherwise one of its errors */
#define SWITCH_EXPIRED 0x20 /* cached next hops have expired */
#define SWITCH_FULL 0x40    /* the ring of events is full */
#define SWITCH_EVERY 0x80   /* the policy reports every flow */

/* Corrections of the outer headers, without which most changed packets are dropped early. */
#define REPAIR_LENGTHS 0x01  /* lengths of IP and UDP */
#define REPAIR_CHECKSUM 0x02 /* checksum of the IPv4 header */
#define FIB_INTERNET 0x04    /* no repair: the kernel's route is by the Internet port, which is the third */

/* The first bytes of an input. */
struct setup {
	uint8_t switches; /* SWITCH_* */
	uint8_t patches;  /* number of patches to the tables that follow */
	uint8_t repair;	  /* REPAIR_*, FIB_INTERNET */
	uint8_t sender;	  /* changes the last byte of the outer source address */
};

#define FLOW_BUCKETS 3
#define ELEPHANT_BYTES 300

/* Flow statistics, empty at the start of each run. */
static struct cell flow_table_cells[1 + FLOW_BUCKETS];
static struct flow_queue queue;
static uint64_t lost, refused, share;
/* Memory of the program. Its content is not defined when a packet arrives. */
static struct packet program_memory;
static struct sum_chunk sum_memory;

static void *own_map(const void *map, uint32_t index)
{
	if (map == &flow_cells)
		return index <= FLOW_BUCKETS ? &flow_table_cells[index] : NULL;
	if (map == &flow_queues)
		return index ? NULL : &queue;
	if (map == &meters)
		return find_meter(index);
	if (map == &meter_counts)
		return find_meter_count(index);
	if (map == &packets)
		return index ? NULL : &program_memory;
	if (map == &sum_chunks)
		return index ? NULL : &sum_memory;
	if (map == &event_shares)
		return index < EVENT_SHARES ? &share : NULL;
	if (map == &events_refused)
		return index ? NULL : &refused;
	if (map == &events_lost)
		return index ? NULL : &lost;
	return find_nat(map, index);
}

static void prepare(void)
{
	prepare_nat();
}

/* Empties the flow statistics. */
static void begin_flows(uint8_t switches)
{
	struct flow_table *table = (void *)flow_table_cells;

	memset(flow_table_cells, 0, sizeof(flow_table_cells));
	memset(&queue, 0, sizeof(queue));
	table->buckets = FLOW_BUCKETS;
	table->policy = 60ull << FLOW_PERIOD_SHIFT | ELEPHANT_BYTES;
	if (switches & SWITCH_EVERY)
		table->policy |= FLOW_EVERY;
	for (uint32_t i = 0; i < FLOW_KEY_WORDS; i++)
		table->secret[i] = 0x9e3779b9 * (i + 1);
	kernel.ring_full = !!(switches & SWITCH_FULL);
}

/*
 * Checks that a tenant's frame which was forwarded is counted as one packet of
 * one flow, that no other packet is, and the event about it. Patched tables can
 * have any thresholds and counters.
 */
static void check_flows(uint64_t frames, uint32_t posted, uint64_t missed, int patched)
{
	const struct flow_table *table = (void *)flow_table_cells;
	const struct flow_event *event = (void *)kernel.record;
	uint64_t counted = 0, reported = 0;
	int expected;

	for (uint32_t i = 1; i <= FLOW_BUCKETS; i++) {
		const struct flow_bucket *bucket = (void *)&flow_table_cells[i];

		for (int way = 0; way < FLOW_WAYS; way++) {
			uint64_t count = bucket->entry[way].count;

			counted += count >> FLOW_PACKETS_SHIFT & FLOW_PACKETS_MASK;
			reported += !!(count & FLOW_REPORTED);
			if (!count || patched)
				continue;
			if ((count & FLOW_BYTES_MASK) != traffic_count.bytes)
				fail("bytes counted for a flow");
			/* What passes the meters of peerings has no direct path. */
			expected = program_memory.elephant_bytes != ELEPHANT_NEVER &&
				   (table->policy & FLOW_EVERY || traffic_count.bytes >= ELEPHANT_BYTES);
			if (!!(count & FLOW_REPORTED) != expected)
				fail("a flow is reported, or not, against the policy");
		}
	}
	if (counted > 1 || (counted != frames && !patched))
		fail("packets counted by flow are not those that were forwarded");
	if (posted + missed != reported || (kernel.ring_full ? posted : missed))
		fail("events posted or counted as lost");
	if (posted && (!event->vni || event->ipv6 > 1 || event->outer_ipv6 > 1 ||
		       event->time_ns != kernel.now_ns || event->reserved[0] || event->reserved[1]))
		fail("fields of an event");
	if (posted && !event->ipv6 && (event->source[0] || event->source[1] >> 32))
		fail("IPv4 source of an event");
}

/* The node in the tables with the underlay address that begins there in an IPv4 or an IPv6 packet; NULL: none. */
static const struct next_hop *node_with(const uint8_t *packet, uint32_t at4, uint32_t at6)
{
	for (uint32_t cell = CELL_FIRST_FREE; cell < cells_used; cell++) {
		const struct next_hop *hop = (void *)&pristine[cell];

		if (hop->kind != NEXT_HOP_VTEP)
			continue;
		if (packet[12] == 0x08
			    ? !(hop->flags & NEXT_HOP_IPV6) && !memcmp(packet + at4, hop->address, 4)
			    : hop->flags & NEXT_HOP_IPV6 && !memcmp(packet + at6, hop->address, 16))
			return hop;
	}
	return NULL;
}

/* The VXLAN header of a packet without IPv4 options. */
static const uint8_t *vxlan_of(const uint8_t *packet)
{
	return packet + (packet[12] == 0x08 ? 42 : 62);
}

static int is_foreign(const struct next_hop *node)
{
	return !node || node->flags & NEXT_HOP_FOREIGN;
}

/* Checks that the VXLAN header has the identity that was received, if it may go on, and no other flag. */
static void check_identity_sent(const uint8_t *packet, const uint8_t *out, int is_forwarded)
{
	const uint8_t *received = vxlan_of(packet), *sent = vxlan_of(out);
	const uint8_t plain[4] = { 8 }, grouped[4] = { 0x88, 0, received[2], received[3] };
	int keeps = is_forwarded && (received[2] || received[3]) && !memcmp(received + 4, sent + 4, 3) &&
		    !is_foreign(node_with(packet, 26, 22)) && !is_foreign(node_with(out, 30, 38));

	if (memcmp(sent, keeps ? grouped : plain, sizeof(plain)))
		fail("identity of a packet that is sent");
}

/* Checks that a tenant's packet, which was sent or answered as VXLAN, had a right to it. */
static void check_tenant(const uint8_t *packet)
{
	const uint8_t *vxlan = vxlan_of(packet);
	uint32_t vni = vxlan[4] << 16 | vxlan[5] << 8 | vxlan[6];

	const struct next_hop *node = node_with(packet, 26, 22);

	if (!node)
		fail("a packet of an unknown node was accepted");
	if (vxlan[7] && node->flags & NEXT_HOP_HOST)
		fail("a host's record of the ring was accepted");
	if (!find_index(vni, 0))
		fail("a packet of an unknown VNI was accepted");
}

/* Whether the program found that the packet goes to the Internet or to a public address. */
static int is_to_internet(void)
{
	return program_memory.to_internet == 1;
}

/* Whether another gateway has passed the packet on with VNI 0, if it is VXLAN. */
static int is_passed_on(const uint8_t *packet)
{
	const uint8_t *vxlan = vxlan_of(packet);

	return !(vxlan[4] | vxlan[5] | vxlan[6]);
}

/* Whether the program has sent the packet to the next gateway of the ring. */
static int is_in_ring(void)
{
	return nat_ring_count[NAT_RING_ENTERED] || nat_ring_count[NAT_RING_PASSED];
}

/* Checks a packet that is sent with a record: its frame is that which was received, without bytes behind the IP packet. */
static void check_record(const uint8_t *packet, const uint8_t *out)
{
	const uint8_t *received = vxlan_of(packet), *sent = vxlan_of(out);
	const struct next_hop *next = node_with(out, 30, 38);

	check_tenant(packet);
	if (!next || next->flags & NEXT_HOP_HOST)
		fail("a record for a node that is not a gateway");
	if (sent[0] != 0x88 || sent[1] || !(sent[2] | sent[3]) || memcmp(sent + 4, received + 4, 3) ||
	    !sent[7])
		fail("VXLAN header of a record");
	if (received[7] && (received[7] != sent[7] || memcmp(received + 2, sent + 2, 2)))
		fail("a record has changed on its way");
	if (memcmp(sent + VXLAN_BYTES, received + VXLAN_BYTES, program_memory.frame.ip_bytes + ETH_HLEN))
		fail("a frame has changed on its way");
}

/* Checks a tenant's packet that leaves by the Internet port, or is turned back: `after` is its frame. */
static void check_public(const uint8_t *packet, const uint8_t *after)
{
	const uint8_t *before = vxlan_of(packet) + VXLAN_BYTES;

	int is_nat = program_memory.nat & PACKET_NAT_SOURCE;

	check_tenant(packet);
	if ((!is_nat && !is_public(before, source_of(before), 1)) || !is_public(after, source_of(after), 0))
		fail("a packet to the Internet without a public address");
	check_translated(before, after);
}

/* Checks the outer headers of an IP packet that is sent. `packet` is the one that was received. */
static void check_sent(const uint8_t *packet, int patched, int is_forwarded)
{
	static uint8_t out[PACKET_MAX + LINEAR_MAX];
	uint32_t length = bpf_xdp_get_buff_len(&xdp.ctx), total;
	int is_udp = 0;

	if (length < 42 || length > sizeof(out))
		fail("length of a packet that is sent");
	bpf_xdp_load_bytes(&xdp.ctx, 0, out, length);
	if (is_to_internet() && is_forwarded) {
		int is_out = xdp.redirected == ((struct underlay_port *)&pristine[CELL_NODE + 1])[2].ifindex;

		if (!patched)
			check_public(packet, is_out ? out : vxlan_of(out) + VXLAN_BYTES);
		if (patched || is_out)
			return;
	}
	if (out[12] == 0x08 && out[13] == 0x00) {
		total = out[16] << 8 | out[17];
		if (out[14] != 0x45 || total + 14 > length || residue(out + 14, 20, 0))
			fail("IPv4 header of a packet that is sent");
		is_udp = out[23] == IPPROTO_UDP;
		if (is_udp && (uint32_t)(out[38] << 8 | out[39]) != total - 20)
			fail("UDP length of a packet that is sent");
	} else if (out[12] == 0x86 && out[13] == 0xdd) {
		total = out[18] << 8 | out[19];
		if (length < 54 || out[14] >> 4 != 6 || total + 54 > length)
			fail("IPv6 header of a packet that is sent");
		is_udp = out[20] == IPPROTO_UDP;
		if (is_udp && (out[58] << 8 | out[59]) != (int)total)
			fail("UDP length of a packet that is sent");
		if (is_udp && !(out[60] | out[61]))
			fail("UDP over IPv6 without a checksum");
	}
	/*
	 * Only tenants' packets are UDP: what the gateway itself sends on the underlay is ARP, ND and ICMP.
	 */
	if (is_udp && !patched && is_in_ring()) {
		check_record(packet, out);
	} else if (is_udp && !patched) {
		check_tenant(packet);
		check_identity_sent(packet, out, is_forwarded && !is_to_internet() && !is_passed_on(packet));
	}
}

/* Everything that the run of a packet may change. */
struct outcome {
	int verdict;
	uint32_t length, posted;
	uint64_t drops[DROP_REASONS_MAX], vni_count, lost, refused, share;
	struct traffic traffic;
	struct token_bucket bucket;
	struct cell flows[1 + FLOW_BUCKETS];
	struct cell tables[CELLS_MAX];
	uint8_t packet[PACKET_MAX + LINEAR_MAX];
	uint8_t record[sizeof(kernel.record)];
};

static void read_outcome(struct outcome *outcome, int verdict)
{
	outcome->verdict = verdict;
	outcome->posted = kernel.posted;
	memcpy(outcome->drops, drop_counts, sizeof(drop_counts));
	outcome->vni_count = vni_count;
	outcome->lost = lost;
	outcome->refused = refused;
	outcome->share = share;
	outcome->traffic = traffic_count;
	outcome->bucket = bucket;
	memcpy(outcome->flows, flow_table_cells, sizeof(flow_table_cells));
	memcpy(outcome->tables, tables, cells_used * sizeof(struct cell));
	memcpy(outcome->record, kernel.record, sizeof(kernel.record));
	/* What a dropped packet contains is of no use to anyone. */
	outcome->length = verdict == XDP_DROP ? 0 : bpf_xdp_get_buff_len(&xdp.ctx);
	if (outcome->length > sizeof(outcome->packet))
		fail("length of a packet");
	if (outcome->length)
		bpf_xdp_load_bytes(&xdp.ctx, 0, outcome->packet, outcome->length);
}

/* Sets everything back, but for the packet. */
static void write_outcome(const struct outcome *outcome)
{
	kernel.posted = outcome->posted;
	memcpy(drop_counts, outcome->drops, sizeof(drop_counts));
	vni_count = outcome->vni_count;
	lost = outcome->lost;
	refused = outcome->refused;
	share = outcome->share;
	traffic_count = outcome->traffic;
	bucket = outcome->bucket;
	memset(&queue, 0, sizeof(queue));
	memcpy(flow_table_cells, outcome->flows, sizeof(flow_table_cells));
	memcpy(tables, outcome->tables, cells_used * sizeof(struct cell));
	memcpy(kernel.record, outcome->record, sizeof(kernel.record));
}

static void compare(const struct outcome *one, const struct outcome *other)
{
	if (one->verdict != other->verdict)
		fail("the paths have different verdicts");
	if (one->length != other->length || memcmp(one->packet, other->packet, one->length))
		fail("the paths send different packets");
	if (memcmp(one->drops, other->drops, sizeof(one->drops)) || one->vni_count != other->vni_count ||
	    memcmp(&one->traffic, &other->traffic, sizeof(one->traffic)))
		fail("the paths count differently");
	if (memcmp(one->flows, other->flows, sizeof(one->flows)) || one->posted != other->posted ||
	    one->lost != other->lost || one->refused != other->refused || one->share != other->share ||
	    memcmp(one->record, other->record, sizeof(one->record)))
		fail("the paths account for flows differently");
	if (memcmp(one->tables, other->tables, cells_used * sizeof(struct cell)) ||
	    memcmp(&one->bucket, &other->bucket, sizeof(one->bucket)))
		fail("the paths change the tables differently");
}

static uint64_t drop_sum(void)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < DROP_REASONS_MAX; i++)
		sum += drop_counts[i];
	return sum;
}

/* The program's memory as a packet finds it: only what is kept from packet to packet is defined. */
static void begin_memory(void)
{
	memset(&program_memory, 0xa5, sizeof(program_memory));
	memset(&program_memory.sampler, 0, sizeof(program_memory.sampler));
	memset(&sum_memory, 0xa5, sizeof(sum_memory));
	begin_nat();
	begin_meters();
}

static void run(const struct setup *setup, const uint8_t *packet, uint32_t length)
{
	static struct outcome before, both, general;
	int verdict;
	uint32_t linear = length < LINEAR_MAX ? length : LINEAR_MAX, posted = kernel.posted;
	uint64_t dropped = drop_sum(), sent = traffic_count.packets, missed = lost + refused;

	if (setup->switches & SWITCH_SPLIT && length > 128)
		linear = length < 2 * LINEAR_MAX ? length / 2 : LINEAR_MAX;
	read_outcome(&before, XDP_DROP);
	receive(packet, length, linear);
	begin_memory();
	verdict = gateway(&xdp.ctx);
	switch (verdict) {
	case XDP_DROP:
		if (drop_sum() == dropped)
			fail("a drop that no counter counts");
		if (traffic_count.packets != sent)
			fail("a packet was dropped and counted as sent");
		break;
	case XDP_PASS:
		if (drop_sum() != dropped || traffic_count.packets != sent)
			fail("a packet for the kernel was counted");
		if (linear_bytes() != linear || memcmp((void *)(uintptr_t)xdp.ctx.data, packet, linear))
			fail("a packet for the kernel was changed");
		break;
	case XDP_TX:
	case XDP_REDIRECT:
		check_sent(packet, setup->patches > 0, traffic_count.packets != sent);
		break;
	default:
		fail("an unknown verdict");
	}
	check_flows(is_to_internet() || is_passed_on(packet) ? 0 : traffic_count.packets - sent,
		    kernel.posted - posted, lost + refused - missed, setup->patches > 0);
	read_outcome(&both, verdict);
	write_outcome(&before);
	receive(packet, length, linear);
	begin_memory();
	read_outcome(&general, general_path(&xdp.ctx));
	compare(&both, &general);
}

/* Changes the outer headers as the setup says. */
static void repair(const struct setup *setup, uint8_t *packet, uint32_t length)
{
	int ipv4 = packet[12] == 0x08 && packet[13] == 0x00, ipv6 = packet[12] == 0x86 && packet[13] == 0xdd;
	uint32_t ip_bytes = length - 14 - (ipv6 ? 40 : 0), udp_bytes = ip_bytes - (ipv4 ? 20 : 0);
	uint32_t length_at = ipv4 ? 16 : 18, udp_at = ipv4 ? 34 : 54;
	uint16_t sum;

	if ((!ipv4 && !ipv6) || length < udp_at + 8)
		return;
	packet[ipv4 ? 29 : 37] ^= setup->sender;
	if (setup->repair & REPAIR_LENGTHS) {
		packet[length_at] = ip_bytes >> 8;
		packet[length_at + 1] = ip_bytes;
		packet[udp_at + 4] = udp_bytes >> 8;
		packet[udp_at + 5] = udp_bytes;
	}
	if (ipv4 && setup->repair & REPAIR_CHECKSUM) {
		packet[24] = packet[25] = 0;
		sum = ~residue(packet + 14, 20, 0);
		packet[24] = sum >> 8;
		packet[25] = sum;
	}
}

static void set_world(const struct setup *setup)
{
	const struct underlay_port *ports = (void *)&pristine[CELL_NODE + 1];
	uint8_t fib = setup->switches & SWITCH_FIB;

	/* The image's next hops were resolved when it was taken, some time after the machine's start. */
	kernel.now_ns = setup->switches & SWITCH_EXPIRED ? 1ull << 62 : 1;
	xdp.ctx.ingress_ifindex = ports[setup->switches & SWITCH_PORT ? 1 : 0].ifindex;
	xdp.fib_ifindex = ports[setup->repair & FIB_INTERNET ? 2 : 0].ifindex;
	xdp.fib_answer = !fib ? 0 : fib == SWITCH_FIB ? -19 : BPF_FIB_LKUP_RET_NO_NEIGH;
	bucket.refilled_ns = ~0ull;
	bucket.tokens = !(setup->switches & SWITCH_BUDGET);
	begin_flows(setup->switches);
	traffic_count.bytes = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	static uint8_t packet[PACKET_MAX];
	const uint8_t *patches = input + sizeof(struct setup);
	struct setup setup;
	size_t before;

	if (size < sizeof(setup) + 14 || size > PACKET_MAX)
		return 0;
	memcpy(&setup, input, sizeof(setup));
	setup.patches %= PATCHES_MAX + 1;
	before = sizeof(setup) + setup.patches * PATCH_BYTES;
	if (size < before + 14)
		return 0;
	memcpy(packet, input + before, size - before);
	repair(&setup, packet, size - before);
	set_world(&setup);
	patch(patches, setup.patches);
	run(&setup, packet, size - before);
	memcpy(tables, pristine, cells_used * sizeof(struct cell));
	return 0;
}
