/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Source NAT with sessions: VMs without a public address share those of a pool. This is the layout of what packets
 * change, and the argument why it is safe.
 *
 * Contract: nat.h is the C interface. crates/tables binds this at build time, and returns what is not used any more. A
 * change that an old agent cannot read changes NAT_LAYOUT_VERSION.
 *
 * There are four kinds of entries.
 *
 *  - A block: 2^block_shift outside ports of one public address, of all protocols, that one inside address (VNI and
 *    address) has. Packets claim blocks, the agent returns them.
 *  - A port word: the mapping of one outside port of one protocol to the inside port. The inside address is that of the block.
 *    So a mapping does not depend on the remote endpoint (RFC 4787 REQ-1), and nothing else is needed to find the inside
 *    endpoint of a packet from the Internet. With endpoint-dependent mapping, the word says only that the port is in use, and is
 *    shared: it has an inside port for each remote endpoint.
 *  - A tuple word: the inside port that a shared outside port has with one remote endpoint. The outside and the remote endpoint are
 *    the tuple.
 *  - A session: a record of the session tables (session_layout.h) with the inside endpoint and the remote endpoint as its
 *    key, and the VNI as its scope. It is one of IPv6 if the inside address is (NAT64); then the remote address is NAT_REMOTE_HIGH
 *    and the IPv4 address, and the protocol of queries is ICMP, not ICMPv6. Its action is the outside endpoint, and whether a remote endpoint began it. A packet from
 *    the Internet needs one, unless NAT_ANY_REMOTE is set.
 *
 * Public addresses have numbers. The agent assigns a number to an address, and the pool of a VPC (struct nat_pool) has the numbers
 * of its addresses. An inside address has one public address of the pool, by a keyed hash (RFC 4787 REQ-2).
 *
 * Blocks are in groups of 16. An inside address has two candidate groups of its public address by the same hash, and all its blocks
 * are in these. A port of an inside address has two candidate cells of 16 port words in each block. So all that an inside address
 * has, and the mapping of each port, is found without a list.
 *
 * Block word
 *
 *   bits  0..2   state
 *   bits  3..31  generation: how often the block was returned
 *   bits 32..63  tag: hash bits of the inside address; 0 in NAT_FREE
 *
 * The states are a cycle, and every step is one compare-and-swap:
 *
 *  - free -> claimed, by a packet, which alone fills the block then, and claimed -> owned: a reader that sees "owned" sees a
 *    complete block.
 *  - owned -> closing, by the agent, if all port words of the block are 0. Packets that see this claim no port in it.
 *  - closing -> owned, by a packet of the inside address that needs a port, or by the agent, if a program that had seen "owned"
 *    has claimed one meanwhile.
 *  - closing -> closed, by the agent, one grace period later, if all port words are still 0. For packets, the block has no owner
 *    any more. Also owned -> closed, by the agent, when it ends what an inside address has.
 *  - closed -> free with the next generation, by the agent, one grace period after "closed". So a program that used the block as
 *    that of its old owner has ended before it has another one.
 *  - claimed -> free, by the agent, if the word is the same after a grace period: the packet that claimed it was killed.
 *  - withheld: blocks that packets must not use: those with ports below 1024, and all blocks of a number that has no address.
 *    free -> withheld and closed -> withheld, by the agent, when it takes a public address out of use, and claimed -> withheld, if
 *    the word is claimed a grace period later, so that its packet was killed; withheld -> free, by the agent, when it assigns one.
 *
 * Port word
 *
 *   bits  0..15  inside port; 0 in a shared port
 *   bits 16..30  stamp: the round in which it was last seen in use; NAT_TENTATIVE or above: being claimed; 0: the port is free
 *   bit  31      NAT_SHARED: the port is shared; it is never tentative
 *
 * Tuple word
 *
 *   bits  0..30  as in a port word that is not shared
 *   bits 32..63  tag: hash bits of the tuple
 *
 * Tuple words are in buckets of NAT_TUPLE_WORDS. There are as many buckets as the session table of IPv4 has. A tuple has two candidate
 * buckets by a keyed hash, and any word of these may be its word. What a tuple word has is the port of an inside address that the block
 * says, so a session is found as with a port word.
 *
 * Sessions of a port are not counted. The agent finds out which ports are in use: in each round, it
 *
 *   1. increments `round`, and waits for a grace period. So each program that read an earlier round has ended, and what it
 *      created is in the session tables;
 *   2. looks at all sessions, and stamps the port words and tuple words that they use with the round;
 *   3. waits for a grace period, so that no program translates by a session that ended before step 2;
 *   4. swaps port words and tuple words without the stamp of the round to 0, and closes blocks that have none left. It leaves tentative words with
 *      the lowest bit of the round, because a program may be about to settle them. One with the other bit is of a program that
 *      began before step 1, so it was killed.
 *
 * A packet that begins a session stamps the port word first, if it has another stamp. It reads the round after the word, so that it
 * never replaces the stamp of a round by that of an earlier one. If the swap of step 4 came first, that of the packet fails, and
 * it searches again. So no port is freed that a session uses or is about to use. Whatever is killed, at any
 * point, leaves ports or blocks that no session uses, which the next complete round frees.
 *
 * Two packets of one inside port may both find no mapping. So a port is claimed in two steps. 0 -> tentative, by a swap,
 * which is a full barrier; then the packet searches all cells again, and makes the stamp of it the round if there is no other
 * word for the port. The swaps have one order, so the later of two packets sees the word of the other. If both see each other,
 * the one at the lower port waits and the other one gives its port back. No other packet uses a tentative word, so it can be given
 * back at once.
 *
 * Tuple words are claimed in two steps as well, because two packets of a tuple may both find none. Tags stand for tuples: a packet
 * takes a word of the same tag in one of its buckets for that of its tuple, so it uses another port although the tuple is free, once in
 * 2^28. 0 -> tentative, by a swap; then the packet searches both buckets again. If it finds another word, it gives its own back and
 * searches again. The swaps have one order, so of two packets of a tuple the later one sees the word of the other, and at most one
 * goes on. It creates its session, and only then it settles the word, or gives it back, if the session exists by another packet. So
 * only tentative words are given back, and no other packet creates a session by these: one of another inside port uses another outside
 * port, and one of the same inside port, which is of the same session, waits. A settled word of its inside port is stamped and used again.
 * The agent stamps, and so settles, a tentative word that a session uses. Packets from the Internet use tentative words as settled ones,
 * because the session has the outside endpoint. A shared port word needs one step, 0 -> stamp or its new stamp, before the tuple is
 * taken.
 *
 * Two packets of a session try the same ports, so they mostly agree on one. If a tuple is freed between them, both may create the
 * session, with two outside endpoints. One of the records dies as a duplicate, and the packet that has left by it is not answered.
 *
 * A tuple belongs to one inside endpoint as long as a session uses it: its word is freed as a port is, and the word of another inside
 * port in its place is refused until then. So no two live sessions have one outside endpoint and one remote endpoint.
 *
 * Sessions of other gateways (nat_install.h) come with their outside port. Their program claims the block, if it is free, and opens
 * it again, if it is closing, as a packet does. Then it swaps 0 -> stamp, or stamps the word. It reads the round after the word, so
 * all above holds for it: it began before step 1, and its session is there in step 2, or its stamp is that of the round. It needs no
 * tentative word: that keeps two packets from choosing two ports for an inside port, and here is nothing to choose. So if a packet
 * maps the inside port at the same moment, it may have two outside ports, each for its sessions, as after a split of the cluster; each
 * outside port has one inside endpoint all the same. A packet that claims the port which the other gateway has chosen sees the settled
 * word, or is waited for. A tuple word is claimed as by a packet, and settled at once. The agent's grace periods wait for the program as for packets, because the kernel runs it as one.
 *
 * A session that is merged changes in two steps: bits of its state, then its expiry, by a swap from the word by which it was judged. So
 * the expiry of a packet that comes meanwhile stays; the state has that packet's bits, unless it set them before the merge read the state
 * and had not moved the expiry. Then the next packet of the session, or the next pass, sets them.
 *
 * READ_ONCE loads are executed in program order, as in session_layout.h.
 */
