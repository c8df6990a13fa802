/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The session table: connections that packets create and look up themselves,
 * found from either direction. Layout and the argument why it is safe; sessions.h
 * is the C interface; crates/tables binds this at build time, and sweeps.
 *
 * Two tables, one per family, each an array of buckets: a cell of eight words,
 * and seven records. Word 0 has a hint for each record, a byte, and word i + 1 is
 * the tag word of record i. There is no allocator. A key has two candidate
 * buckets from a seeded hash; a session is put into the emptier one (the first
 * on a tie), into the first empty slot from one that its tag names, and never
 * moves.
 *
 * A hint is the low byte of the tag of the session that was put into the slot
 * last: who searches compares all hints of a bucket in a few instructions, and
 * reads the tag words of those slots alone that can be the key's. It is written
 * by the slot's claimer before it publishes, so that whoever finds a record live
 * finds its hint too, and it says nothing of slots that are not live.
 *
 * Tag word
 *
 *   bits  0..1   state (SESSION_EMPTY ... SESSION_DYING)
 *   bits  2..15  generation: how often the slot was emptied
 *   bits 16..31  tag: hash bits that are independent of those that chose the buckets
 *   bits 32..63  expires_at: CLOCK_MONOTONIC in ticks of 1/8 s, compared by the
 *                sign of the difference, so that wrapping (17 years) does no harm
 *
 * A slot goes round: empty -> claimed -> live -> dying -> empty. Every step is
 * one compare-and-swap of the word. CAS here is a full barrier.
 *
 *  - empty -> claimed, by a packet. The claimer alone fills the record, then
 *    swaps claimed -> live. Who sees "live" sees a whole record.
 *  - live -> live with another expiry, by packets (session_touch).
 *  - live -> dying: by the sweeper or a creator, for a record past its time, from
 *    the exact word that they saw, so that it fails if the session was refreshed
 *    in between; and by session_end, the agent's removal, and for duplicates.
 *  - dying -> empty with the next generation: by the sweeper only, one RCU grace
 *    period after it saw "dying". Programs run within an RCU read side, so a
 *    record that a program found keeps its meaning until the program ends: its
 *    key is never overwritten under a reader, and what is written to counters
 *    and state reaches the session it was meant for, or one that has died.
 *
 * Duplicates. Two packets of one key, from whichever directions, may both find
 * nothing and both publish. Each looks at both buckets again after its
 * publishing swap; the swaps have one order, so the later publisher sees both
 * records (unless one has died). Of two live records with one key the later in
 * the order (first bucket, second bucket; slot) dies; that is idempotent and is
 * done by whoever sees both. Readers search in the same order, so while both
 * live all readers that see both take the same one. A reader that passed the
 * first record's slot before it was published, and comes to the second when it
 * is dying, searches again: the first was published before.
 *
 * A live record past its time is not found, whether or not it was swept; a
 * creator of the same key makes it die first.
 *
 * READ_ONCE loads are taken in program order: volatile for the compiler, x86 TSO
 * for the processor, as in tables.h.
 */
#ifndef SLUICE_SESSION_LAYOUT_H
#define SLUICE_SESSION_LAYOUT_H

#include <linux/types.h>

#define SESSIONS_MAGIC 0x3130534553554c53ull /* "SLUSES01", little endian */
#define SESSIONS_LAYOUT_VERSION 2

#define SESSION_SLOTS 7

#define SESSION_EMPTY 0ull
#define SESSION_CLAIMED 1ull
#define SESSION_LIVE 2ull
#define SESSION_DYING 3ull
#define SESSION_STATE_MASK 3ull
#define SESSION_GENERATION_SHIFT 2
#define SESSION_GENERATION_MASK 0x3fffull
#define SESSION_TAG_SHIFT 16
#define SESSION_TAG_MASK 0xffffull
#define SESSION_EXPIRES_SHIFT 32

#define SESSION_TICKS_PER_SECOND 8
#define SESSION_TICK_NS 125000000ull
/* Refreshing by less than this is not worth a write. */
#define SESSION_REFRESH_TICKS 8

/*
 * Keys are canonical: endpoint 0 is the lower (address, port), whoever sent.
 * All numbers in host order. ICMP and ICMPv6 echo: the identifier stands for
 * both ports; other ICMP messages have no session of their own (errors belong
 * to the flow that they quote). Protocols without ports: 0.
 */
