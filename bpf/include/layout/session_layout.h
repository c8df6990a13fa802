/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The session table: connections that packets themselves create and look up, from either direction. This is
 * its layout, and the argument why it is safe.
 *
 * Contract: sessions.h is the C interface. crates/tables binds this at build time, and removes expired
 * sessions. A change that an old agent cannot read changes SESSIONS_LAYOUT_VERSION.
 *
 * There are two tables, one for each family. Each is an array of buckets. A bucket has eight words and seven
 * records. Word 0 has one byte for each record, its hint, and word i + 1 is the tag word of
 * record i. There is no allocator. A key has two candidate buckets by a seeded hash. A session is stored in
 * the emptier one (the first if they are equal), in the next empty slot from the one that its tag prefers,
 * and never moves.
 *
 * A hint is the low byte of the tag of the session that was last stored in the slot. A search compares all
 * hints of a bucket in a few instructions, and reads only the tag words of slots that may have the key. The
 * packet that claims a slot writes the hint before it publishes the record. So the hint of a live record is
 * always correct, and that of any other slot has no meaning.
 *
 * Tag word
 *
 *   bits  0..1   state (SESSION_EMPTY ... SESSION_DYING)
 *   bits  2..15  generation: how often the slot was emptied
 *   bits 16..31  tag: hash bits that are independent of those that chose the buckets
 *   bits 32..63  expires_at: CLOCK_MONOTONIC in ticks of 1/8 s, compared by the
 *                sign of the difference, so that wrapping (17 years) is harmless
 *
 * The states of a slot are a cycle: empty -> claimed -> live -> dying -> empty. Each step is one
 * compare-and-swap of the tag word. CAS is a full barrier here.
 *
 *  - empty -> claimed, by a packet. Only that packet fills the record, and then swaps claimed -> live. A
 *    reader that sees "live" sees a complete record.
 *  - live -> live with another expiry, by packets (session_touch()).
 *  - live -> dying, by the sweeper or a creator, for an expired record: from the exact word that they read,
 *    so that the swap fails if the session was refreshed in between. Also by session_end(), by the agent's
 *    removal, and for duplicates.
 *  - claimed -> empty with the next generation, by the sweeper, if the word is the same one grace period after it was read: the
 *    packet that claimed the slot was killed.
 *  - dying -> empty with the next generation, only by the sweeper, one RCU grace period after it read
 *    "dying". Programs run within an RCU read side. So a record that a program found keeps its meaning
 *    until the program ends: its key is not overwritten, and writes to counters and state reach that
 *    session, alive or dead.
 *
 * Duplicates. Two packets of one key, from any directions, may both find nothing and both publish a record.
 * Each searches both buckets again after its publishing swap. The swaps have one order, so the later
 * publisher sees both records, unless one has died. Of two live records with one key, the later one in the
 * order of search (first bucket, second bucket; slot) dies. Any packet that has published a record and sees
 * both makes it die, and doing so twice has no effect. Readers search in the same order, so while both
 * records are live, all readers that see both use the same one. A reader may pass the first record's slot
 * before it is published, and reach the second one when it is dying. Then it searches again, because the
 * first one was published before the second died.
 *
 * An expired live record is not found, whether or not it was swept. A creator of the same key makes it die
 * first.
 *
 * READ_ONCE loads are executed in program order: volatile for the compiler, x86 TSO for the processor, as
 * in exact_match.h.
 */
#ifndef SLUICE_SESSION_LAYOUT_H
#define SLUICE_SESSION_LAYOUT_H

#include <linux/types.h>

#define SESSIONS_MAGIC 0x3130534553554c53ull /* "SLUSES01", little endian */
#define SESSIONS_LAYOUT_VERSION 3

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
/* The expiry is not written if it would move by less than this. */
#define SESSION_REFRESH_TICKS 8

/*
 * Both directions have the same key: endpoint 0 is the lower pair of address and port. All numbers are in
 * host order. ICMP and ICMPv6: the port of the endpoint that asks is the identifier, and that of the endpoint that
 * answers is the type of the query, so that two endpoints can ask each other with the same identifier. Messages other than
 * queries and answers have no session (errors belong to the flow that they quote). In protocols without ports, both are 0.
 *
 * The scope separates flows that may have the same addresses: on a host it is the number of the port (struct port in
 * cells.h) whose session it is, on a gateway the VNI.
 */
struct session_key4 {
	/* Scope in bits 0..23, protocol 24..31, port of endpoint 0 32..47, of endpoint 1 48..63. */
	__u64 who;
	__u64 addresses; /* endpoint 0 in bits 0..31, endpoint 1 in bits 32..63 */
};

struct session_key6 {
	__u64 who;	     /* as in struct session_key4 */
	__u64 address[2][2]; /* of endpoint 0 and 1: high half, low half */
};
#define SESSION_KEY4_WORDS 2
#define SESSION_KEY6_WORDS 5
#define SESSION_PROTOCOL_SHIFT 24
#define SESSION_PORT0_SHIFT 32
#define SESSION_PORT1_SHIFT 48

/* session_data.state */
#define SESSION_ORIGINATOR 0x1u /* the endpoint that sent the first packet, 0 or 1; never changes */
#define SESSION_REPLIED 0x2u	/* the other endpoint has sent */
#define SESSION_CONFIRMED 0x4u	/* then the originator has sent again; TCP: with ACK */
#define SESSION_FIN 0x10u /* TCP: FIN from the originator; shifted left by one: from the other endpoint */
#define SESSION_RST \
	0x40u /* TCP: RST from either endpoint; SESSION_RST_IN_DOUBT: and no other segment since */
