/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The layout of a node's forwarding tables: what the agent writes and the
 * eBPF programs read. Written once here; crates/tables binds it at build time.
 *
 * Memory is an array of cells of one cache line. A cell is named by its 32-bit
 * index, of which 28 bits are used (16 GiB of tables). Fresh cells are zero,
 * and zero always means "nothing here": index 0 is the superblock, so it can
 * never be the target of a link.
 *
 * One writer (the agent), any number of readers. Every structure states which
 * of its words is published by an atomic store; everything such a word leads to
 * is complete before it is stored, and is reused only after a grace period.
 */
#ifndef SLUICE_CELLS_H
#define SLUICE_CELLS_H

#include <linux/types.h>

#define CELL_BYTES 64
#define CELL_INDEX_BITS 28
#define CELL_INDEX_MASK 0x0fffffffu

#define TABLES_MAGIC 0x3130454349554c53ull /* "SLUICE01", little endian */
#define TABLES_LAYOUT_VERSION 2

struct cell {
	__u64 word[CELL_BYTES / 8];
};

/* Cell 0. `magic` is stored last when the tables are first laid out. */
struct superblock {
	__u64 magic;
	__u32 layout_version;
	__u32 generation;	/* writers that have adopted these tables, from 1 */
	__u64 cells;		/* capacity, in cells */
	__u64 applied_revision; /* controller revision that is wholly in the tables */
	__u64 database_id;	/* low half of the controller database's identity */
	__u64 reserved[2];
	__u64 attended_ns; /* gateway, a word of its own: see ATTENDED_NS */
};

/*
 * `attended_ns` is when, by CLOCK_MONOTONIC, a gateway's agent last said that it
 * runs and is well, by one store; it does every 100 ms. Longer ago than this the
 * agent counts as away: other gateways may have its vIPs. 0: nobody else is there
 * to have them.
 */
#define ATTENDED_NS 500000000ll

/* The roots stand at fixed places right behind it. */
#define CELL_EXACT_ROOT 1 /* struct exact_root */
#define CELL_NODE 2	  /* struct node_config, three cells */
#define CELL_FIRST_FREE 5

/*
 * Exact match. Two-choice buckets of three slots; the table is pooled over key
 * kinds (Sailfish section 4.4). A key word is
 *
 *   bits  0..31  id: the IPv4 address as a host-order integer, the digest of an
 *                IPv6 address, or a small integer (by kind)
 *   bits 32..55  VNI; 0 is the underlay
 *   bits 56..57  kind (EXACT_*); 0 in an empty slot
 *   bits 58..63  generation, changed each time the slot is filled
 *
 * A reader takes key, value, next and then key again: an unchanged key word
 * says that value and next belong to it. A writer clears the key, stores value
 * and next, and stores the new key with the next generation. Where one of value
 * and next changes it stores that word and then the key with the next
 * generation. Where both change, and for a move to the other bucket, it fills a
 * second slot, bumps `version` of the key's first bucket and then clears the
 * old slot: a reader that missed in both buckets looks again if the first one's
 * version changed.
 */
#define EXACT_SLOTS 3
#define EXACT_KEY_MASK 0x03ffffffffffffffull
#define EXACT_GENERATION_SHIFT 58
#define EXACT_KIND_SHIFT 56
#define EXACT_VNI_SHIFT 32

#define EXACT_IPV4 1ull	 /* (VNI, IPv4); VNI 0: VTEPs and vIPs of the underlay */
#define EXACT_IPV6 2ull	 /* (VNI, IPv6 digest); VNI 0 as above */
#define EXACT_INDEX 3ull /* (VNI, 0): the VNI's struct vrf; (0, ifindex): a port; (EXACT_GROUP_VNI, id): a group */
#define EXACT_GROUP_VNI 0x00ffffffu /* with an id other than 0, so never the VRF of the last VNI */

