/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Fuzz target: the whole gateway program, compiled natively under
 * AddressSanitizer and UndefinedBehaviorSanitizer, over a copy of the tables
 * that the fixtures use.
 *
 * Input: one byte of switches, one byte that counts patches to the tables, four
 * bytes for each patch, and the packet. The tables are whole again after each
 * run. Besides memory errors it finds verdicts that break the contract of
 * gateway.bpf.c: drops that nothing counts, packets for the kernel that were
 * changed, packets sent with wrong lengths or checksums.
 */
#include "xdp.h"

#include "../bpf/gateway.bpf.c"

#define SWITCH_PORT 0x01    /* in by the second port */
#define SWITCH_SPLIT 0x02   /* not all of it is linear */
#define SWITCH_BUDGET 0x04  /* no budget for ICMP errors */
#define SWITCH_FIB 0x18	    /* 0: found, else the kernel finds no way */
#define SWITCH_EXPIRED 0x20 /* cached next hops have run out */
#define SWITCH_FULL 0x40    /* nobody drains the ring of events */
#define SWITCH_EVERY 0x80   /* every flow is told of */

#define FLOW_BUCKETS 3
#define ELEPHANT_BYTES 300

/* Counts of flows, which each run finds empty. */
static struct cell flow_table_cells[1 + FLOW_BUCKETS];
static struct flow_queue queue;
static uint64_t lost;

static void *own_map(const void *map, uint32_t index)
{
	if (map == &flow_cells)
		return index <= FLOW_BUCKETS ? &flow_table_cells[index] : NULL;
	if (map == &flow_queues)
		return index ? NULL : &queue;
	return map == &events_lost && !index ? &lost : NULL;
}

static void prepare(void)
{
}

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
 * One flow with one packet if a tenant's frame was sent on, else none; and what
 * was told of it. Patched tables may say anything of thresholds and counters.
 */
static void check_flows(uint64_t frames, uint32_t posted, uint64_t missed, int patched)
{
	const struct flow_table *table = (void *)flow_table_cells;
	const struct flow_event *event = (void *)kernel.record;
	uint64_t counted = 0, reported = 0;

	for (uint32_t i = 1; i <= FLOW_BUCKETS; i++) {
		const struct flow_bucket *bucket = (void *)&flow_table_cells[i];

		for (int way = 0; way < FLOW_WAYS; way++) {
			uint64_t count = bucket->entry[way].count;

			counted += count >> FLOW_PACKETS_SHIFT & FLOW_PACKETS_MASK;
			reported += !!(count & FLOW_REPORTED);
			if (!count || patched)
				continue;
			if ((count & FLOW_BYTES_MASK) != traffic_count.bytes)
				fail("bytes of a flow");
			if (!(count & FLOW_REPORTED) == (table->policy & FLOW_EVERY ||
							 traffic_count.bytes >= ELEPHANT_BYTES))
				fail("what an elephant is");
		}
	}
	if (counted > 1 || (counted != frames && !patched))
		fail("packets counted by flow are not those that were sent on");
	if (posted + missed != reported || (kernel.ring_full ? posted : missed))
		fail("events that were posted or counted as lost");
	if (posted && (!event->vni || event->ipv6 > 1 || event->outer_ipv6 > 1 ||
		       event->time_ns != kernel.now_ns || event->reserved[0] || event->reserved[1]))
		fail("what an event says");
	if (posted && !event->ipv6 && (event->source[0] || event->source[1] >> 32))
		fail("IPv4 source of an event");
}

/* What is sent must have outer headers that are right, unless it is no IP. */
static void check_sent(void)
{
	static uint8_t out[PACKET_MAX + LINEAR_MAX];
	uint32_t length = bpf_xdp_get_buff_len(&xdp.ctx), total;

	if (length < 42 || length > sizeof(out))
		fail("length of what is sent");
	bpf_xdp_load_bytes(&xdp.ctx, 0, out, length);
	if (out[12] == 0x08 && out[13] == 0x00) {
		total = out[16] << 8 | out[17];
		if (out[14] != 0x45 || total + 14 > length || residue(out + 14, 20, 0))
			fail("IPv4 header of what is sent");
		if (out[23] == IPPROTO_UDP && (uint32_t)(out[38] << 8 | out[39]) != total - 20)
			fail("UDP length of what is sent");
	} else if (out[12] == 0x86 && out[13] == 0xdd) {
		total = out[18] << 8 | out[19];
		if (length < 54 || out[14] >> 4 != 6 || total + 54 > length)
			fail("IPv6 header of what is sent");
		if (out[20] == IPPROTO_UDP && (out[58] << 8 | out[59]) != (int)total)
			fail("UDP length of what is sent");
		if (out[20] == IPPROTO_UDP && !(out[60] | out[61]))
			fail("no UDP checksum over IPv6");
	}
}

static uint64_t drop_sum(void)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < DROP_REASONS_MAX; i++)
		sum += drop_counts[i];
	return sum;
}

static void run(const uint8_t *packet, uint32_t length, uint8_t switches, int patched)
{
	uint32_t linear = length < LINEAR_MAX ? length : LINEAR_MAX, posted = kernel.posted;
	uint64_t dropped = drop_sum(), sent = traffic_count.packets, missed = lost;

	if (switches & SWITCH_SPLIT && length > 128)
		linear = length < 2 * LINEAR_MAX ? length / 2 : LINEAR_MAX;
	receive(packet, length, linear);
	switch (gateway(&xdp.ctx)) {
	case XDP_DROP:
		if (drop_sum() == dropped)
			fail("a drop that nothing counts");
		if (traffic_count.packets != sent)
			fail("dropped, and counted as sent");
		break;
	case XDP_PASS:
		if (drop_sum() != dropped || traffic_count.packets != sent)
			fail("for the kernel, and counted");
		if (linear_bytes() != linear ||
		    memcmp((void *)(uintptr_t)xdp.ctx.data, packet, linear))
			fail("for the kernel, and changed");
		break;
	case XDP_TX:
	case XDP_REDIRECT:
		check_sent();
		break;
	default:
		fail("verdict");
	}
	check_flows(traffic_count.packets - sent, kernel.posted - posted, lost - missed, patched);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	const struct underlay_port *ports = (void *)&pristine[CELL_NODE + 1];
	uint32_t patches;

	if (size < 2 + 14)
		return 0;
	patches = input[1] % (PATCHES_MAX + 1);
	if (size < 2 + patches * PATCH_BYTES + 14 || size > PACKET_MAX)
		return 0;
	/* The image's next hops were resolved when it was taken, some time after the machine's start. */
	kernel.now_ns = input[0] & SWITCH_EXPIRED ? 1ull << 62 : 1;
	xdp.ctx.ingress_ifindex = ports[input[0] & SWITCH_PORT ? 1 : 0].ifindex;
	xdp.fib_ifindex = ports[0].ifindex;
	xdp.fib_answer = (input[0] & SWITCH_FIB) == 0	    ? 0
			    : (input[0] & SWITCH_FIB) == SWITCH_FIB ? -19
								    : BPF_FIB_LKUP_RET_NO_NEIGH;
	bucket.refilled_ns = ~0ull;
	bucket.tokens = !(input[0] & SWITCH_BUDGET);
	begin_flows(input[0]);
	traffic_count.bytes = 0;
	patch(input + 2, patches);
	run(input + 2 + patches * PATCH_BYTES, size - 2 - patches * PATCH_BYTES, input[0], patches > 0);
	memcpy(tables, pristine, cells_used * sizeof(struct cell));
	return 0;
}