/*
 * On a host, set by the agent: the policy of the port permits the session no longer. Its packets are dropped and refresh
 * nothing. It stays for SESSION_REVOKED_TICKS, so that an answer that is under way begins no session in the other direction.
 */
#define SESSION_REVOKED 0x80u
#define SESSION_REVOKED_TICKS 16
/*
 * On a host, set by the agent: the VM has migrated here, and the TCP connection is to end at both ends. Its segments are answered
 * by RST (reset.h) and refresh nothing. Such a session lives for SESSION_RESET_TICKS, or until a SYN begins another one. With
 * SESSION_RST, the VM has got its RST.
 */
#define SESSION_RESET 0x100u
#define SESSION_RESET_TICKS 480
/*
 * Bits 16..31: on a host, the identity of the remote by which the session was permitted. A packet of the originator with
 * another identity replaces it, if the policy permits that as well.
 */
#define SESSION_IDENTITY_SHIFT 16

#define SESSION_ORIGINAL 0 /* direction: from the originator */
#define SESSION_REPLY 1	   /* direction: to the originator */

/* The part of a record that is the same in both families. */
struct session_data {
	__u32 created_at; /* ticks */
	__u32 state;	  /* SESSION_ORIGINATOR and so on; set by atomic OR, SESSION_RST cleared by AND */
	__u64 packets[2]; /* by direction; atomic additions */
	__u64 bytes[2];
	/*
	 * Set by the creator. On a host: the generation of the policy that permitted the session, and the rule with the
	 * bits below. When another policy permits the session, the agent replaces both by one swap. Not an index of a
	 * cell of the tables: the session may exist longer than the cell's content.
	 */
	__u32 action[2];
};

/* On a host, action[1]. How the session began, for judging it again: a session's key has no direction. */
#define SESSION_RULE_MASK 0xffffffu /* the rule that permitted it */
#define SESSION_EGRESS 0x80000000u  /* by the VM, not by the other end */
/* Number of the member of a service that has the flow, in bits 24..30; 0: none. Packets store it, as a byte (services.h). */
#define SESSION_MEMBER_SHIFT 24
#define SESSION_MEMBER_MASK 0x7fu

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
	__u64 reserved[4]; /* makes whole cells, so that hints and tag words are in one cache line */
};

/*
 * Idle timeouts in ticks, by protocol and state: RFC 5382 REQ-5 for TCP (established, and transitory:
 * opening or closing), RFC 4787 REQ-5 for UDP, RFC 5508 REQ-2 for ICMP. A TCP session is closing after RST,
 * or after FIN from both sides.
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

/*
 * session_config.flags: a TCP session is open again when a segment without RST follows an RST, which may have been forged or
 * not accepted (RFC 7857 section 2.2). Such a segment may be the SYN of a new connection, which has the same session then.
 */
#define SESSION_RST_IN_DOUBT 0x1u

/* The only element of the array map `session_config`. `magic` is stored last. */
struct session_config {
	__u64 magic;
	__u32 layout_version;
	__u32 generation; /* number of agents that have adopted the tables, from 1 */
	/*
	 * The slot that the agent empties now, and what it will store in the share of the session's scope, so that a
	 * successor counts each session once. Bucket in bits 0..31, slot 32..34, 35: IPv6, generation 40..53, 63: set.
	 * Then `ended` in bits 0..31, scope 32..47, its index 48.
	 */
	__u64 emptying[2];
	__u64 reserved0[4];
	/* Constant as long as the tables exist. */
	__u64 hash_key[SESSION_KEY6_WORDS]; /* secret */
	__u64 seed;			    /* secret */
	__u32 buckets4;			    /* at least 2 */
	__u32 buckets6;
	__u64 reserved1;
	/* May change at any time. */
	struct session_timeouts timeouts;
	__u64 reserved2[4];
	/* Counted by packets. */
	__u64 full[2];	  /* not created because both buckets, or the shared room, were full: IPv4, IPv6 */
	__u64 busy;	  /* operations that gave up after SESSION_ATTEMPTS failed swaps */
	__u64 duplicates; /* records that died because another one had the same key */
	/*
	 * Sessions beyond what is assured to their scopes: they take the room that no scope has for itself. The agent corrects
	 * `shared_ended` a few times a second, so the difference is too high by those that have ended since.
	 */
	__u32 shared_begun; /* atomic additions by packets */
	__u32 shared_ended; /* written only by the agent */
	__u32 shared_limit; /* written only by the agent */
	__u32 flags;	    /* SESSION_RST_IN_DOUBT; constant */
	__u64 reserved4[2];
};

/*
 * Sessions of one scope, on a host: element `scope` of the array map `session_shares`. Packets count each record that
 * they publish, duplicates included, and the agent each record whose slot it empties. So the difference, which may wrap, is
 * the number of records; it is exact when no program runs between the two. Index 0 is of the sessions that the other end
 * began, 1 of those that the VM began.
 */
struct session_share {
	__u32 begun[2];	  /* atomic additions by packets */
	__u32 ended[2];	  /* written only by the agent */
	__u32 limit;	  /* new sessions are refused from this number on; 0: the scope is not in use */
	__u32 limit_each; /* the same for the sessions of each index: neither takes all */
	__u32 assured;	  /* up to this number, the scope has room whatever others have */
	__u32 reserved;
};
#define SESSION_SCOPES 65536

enum session_answer {
	SESSION_MISS,	 /* no session */
	SESSION_HIT,	 /* the session exists */
	SESSION_CREATED, /* this call created the session */
	SESSION_FULL,	 /* not created: both buckets are full; counted in `full` */
	SESSION_BUSY,	 /* not done: other packets won too many swaps; counted in `busy` */
	SESSION_GONE,	 /* the session died in between: treat the packet as after SESSION_MISS */
};

#endif