/* value: the endpoint's MAC (byte 0 in bits 40..47) and, for IPv6, 16 more bits of digest. */
#define EXACT_MAC_MASK 0x0000ffffffffffffull
#define EXACT_CHECK_SHIFT 48

/* next: the cell that the entry leads to, and flags. */
#define EXACT_CONFLICT 0x10000000u /* full keys with this digest are in the conflict table */

struct exact_bucket {
	__u64 key[EXACT_SLOTS];
	__u64 value[EXACT_SLOTS];
	__u32 next[EXACT_SLOTS];
	__u32 version;
};

/*
 * `buckets` is published as one word: first cell in the low half, count in the
 * high half. `conflicts` likewise: a run of cells of struct exact_conflict,
 * searched by linear probing for at most EXACT_CONFLICT_PROBES cells. A live
 * conflict entry never changes: another value means another run.
 *
 * `addresses` is the writer's own: the full IPv6 address of each slot, 16 bytes
 * (high half first) at slot number times 16 in a run of cells, so that the
 * tables alone tell every entry. First cell in the low half; the first cell of
 * the buckets that it belongs to in the high half: of the two words the one
 * that names the present buckets counts.
 */
struct exact_root {
	__u64 buckets;
	__u64 conflicts;
	__u64 seed;
	__u64 digest_mask; /* all ones; tests narrow it to force digests to conflict */
	__u64 entries;
	__u64 conflict_entries;
	__u64 addresses[2];
};

#define EXACT_CONFLICT_PROBES 8

struct exact_conflict {
	__u64 key;	  /* as in a bucket: kind, VNI, digest, generation; 0 empty */
	__u64 address[2]; /* host-order halves, high half first */
	__u64 value;
	__u32 next;
	__u32 reserved32;
	__u64 reserved[3];
};

/*
 * Longest prefix match, one 64-bit root word per VRF and family, published by
 * one store; 0: no routes. Low half: a cell index. High half, the form:
 *
 *   LPM_SCAN   one to LPM_SCAN*_CELLS cells that list the routes, longest
 *              prefix first, replaced as a whole
 *   4..22      a directory of that many bits
 *
 * A directory of k bits is a run of 32-bit words: 2^k slots, one for each value
 * of the next k bits of the address, and behind them the writer's own record of
 * the routes that end within these bits, a heap of 2^(k+1): 1 is length 0, 2..3
 * length 1, and so on to length k; [0] is the leaf inherited from above. Routes
 * of the heap are pushed: each slot tells the longest of them that covers it.
 *
 * A word is a leaf (0: no route), or LPM_* in bits 28..31 and a cell in 0..27:
 *
 *   LPM_NARROW, LPM_WIDE, LPM_LONG   a bucket: one cell with the few routes
 *              that begin with the bits so far, longest first. Replaced as a
 *              whole, but for a leaf, which is one word.
 *   LPM_DIRECTORY2, 4, 8   a directory of the next 2, 4 or 8 bits
 *   LPM_SKIP   bits that all routes below share: one cell, behind which stands
 *              a directory
 *
 * A lane of a bucket is the part of the prefix behind the bits so far, a 1, and
 * zeros. The route of an unused lane has no bits: it matches always, and its
 * leaf is what the bucket inherits. So the first lane that matches is the
 * answer. Entry e of a narrow bucket has lane (e mod 3) * 4 + e / 3, of a wide one
 * lane (e mod 4) * 2 + e / 4: the order that a search by words of 64 bits finds.
 * A long bucket has codes of 128 bits, of the address without its first bit.
 */
#define LPM_FORM_SHIFT 32
#define LPM_SCAN 64u
#define LPM_ROOT_BITS_MIN 4
#define LPM_ROOT_BITS_MAX 22

#define LPM_KIND_SHIFT 28
#define LPM_SKIP 9u
#define LPM_NARROW 10u
#define LPM_WIDE 11u
#define LPM_LONG 12u
#define LPM_DIRECTORY2 13u
#define LPM_DIRECTORY4 14u
#define LPM_DIRECTORY8 15u