struct session_key4 {
	__u64 who;	 /* VNI in bits 0..23, protocol 24..31, port of endpoint 0 32..47, of endpoint 1 48..63 */
	__u64 addresses; /* endpoint 0 in bits 0..31, endpoint 1 in bits 32..63 */
};

struct session_key6 {
	__u64 who;	     /* as above */
	__u64 address[2][2]; /* of endpoint 0 and 1: high half, low half */
};
#define SESSION_KEY4_WORDS 2
#define SESSION_KEY6_WORDS 5
#define SESSION_PROTOCOL_SHIFT 24
#define SESSION_PORT0_SHIFT 32
#define SESSION_PORT1_SHIFT 48

/* session_data.state */
#define SESSION_ORIGINATOR 0x1u /* the endpoint (0 or 1) that sent the first packet; never changes */
#define SESSION_REPLIED 0x2u	/* the other one has sent */
#define SESSION_CONFIRMED 0x4u	/* and the originator again, TCP: with ACK */
#define SESSION_FIN 0x10u	/* TCP: FIN from the originator; shifted by one: from the other */
#define SESSION_RST 0x40u	/* TCP: RST from either */

#define SESSION_ORIGINAL 0 /* directions: from the originator */
#define SESSION_REPLY 1	   /* and to it */

/* What both families' records hold besides the key. */
struct session_data {
	__u32 created_at; /* ticks */
	__u32 state;	  /* bits as above, set by atomic OR */
	__u64 packets[2]; /* by direction, atomic additions */
	__u64 bytes[2];
	/*
	 * The user's, fixed at creation; such as a translated address or the number
	 * of a backend. Not an index of a cell of the tables: a session outlives those.
	 */
	__u32 action[2];
};

struct session4 {
	struct session_key4 key;
	struct session_data data;
};

struct session6 {
	struct session_key6 key;
	struct session_data data;
	__u64 reserved;
};

struct session_bucket4 {
	__u64 hints; /* of slot i in bits 8 i ... 8 i + 7 */
	__u64 tag[SESSION_SLOTS];
	struct session4 record[SESSION_SLOTS];
};

struct session_bucket6 {
	__u64 hints; /* of slot i in bits 8 i ... 8 i + 7 */
	__u64 tag[SESSION_SLOTS];
	struct session6 record[SESSION_SLOTS];
	__u64 reserved[4]; /* whole cells, so that hints and tag words lie in one */
};

/*
 * Idle time in ticks after the last packet, by what is known of the session:
 * RFC 5382 REQ-5 for TCP (established, and transitory: opening or closing),
 * RFC 4787 REQ-5 for UDP, RFC 5508 REQ-2 for ICMP. A TCP session is closing
 * after RST, or FIN from both sides.
 */
struct session_timeouts {
	__u32 tcp_new;
	__u32 tcp_established;
	__u32 tcp_closing;
	__u32 udp_one_way;
	__u32 udp_two_way;
	__u32 icmp;
	__u32 other;
	__u32 reserved;
};

/* One element of an array map of its own, four cells. `magic` is stored last. */
struct session_config {
	__u64 magic;
	__u32 layout_version;
	__u32 generation; /* agents that have adopted the tables, from 1 */
	__u64 reserved0[6];
	/* Fixed while the tables live. */
	__u64 hash_key[SESSION_KEY6_WORDS]; /* secret */
	__u64 seed;			    /* secret */
	__u32 buckets4;			    /* 2 or more each */
	__u32 buckets6;
	__u64 reserved1;
	/* May change at any time. */
	struct session_timeouts timeouts;
	__u64 reserved2[4];
	/* Counted by packets. */
	__u64 full[2];	  /* not created because both buckets were full: IPv4, IPv6 */
	__u64 busy;	  /* gave up after SESSION_ATTEMPTS lost swaps */
	__u64 duplicates; /* records that died because there was another of the key */
	__u64 reserved3[4];
};

enum session_answer {
	SESSION_MISS,	 /* no session */
	SESSION_HIT,	 /* it is there */
	SESSION_CREATED, /* it is there now, by this call */
	SESSION_FULL,	 /* both buckets are full; counted */
	SESSION_BUSY,	 /* others were faster too often; counted; try with the next packet */
	SESSION_GONE,	 /* it died meanwhile: go on as after SESSION_MISS */
};

#endif