#ifndef SLUICE_NAT_LAYOUT_H
#define SLUICE_NAT_LAYOUT_H

#include <linux/types.h>

#define NAT_MAGIC 0x313054414e554c53ull /* "SLUNAT01", little endian */
#define NAT_LAYOUT_VERSION 3

/* Protocols by which ports are mapped. The ports of ICMP are the identifiers of queries. */
#define NAT_TCP 0
#define NAT_UDP 1
#define NAT_ICMP 2
#define NAT_CLASSES 3

#define NAT_PORT_MIN 1024 /* lower ports are withheld */
#define NAT_PORTS 65536	  /* of a public address and protocol, with those below NAT_PORT_MIN */
#define NAT_CELL_PORTS 16 /* of a struct nat_ports */
#define NAT_BLOCK_SHIFT_MIN 6
#define NAT_BLOCK_SHIFT_MAX 12
#define NAT_GROUP_BLOCKS 16
#define NAT_BLOCKS_MAX 16      /* limit for an inside address, which finds this many also in one group */
#define NAT_ADDRESSES_MAX 4096 /* of the tables: an outside port has a number of 32 bits */

#define NAT_FREE 0ull
#define NAT_CLAIMED 1ull
#define NAT_OWNED 2ull
#define NAT_CLOSING 3ull
#define NAT_WITHHELD 4ull
#define NAT_CLOSED 5ull
#define NAT_STATE_MASK 7ull
#define NAT_GENERATION_SHIFT 3
#define NAT_GENERATION_MASK 0x1fffffffull
#define NAT_TAG_SHIFT 32

