/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Fuzz target: the gateway's program of Internet ports, compiled natively under AddressSanitizer and
 * UndefinedBehaviorSanitizer, with a copy of the tables that the fixtures use.
 *
 * Input: a struct setup, its patches of the tables, and the packet. The tables are restored after each run. Besides memory
 * errors it finds verdicts that break the contract of internet_in.h: drops that no counter counts, packets for the
 * kernel that were changed, packets that are delivered although they are not for a public address or come from
 * an address that no host of the Internet has, packets that are delivered with another checksum than they came with, and
 * answers to others than the sender.
 */
#include "xdp.h"

#include "../bpf/gateway.bpf.c"

#include "meter_table.h"
#include "nat_tables.h"
#include "translated.h"

#define SWITCH_SPLIT 0x01   /* a part of the packet is in fragments */
#define SWITCH_BUDGET 0x02  /* the budget of ICMP errors is used up */
#define SWITCH_FIB 0x0c	    /* 0: the kernel's FIB has a route; otherwise one of its errors */
#define SWITCH_EXPIRED 0x10 /* cached next hops have expired */

/* Corrections of the headers, without which most changed packets are dropped early. */
#define REPAIR_LENGTHS 0x01  /* length of IP */
#define REPAIR_CHECKSUM 0x02 /* checksum of the IPv4 header */
#define REPAIR_PORT \
	0x04 /* the destination port, or the source port that an error quotes, is that of a session of NAT */

/* The first bytes of an input. */
struct setup {
	uint8_t switches; /* SWITCH_* */
	uint8_t patches;  /* number of patches to the tables that follow */
	uint8_t repair;	  /* REPAIR_* */
	uint8_t receiver; /* changes the last byte of the destination address */
};

/* Memory of the program. Its content is not defined when a packet arrives. */
static struct packet program_memory;
static struct sum_chunk sum_memory;

static void *own_map(const void *map, uint32_t index)
{
	if (map == &meters)
		return find_meter(index);
	if (map == &meter_counts)
		return find_meter_count(index);
	if (map == &packets)
		return index ? NULL : &program_memory;
	if (map == &internet_icmp_budget)
		return index < VNI_COUNTERS_MAX ? &bucket : NULL;
	if (map == &sum_chunks)
		return index ? NULL : &sum_memory;
	return find_nat(map, index);
}

static void prepare(void)
{
	prepare_nat();
}

static int is_ipv6(const uint8_t *frame)
{
	return frame[12] == 0x86 && frame[13] == 0xdd;
}

static const uint8_t *destination_of(const uint8_t *frame)
{
	return frame + (is_ipv4(frame) ? 30 : 38);
}

/* Whether no host of the Internet has the source address (RFC 1122, RFC 4291). */
static int is_martian(const uint8_t *frame)
{
	const uint8_t *source = source_of(frame);
	static const uint8_t zero[10];

	if (is_ipv4(frame))
		return !source[0] || source[0] == 127 || source[0] >= 224 ||
		       (source[0] == 169 && source[1] == 254);
	return source[0] == 0xff || (source[0] == 0xfe && (source[1] & 0xc0) == 0x80) ||
	       !memcmp(source, zero, sizeof(zero));
}

/* Checks a packet that is delivered: its tunnel, and the frame in it. */
static void check_delivered(const uint8_t *packet, const uint8_t *out, uint32_t length)
{
	uint32_t tunnel = is_ipv4(out) ? 50 : 70, total;

	if (!is_ipv4(out) && !is_ipv6(out))
		fail("a packet is delivered without a tunnel");
	total = is_ipv4(out) ? (out[16] << 8 | out[17]) + 14 : (out[18] << 8 | out[19]) + 54;
	if (total != length || length < tunnel + 34)
		fail("length of a tunnel");
	if (is_ipv4(out) && residue(out + 14, 20, 0))
		fail("IPv4 header checksum of a tunnel");
	if (is_ipv6(out) && transport_residue(out))
		fail("UDP checksum of a tunnel");
	if (!is_public(packet, destination_of(packet), 0))
		fail("a packet is delivered that is for no public address");
	if (is_martian(packet) || is_public(packet, source_of(packet), 0))
		fail("a packet of a martian source is delivered");
	if (!(program_memory.nat & PACKET_NAT_DESTINATION) &&
	    !is_public(out + tunnel, destination_of(out + tunnel), 1))
		fail("a packet is delivered to an address that is behind no public one");
	check_translated(packet, out + tunnel);
}