#define LPM_SCAN4_ROUTES 7
#define LPM_SCAN4_CELLS 2
struct lpm_scan4 {
	__u32 address[LPM_SCAN4_ROUTES]; /* host order */
	__u32 leaf[LPM_SCAN4_ROUTES];
	__u8 length[LPM_SCAN4_ROUTES]; /* prefix length + 1; 0 ends the list */
	__u8 reserved;
};

#define LPM_SCAN6_ROUTES 3
#define LPM_SCAN6_CELLS 2
struct lpm_scan6 {
	__u64 high[LPM_SCAN6_ROUTES]; /* halves of the address in host order */
	__u64 low[LPM_SCAN6_ROUTES];
	__u32 leaf[LPM_SCAN6_ROUTES];
	__u8 length[LPM_SCAN6_ROUTES];
	__u8 reserved;
};

#define LPM_NARROW_ROUTES 9 /* of up to 15 bits */
struct lpm_narrow {
	__u16 lane[12];
	__u32 leaf[LPM_NARROW_ROUTES + 1];
};

#define LPM_WIDE_ROUTES 7 /* of up to 31 bits */
struct lpm_wide {
	__u32 lane[8];
	__u32 leaf[LPM_WIDE_ROUTES + 1];
};

#define LPM_LONG_ROUTES 3
struct lpm_long {
	__u64 high[LPM_LONG_ROUTES];
	__u64 low[LPM_LONG_ROUTES];
	__u32 leaf[LPM_LONG_ROUTES + 1];
};

struct lpm_skip {
	__u64 address[2]; /* host-order halves, high half first */
	__u64 mask[2];
	__u32 directory; /* the word of what stands behind the bits */
	__u32 inherited; /* the leaf of addresses that differ in them */
	__u32 depth;	 /* bits of the mask */
	__u32 reserved32;
	__u64 reserved[2];
};

/*
 * A leaf is the finished action (DSR section 4.1.2): scope in bits 28..31,
 * argument in bits 0..27. 0: no route. Scopes are below LPM_SKIP.
 */
#define LEAF_SCOPE_SHIFT 28
#define LEAF_ARGUMENT_MASK 0x0fffffffu
#define SCOPE_LOCAL 1u /* VM-NC mapping of this VNI */
#define SCOPE_PEER 2u  /* argument: the peer's VNI; routed again there */
#define SCOPE_DROP 3u  /* an operator's blackhole */
#define PEER_HOPS_MAX 8

#define ELEPHANT_NEVER 0xffffffffu

/* What a VNI is. Reached by (EXACT_INDEX, VNI, 0). */
struct vrf {
	__u32 vni;
	__u32 counters;	 /* index into the per-VNI counters; 0: the shared overflow */
	__u64 lpm4;	 /* root words */
	__u64 lpm6;
	/*
	 * vSwitch: first cell of struct group; 0: none. Gateway, where group_id is
	 * 0: bytes a period from which a flow is an elephant; 0: the flow table's
	 * own, ELEPHANT_NEVER: none is.
	 */
	__u32 group;
	__u16 mtu;	 /* of the tenant's interfaces, bytes of IP packet */
	__u16 flags;
	__u32 router4;	 /* source of ICMP errors, network order; 0: none */
	__u32 group_id;	 /* writer's own: whose cell `group` is */
	__u8 router6[16];
	__u32 routes4;	 /* counts, for metrics */
	__u32 routes6;
};

/*
 * A next hop, a vIP, a port or a direct path: what an exact match leads to. It
 * is whole before a link to it is stored; a reader that finds another kind than
 * it expects counts a stale index.
 */