/* Beside the VNI of an inside address: it is one of IPv6 (NAT64). */
#define NAT_INSIDE_IPV6_SHIFT 24
#define NAT_INSIDE_IPV6 (1u << NAT_INSIDE_IPV6_SHIFT)
#define NAT_VNI_MASK 0x00ffffffu
/* Families of inside addresses: IPv4, and IPv6 (NAT64). */
#define NAT_FAMILIES 2

/*
 * The high half of the remote address in the key of a session of IPv6; the low half is the IPv4 address. It is the well-known prefix
 * of RFC 6052, whichever prefix the NAT gateway has.
 */
#define NAT_REMOTE_HIGH 0x0064ff9b00000000ull

#define NAT_STAMP_SHIFT 16
#define NAT_STAMP_MASK 0x7fffu
#define NAT_ROUND_MAX 0x7ffcu /* even; the next round is 1 */
#define NAT_TENTATIVE 0x7ffeu /* plus the lowest bit of the round in which the word was claimed */
#define NAT_SHARED 0x80000000u
/* The bits of a port word that say what it maps. */
#define NAT_MAPPED (NAT_SHARED | 0xffffu)

#define NAT_TUPLE_WORDS 8
#define NAT_TUPLE_TAG_SHIFT 32

/* nat_group.flags: no pool has the address any more. Its number is free when all its blocks are withheld. */
#define NAT_DRAINING 0x1u

/* action[1] of a session: the outside port in bits 0..15, the number of the public address, its mapping, and who began the session */
#define NAT_ADDRESS_SHIFT 16
#define NAT_ADDRESS_MASK 0xfffu
#define NAT_OUTSIDE_MASK 0xfffffffu /* the outside endpoint */
#define NAT_OF_SHARED 0x40000000u   /* the outside port was shared when the session began */
#define NAT_OF_REMOTE 0x80000000u

/*
 * The state of a session that another node describes is that of session_layout.h, but this in the place of SESSION_ORIGINATOR: the
 * remote endpoint sent the first packet.
 */
#define NAT_COPY_OF_REMOTE 0x1u
/* Besides the state: the outside port is shared. */
#define NAT_COPY_OF_SHARED 0x8u
#define NAT_COPY_STATE 0x77u /* all bits of the state */
/* Ticks. Times of activity that differ by no more count as equal: expiries are not more exact, and clocks of nodes differ. */
#define NAT_COPY_SLACK 8

#define NAT_POOL_ADDRESSES_MAX 16

/* nat_pool.flags */
#define NAT_ANY_REMOTE \
	0x1u /* packets from any remote endpoint to a mapped port begin a session (endpoint-independent filtering) */
/* Sessions that begin share ports (endpoint-dependent mapping). To a shared port, NAT_ANY_REMOTE does not apply. */
#define NAT_SHARES_PORTS 0x2u

/* What the instances of a VPC share, and how much of it each may have. Each packet comes with it (struct nat_gateway). */
struct nat_pool {
	__u32 sessions_limit; /* of an inside address; as many more as there are processors may begin at the same moment */
	__u8 blocks_limit; /* the same, of blocks */
	__u8 addresses;
	__u8 flags;
	__u8 reserved;
	__u16 address[NAT_POOL_ADDRESSES_MAX]; /* the numbers of the public addresses in the NAT tables */
};

struct nat_block {
	__u32 vni;	  /* with NAT_INSIDE_IPV6; all other bits above bit 23 are 0 */
	__u32 claimed_at; /* ticks of the session tables */
	/*
	 * Sessions of the block's ports. The difference, which may wrap, is the number of sessions, and those that began during
	 * the agent's last round once more.
	 */
	__u32 begun;	 /* atomic additions by packets */
	__u32 ended;	 /* written only by the agent */
	__u64 inside[2]; /* halves; IPv4 in the low half */
	__u32 logged;	 /* written only by the agent: 1 when the log has the claim */
	__u32 reserved[3];
};