/* Checks an answer: to the sender, or to all nodes. */
static void check_answer(const uint8_t *packet, const uint8_t *out, uint32_t length)
{
	static const uint8_t all_nodes[6] = { 0x33, 0x33, 0, 0, 0, 1 };

	if (memcmp(packet + 6, out, 6) && memcmp(all_nodes, out, 6))
		fail("an answer to another node than the sender");
	if (is_ipv4(out) && (residue(out + 14, 20, 0) || out[23] != IPPROTO_ICMP || transport_residue(out) ||
			     length != (uint32_t)(out[16] << 8 | out[17]) + 14))
		fail("an ICMP error");
	if (is_ipv6(out) && (out[20] != IPPROTO_ICMPV6 || transport_residue(out) ||
			     length != (uint32_t)(out[18] << 8 | out[19]) + 54))
		fail("an ICMPv6 error or an advertisement");
}

static void check_sent(const uint8_t *packet, int is_delivered)
{
	static uint8_t out[PACKET_MAX + LINEAR_MAX];
	uint32_t length = bpf_xdp_get_buff_len(&xdp.ctx);

	if (length < 42 || length > sizeof(out))
		fail("length of a packet that is sent");
	bpf_xdp_load_bytes(&xdp.ctx, 0, out, length);
	if (is_delivered)
		check_delivered(packet, out, length);
	else
		check_answer(packet, out, length);
}

static uint64_t drop_sum(void)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < DROP_REASONS_MAX; i++)
		sum += drop_counts[i];
	return sum;
}

static void run(const struct setup *setup, const uint8_t *packet, uint32_t length)
{
	uint32_t linear = length < LINEAR_MAX ? length : LINEAR_MAX;
	uint64_t dropped = drop_sum(), sent = traffic_count.packets;

	if (setup->switches & SWITCH_SPLIT && length > 128)
		linear = length < 2 * LINEAR_MAX ? length / 2 : LINEAR_MAX;
	receive(packet, length, linear);
	memset(&program_memory, 0xa5, sizeof(program_memory));
	memset(&sum_memory, 0xa5, sizeof(sum_memory));
	begin_nat();
	begin_meters();
	switch (internet(&xdp.ctx)) {
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
		if (!setup->patches)
			check_sent(packet, traffic_count.packets != sent);
		break;
	default:
		fail("an unknown verdict");
	}
}

/* Writes the port of a session, at the transport header of an IPv4 packet. */
static void repair_port(uint8_t *packet, uint32_t at, uint32_t length)
{
	uint16_t port = packet[23] == IPPROTO_TCP ? nat_outside_tcp : nat_outside_udp;

	/* The source port of the packet that an error quotes. */
	if (packet[23] == IPPROTO_ICMP)
		at += ICMP_BYTES + IPV4_BYTES - 2;
	if (at + 4 > length)
		return;
	packet[at + 2] = port >> 8;
	packet[at + 3] = port;
}

/* Changes the headers as the setup says. */
static void repair(const struct setup *setup, uint8_t *packet, uint32_t length)
{
	uint32_t header = (packet[14] & 15) * 4, bytes = length - 14 - (is_ipv6(packet) ? 40 : 0);
	uint16_t sum;

	if ((!is_ipv4(packet) || length < 34) && (!is_ipv6(packet) || length < 54))
		return;
	packet[is_ipv4(packet) ? 33 : 53] ^= setup->receiver;
	if (is_ipv4(packet) && setup->repair & REPAIR_PORT)
		repair_port(packet, 14 + header, length);
	if (setup->repair & REPAIR_LENGTHS) {
		packet[is_ipv4(packet) ? 16 : 18] = bytes >> 8;
		packet[is_ipv4(packet) ? 17 : 19] = bytes;
	}
	if (is_ipv4(packet) && setup->repair & REPAIR_CHECKSUM && header >= 20 && 14 + header <= length) {
		packet[24] = packet[25] = 0;
		sum = ~residue(packet + 14, header, 0);
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
	xdp.ctx.ingress_ifindex = ports[2].ifindex;
	xdp.fib_ifindex = ports[0].ifindex;
	xdp.fib_answer = !fib ? 0 : fib == SWITCH_FIB ? -19 : BPF_FIB_LKUP_RET_NOT_FWDED;
	bucket.refilled_ns = ~0ull;
	bucket.tokens = !(setup->switches & SWITCH_BUDGET);
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