#define NEXT_HOP_VTEP 1 /* another node: host or gateway */
#define NEXT_HOP_VIP 2	/* a vIP of this node's cluster */
#define NEXT_HOP_PORT 3 /* a VM's port on this host: struct port */
/*
 * vSwitch: the host of one destination (Zeta section IV-C), reached by (the
 * sender's VNI, destination) with the destination's MAC. The cell is that
 * path's alone, and names its host itself.
 */
#define NEXT_HOP_DIRECT 4

#define NEXT_HOP_IPV6 0x1 /* `address` is IPv6; else IPv4 in its first 4 bytes */
#define NEXT_HOP_OWNED 0x2 /* vIP: this node answers ARP and ND for it */
#define NEXT_HOP_HOST 0x4 /* VTEP: the node is a host, as strays.h needs to know; else a gateway */
#define NEXT_HOP_FIXED 0x8 /* direct path: the controller's own, which agents neither learn nor age */

struct next_hop {
	__u8 kind;
	__u8 flags;
	__u16 reserved16;
	__u32 vni;	  /* direct path: to encapsulate with, the destination's own */
	__u8 address[16]; /* network order */
	__u8 mac[8];	  /* vIP: its vMAC, in the first 6 bytes */
	/*
	 * Cached by packets: the kernel's FIB and neighbour answer. Destination
	 * MAC in bits 0..47 (as in EXACT_MAC_MASK), underlay port in 48..63,
	 * one store; used until `l2_expires_ns` (CLOCK_MONOTONIC).
	 */
	__u64 l2;
	__u64 l2_expires_ns;
	/* Direct path, by packets: CLOCK_MONOTONIC in seconds when one last took it, 0: none did. */
	__u32 used;
	__u32 reserved32;
	__u64 reserved;
};

/* A VM's port on this host, two cells. Reached by (EXACT_INDEX, 0, ifindex) and by its addresses. */
#define PORT_PEER_REDIRECT 0x2 /* the port is a veth: deliver straight into its peer */

struct port {
	__u8 kind; /* NEXT_HOP_PORT */
	__u8 flags;
	__u16 mtu;
	__u32 ifindex;
	__u32 vni;
	__u32 vrf;	    /* cell of the VNI's struct vrf */
	__u8 mac[8];	    /* in the first 6 bytes */
	__u32 address4;	    /* network order; 0: none */
	__u32 router4;	    /* network order: subnet's router, DHCP server identity */
	__u8 address6[16];  /* zero: none */
	__u8 prefix6[16];   /* subnet's IPv6 prefix; zero: none */
	__u8 length4;	    /* subnet's prefix lengths */
	__u8 length6;
	__u8 reserved8[6];
	__u32 dns4[2];	    /* network order; 0: none */
	__u64 instance;	    /* controller's id, for logs */
	__u32 lease_s;	    /* DHCP lease time */
	__u32 reserved32[9];
};

/*
 * vIP group of a VPC's cluster (Zeta section V-A): buckets over vIPs, each the
 * cell of a struct next_hop of kind NEXT_HOP_VTEP that holds the vIP. A run of
 * up to GROUP_CELLS_MAX cells, replaced as a whole.
 */
#define GROUP_CELLS_MAX 4
#define GROUP_BUCKETS_MAX 63
struct group {
	__u32 count;
	__u32 bucket[GROUP_BUCKETS_MAX];
};

/* This node, three cells. */
#define UNDERLAY_PORTS_MAX 8
struct underlay_port {
	__u32 ifindex;
	__u16 mtu;
	__u8 mac[6];
	__u32 reserved;
};

#define NODE_HAS_IPV4 0x1
#define NODE_HAS_IPV6 0x2
struct node_config {
	__u32 flags;
	__u32 vtep4;	   /* network order: outer source address */
	__u8 vtep6[16];
	__u8 router_mac[8]; /* the overlay's router, in the first 6 bytes */
	__u32 vxlan_ifindex; /* vSwitch: its VXLAN device */
	__u32 reserved[7];
	struct underlay_port port[UNDERLAY_PORTS_MAX]; /* ifindex 0: unused */
};

#endif