struct nat_group {
	__u64 word[NAT_GROUP_BLOCKS];
	__u32 outside; /* the public address; 0: the number has none, and all blocks are withheld */
	__u32 flags;   /* NAT_DRAINING; in the first group of an address */
	/* As those of a block, of all sessions of the address, by family of the inside address; in its first group. */
	__u32 begun[NAT_FAMILIES];
	__u32 ended[NAT_FAMILIES];
	/*
	 * The blocks, as bits, whose ports another gateway of the cluster gives out, or that have a forwarded port. Packets claim no
	 * such block, and no port in it; nat_install() does.
	 */
	__u32 others;
	__u32 reserved[9];
	struct nat_block block[NAT_GROUP_BLOCKS];
};

/*
 * The words of 16 ports. Port p of protocol c of address a has the number (a * NAT_CLASSES + c) * NAT_PORTS + p, and is
 * word number % 16 of cell number / 16.
 */
struct nat_ports {
	__u32 word[NAT_CELL_PORTS];
};

/* A bucket of tuple words. */
struct nat_tuples {
	__u64 word[NAT_TUPLE_WORDS];
};

/* What nat.h answers about a packet. Only the first two translate it; all others are reasons to drop it. */
enum nat_answer {
	NAT_TRANSLATED, /* by a session that existed */
	NAT_BEGUN,	/* by a session that this packet began */
	NAT_MISS,	/* from the Internet: no VM has a session for it */
	NAT_PROTOCOL,	/* the protocol has no ports that can be mapped, or the tables are not laid out */
	NAT_NO_SESSION, /* from a VM: of no session, and it cannot begin one (TCP without SYN, ICMP other than a query) */
	NAT_SESSIONS,	  /* the inside address has as many sessions as it may have */
	NAT_VPC_SESSIONS, /* the VPC has as many as it may have */
	NAT_BLOCKS,	  /* the inside address uses all ports that it may have */
	NAT_EXHAUSTED,	  /* the pool has no block for the inside address */
	NAT_FULL,	  /* the session table is full there */
	NAT_BUSY,	  /* other packets won too many swaps */
	/* Only of nat_install(). */
	NAT_TAKEN,     /* the outside port, or its block, belongs to another inside endpoint, or to none */
	NAT_ELSEWHERE, /* the session here has another outside endpoint, and is not older */
	/* Only of the program nat_copy. */
	NAT_NO_ADDRESS, /* the NAT gateway of the VPC does not have the public address, or that has no number yet */
};

/*
 * A session that another gateway describes, in host order, as the agent gives it to the program nat_copy of gateways. That answers in
 * place.
 */
struct nat_copy {
	__u64 inside[2]; /* as in struct nat_block */
	__u32 vni;	 /* as in struct nat_block */
	__u32 remote;
	__u32 outside;
	__u16 inside_port;
	__u16 remote_port;
	__u16 outside_port;
	__u8 protocol;
	__u8 state; /* NAT_COPY_STATE, NAT_COPY_OF_SHARED */
	/* As in struct nat_packet. */
	__u32 idle;
	__u32 since;
	__u32 flags;
	__u32 answer; /* enum nat_answer */
	__u32 bucket; /* answer: where the session is in the table of its family, if it was installed or exists */
	__u32 slot;
	__u32 reserved;
};
#define NAT_COPIES_MAX 32 /* of a run of the program */

/* struct nat_copy.flags: the owner of the NAT gateway's vIP says so. */
#define NAT_OF_OWNER 0x4u

/*
 * Ticks. Until a round is completed, sessions that have ended count. So if the last one was completed before, no agent works, and
 * the number of sessions is not known and not limited. 10 minutes: two rounds, each within the shortest timeout of a session
 * that was answered, need less.
 */
#define NAT_ROUND_AGE_MAX 4800

/* The only element of the array map `nat_config`. `magic` is stored last. */
struct nat_config {
	__u64 magic;
	__u32 layout_version;
	__u32 generation; /* number of agents that have adopted the tables, from 1 */
	/* Constant as long as the tables exist. */
	__u32 groups; /* of all addresses; 0: not laid out */
	__u32 block_shift;
	/* Of the agent. */
	__u32 round;	 /* 1 to NAT_ROUND_MAX */
	__u32 round_at;	 /* ticks: when a round was completed last, or the tables were laid out */
	__u64 port_seed; /* secret: which cells and words a port prefers */
	/*
	 * Sessions that a VPC may have, at all addresses of its pool, by family of the inside address, as each family has a table of
	 * its own: no tenant can fill the table of all. As many more as there are processors may begin at the same moment. 0: not
	 * limited.
	 */
	__u32 vpc_sessions[NAT_FAMILIES];
	/*
	 * A processor passes one packet of a VPC on to the owner of its NAT gateway each `pass_token_ns`, and up to `pass_burst` after a pause. 0: as
	 * many as come.
	 */
	__u32 pass_token_ns;
	__u32 pass_burst;
	__u64 reserved;
};

#endif
