/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The layout of a node's forwarding tables, which the agent writes and the packet programs read.
 *
 * Memory is an array of cells of one cache line each. Cells refer to each other by a 32-bit index, of which
 * 28 bits are used (16 GiB of tables). New cells are zero, and zero always means "empty": index 0 is the
 * superblock, which no entry refers to.
 *
 * Contract: the agent is the only writer, except for `l2`, `l2_expires_ns` and `used` of a struct next_hop,
 * which packets store. There are any number of readers. Each structure states which of its
 * words is published by an atomic store. All cells that such a word refers to are complete before it is
 * stored, and are reused only after a grace period. crates/tables binds this at build time. A change that
 * an old agent cannot read changes TABLES_LAYOUT_VERSION.
 */
#ifndef SLUICE_CELLS_H
#define SLUICE_CELLS_H

#include <linux/types.h>

#include "layout/nat_layout.h"

#define CELL_BYTES 64
#define CELL_INDEX_BITS 28
#define CELL_INDEX_MASK 0x0fffffffu

#define TABLES_MAGIC 0x3130454349554c53ull /* "SLUICE01", little endian */
#define TABLES_LAYOUT_VERSION 9
/* An agent that knows the present version adopts tables of versions from this one on, whose entries are also its own. */
#define TABLES_LAYOUT_OLDEST 3

struct cell {
	__u64 word[CELL_BYTES / 8];
};

/* Cell 0. `magic` is stored last when the tables are first laid out. */
struct superblock {
	__u64 magic;
	__u32 layout_version;
	__u32 generation;	 /* number of writers that have adopted these tables, from 1 */
	__u64 cells;		 /* capacity, in cells */
	__u64 applied_revision;	 /* the controller's revision that the tables have completely */
	__u64 database_id;	 /* low half of the identity of the controller's database */
	__u64 complete_revision; /* newest revision of that database whose entries were all in the tables */
	__u64 commit_id;   /* the commit of that database with which the tables last agreed completely */
	__u64 attended_ns; /* gateway: see ATTENDED_NS; published by its own store */
};

/*
 * `attended_ns` is the time (CLOCK_MONOTONIC) at which a gateway's agent last stored that it is healthy,
 * which it does every 100 ms. If that is longer ago than this, the agent counts as away, and other gateways
 * may have taken over its vIPs. 0: there are no other gateways.
 */
#define ATTENDED_NS 500000000ll

/* The roots are in the cells after the superblock. */
#define CELL_EXACT_ROOT 1 /* struct exact_root */
#define CELL_NODE 2	  /* struct node_config, three cells */
#define CELL_VIPS 5	  /* struct vip_slot, VIP_SLOTS of them */
#define CELL_FIRST_FREE 21

/*
 * Exact match. A key has two candidate buckets of three slots each. All kinds of keys share one table
 * (Sailfish section 4.4). A key word is
 *
 *   bits  0..31  id: the IPv4 address as a host-order integer, the digest of an
 *                IPv6 address, or a small integer (by kind)
 *   bits 32..55  VNI; 0 is the underlay
 *   bits 56..57  kind (EXACT_*); 0 in an empty slot
 *   bits 58..63  generation, changed each time the slot is filled
 *
 * A reader reads key, value, next, and then key again: if the key word is unchanged, value and next belong to
 * it. To fill a slot, the writer clears the key, stores value and next, and stores the new key with the next
 * generation. To change only value or only next, it stores that word and then the key with the next
 * generation. To change both, or to move an entry to the other bucket, it fills a second slot, increments
 * `version` of the key's first bucket, and then clears the old slot. A reader that found nothing in both
 * buckets searches again if the version of the first one changed.
 */
#define EXACT_SLOTS 3
#define EXACT_KEY_MASK 0x03ffffffffffffffull
#define EXACT_GENERATION_SHIFT 58
#define EXACT_KIND_SHIFT 56
#define EXACT_VNI_SHIFT 32

/* Kinds of keys. VNI 0 has the VTEPs and vIPs of the underlay. */
#define EXACT_IPV4 1ull /* (VNI, IPv4 address) */
#define EXACT_IPV6 2ull /* (VNI, digest of an IPv6 address) */
/*
 * (VNI, 0): the VNI's struct vrf; (0, 0): the struct vrf of the Internet side, see SCOPE_PUBLIC; (0, ifindex): a
 * struct port; (0, EXACT_POLICY_ID | id): a struct policy; (0, EXACT_SERVICE_ID | id): a struct service;
 * (EXACT_GROUP_VNI, id): a struct group.
 * (VNI, id of a VTEP), a sender. Gateway: the node has an instance of the VNI, or had one a moment ago. Host: a
 * gateway has permitted the node to send here directly, or the controller did by fixed paths. The id is the
 * IPv4 address, or 32 bits of the IPv6 address's digest; 1 instead of 0. `next` is the struct next_hop of the
 * VTEP, which is read only for packets with an identity. Of the value, bits 0..27 are the cell of the VNI's struct vrf, so that one
 * lookup answers for sender and VNI; 0: none. Bits 28..47 are SENDER_IPV4, or other bits of the digest with
 * SENDER_IPV6 (exact_match.h); SENDER_ANY if two VTEPs of the VNI have the same id.
 */
#define EXACT_INDEX 3ull
#define SENDER_CHECK_SHIFT 28
#define SENDER_CHECK_MASK 0x0000fffff0000000ull
#define SENDER_ANY 0ull
#define SENDER_IPV4 0x10000000ull
#define SENDER_IPV6 0x20000000ull /* this bit is set in the value of each IPv6 address */
/* Group ids are not 0, so the VRF of the last VNI has another key. */
#define EXACT_GROUP_VNI 0x00ffffffu
/* Added to the id of a policy, which is below 2^30. The kernel's interface indices are below it. */
#define EXACT_POLICY_ID 0x80000000u
/* Added to the id of a service, which is below 2^30. */
#define EXACT_SERVICE_ID 0xc0000000u

/* value: the endpoint's MAC address (byte 0 in bits 40..47) and, for IPv6, 16 more bits of the digest. */
#define EXACT_MAC_MASK 0x0000ffffffffffffull
#define EXACT_CHECK_SHIFT 48

/*
 * next: the cell that the entry refers to, and this flag: the conflict table has full keys with this
 * digest.
 */
#define EXACT_CONFLICT 0x10000000u

struct exact_bucket {
	__u64 key[EXACT_SLOTS];
	__u64 value[EXACT_SLOTS];
	__u32 next[EXACT_SLOTS];
	__u32 version;
};

/*
 * `buckets` is published as one word: the first cell in the low half, their number in the high half.
 * `conflicts` is a word of the same form, for a run of cells of struct exact_conflict, which is searched by
 * linear probing, at most EXACT_CONFLICT_PROBES cells. A live conflict entry never changes: for another
 * value the writer makes another run.
 *
 * Only the writer uses `addresses`: the full IPv6 address of each slot, 16 bytes, high half first, at 16
 * times the slot's number in a run of cells, so that a new agent can restore every entry from the tables
 * alone. The low half of a word is the first cell of the run, the high half the first cell of the buckets
 * that the run belongs to. The word whose high half equals the current buckets is valid.
 */
struct exact_root {
	__u64 buckets;
	__u64 conflicts;
	__u64 seed;
	__u64 digest_mask; /* all ones; tests clear bits, so that digests conflict */
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
 * Longest prefix match. Each VRF has a 64-bit root word for each family, published by one store. 0: no
 * routes. The low half is a cell index, the high half the form:
 *
 *   LPM_SCAN   one to LPM_SCAN*_CELLS cells that list the routes, longest
 *              prefix first, replaced as a whole
 *   4..22      a directory of that many bits
 *
 * A directory of k bits is a run of 32-bit words. First there are 2^k slots, one for each value of the next
 * k bits of the address. Behind them is a heap of 2^(k+1) words, which only the writer uses: the routes
 * that end within these bits. Word 1 has length 0, words 2 and 3 length 1, and so on to length k; word 0 is
 * the leaf inherited from above. A slot that no word below occupies has the leaf of the longest of these
 * routes that covers it.
 *
 * A word is a leaf (0: no route), or LPM_* in bits 28..31 and a cell in 0..27:
 *
 *   LPM_NARROW, LPM_WIDE, LPM_LONG   a bucket: one cell with the few routes
 *              that begin with the bits so far, longest first. Replaced as a
 *              whole; only a single leaf is changed in place.
 *   LPM_DIRECTORY2, 4, 8   a directory of the next 2, 4 or 8 bits
 *   LPM_SKIP   bits that all routes below share: one cell, which refers to a
 *              directory
 *
 * A lane of a bucket has the rest of a prefix behind the bits so far, then a 1, then zeros. The route of an
 * unused lane has no bits: it always matches, and its leaf is the one that the bucket inherits. So the
 * first lane that matches is the result. Entry e is in lane (e mod 3) * 4 + e / 3 of a narrow bucket, and
 * in lane (e mod 4) * 2 + e / 4 of a wide one: the order in which a search by words of 64 bits finds them.
 * A long bucket has lanes of 128 bits, with the address without its first bit.
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
	__u32 directory; /* word that refers to the directory behind the bits */
	__u32 inherited; /* leaf of addresses that differ in the bits */
	__u32 depth;	 /* number of bits in the mask */
	__u32 reserved32;
	__u64 reserved[2];
};

/*
 * A leaf is the complete action of a route (DSR section 4.1.2): scope in bits 28..31, argument in bits 0..27.
 * 0: no route. Scopes are below LPM_SKIP.
 */
#define LEAF_SCOPE_SHIFT 28
#define LEAF_ARGUMENT_MASK 0x0fffffffu
#define SCOPE_LOCAL 1u /* the VM-NC mapping of this VNI has the destination */
#define SCOPE_PEER 2u  /* argument: the peer's VNI, where the packet is routed again */
#define SCOPE_DROP 3u  /* the operator wants such packets to be dropped */
/*
 * The argument's cell, which belongs to this route, says where the packet goes. A struct next_hop of kind
 * NEXT_HOP_INSTANCE: to the instance of this VNI that has its address, to which the prefix is delegated. A struct peering: to a
 * peer, as by SCOPE_PEER, through meters. Hosts have only the first, with NEXT_HOP_MOVED: a packet from the underlay takes the
 * direct path of the address.
 */
#define SCOPE_NEXT_HOP 4u
#define SCOPE_PORT \
	5u /* host: the prefix is delegated to the VM at the port whose interface index is the argument */
#define SCOPE_INTERNET 6u /* gateway: the packet goes to the Internet, if the sender has a public address */
/*
 * Gateway: the address belongs to the struct public_prefix in the argument's cell. Such leaves are in no VPC's routes, but
 * in those of VNI 0, by outside address, and in the sources of a struct internet, by inside address. The leaves of a
 * prefix in both lead to the same cell, except while the writer adds or removes it: then one of both has no leaf.
 */
#define SCOPE_PUBLIC 7u
#define PEER_HOPS_MAX 8

#define ELEPHANT_NEVER 0xffffffffu

#define VRF_INTERNET 0x1 /* only for the writer: `group_id` is a cell */
/*
 * Gateway: the struct internet has a meter. Others need not be read for it. Packets of a moment of change find the flag without
 * the meter, or the meter without the flag, and take from none.
 */
#define VRF_METERED 0x2
/*
 * Host: the VRF has bonding vNICs (PORT_BONDED). Any host that is in the tables may send in it: the hosts of the members'
 * peers choose a member by themselves, and no gateway permits them.
 */
#define VRF_BONDED 0x4
/*
 * Host: from here on, the threshold of elephants in bytes per period: a mantissa, and the number of zeros behind it. 0: that of
 * the flow table; VRF_ELEPHANT_NEVER: no flow is one. So it is up to 1.6 % below what was set (1 of 64 to 127).
 */
#define VRF_ELEPHANT_SHIFT 4
#define VRF_ELEPHANT_BITS 7 /* of the mantissa */
#define VRF_ELEPHANT_ZEROS_MAX 25
#define VRF_ELEPHANT_NEVER 0xfff

/*
 * A VNI. (EXACT_INDEX, VNI, 0) refers to it. That of VNI 0, which only gateways with public prefixes have, is the
 * Internet side: its routes have all outside prefixes (SCOPE_PUBLIC). It has no counters, no MTU and no router.
 */
struct vrf {
	__u32 vni;
	__u32 counters; /* index into the counters by VNI; 0: shared by all VNIs without their own */
	__u64 lpm4;	/* root words */
	__u64 lpm6;
	/*
	 * Read by vrf_group() on hosts and by vrf_elephant_bytes() on gateways (lookup.h), because a cell has no
	 * room for both: hosts have the threshold in `flags`. Host: first cell of the struct group; 0: none. Gateway: bytes per period from which a
	 * flow is an elephant; 0: the threshold of the flow table; ELEPHANT_NEVER: no flow is.
	 */
	__u32 by_role;
	__u16 mtu; /* of the tenant's interfaces, in bytes of IP packet */
	__u16 flags;
	__u32 router4; /* source of ICMP errors, network order; 0: none */
	/*
	 * Host, only for the writer: id of the group. Gateway: cell of the VPC's struct internet, read by vrf_internet()
	 * and published by its own store; 0: the VPC has no public address.
	 */
	__u32 group_id;
	__u8 router6[16];
	__u32 routes4; /* number of routes, for metrics */
	__u32 routes6;
};

/*
 * A next hop, a vIP, a port, a direct path or a policy: the cell that an exact match refers to. A reader that
 * finds another kind than it expects drops the packet as stale_index.
 */
#define NEXT_HOP_VTEP 1 /* another node: host or gateway */
#define NEXT_HOP_VIP 2	/* a vIP of this node's cluster */
#define NEXT_HOP_PORT 3 /* a VM's port on this host: struct port */
/*
 * vSwitch: the direct path to one destination (Zeta section IV-C). (The sender's VNI, destination) refers
 * to it, with the destination's MAC address. Each path has its own cell, which contains the host's address.
 */
#define NEXT_HOP_DIRECT 4
#define NEXT_HOP_POLICY 5   /* not a next hop: struct policy */
#define NEXT_HOP_INSTANCE 6 /* gateway: an instance, by `address`; see SCOPE_NEXT_HOP */
#define NEXT_HOP_PUBLIC 7   /* not a next hop: struct public_prefix */
#define NEXT_HOP_INTERNET 8 /* not a next hop: struct internet */
#define NEXT_HOP_NAT 9	    /* not a next hop: struct nat_gateway */
#define NEXT_HOP_PEERING 10 /* not a next hop: struct peering; see SCOPE_NEXT_HOP */
#define NEXT_HOP_SERVICE 11 /* not a next hop: struct service */

#define NEXT_HOP_IPV6 0x1  /* `address` is IPv6; otherwise IPv4 in its first 4 bytes */
#define NEXT_HOP_OWNED 0x2 /* vIP: this node answers ARP and ND for it */
#define NEXT_HOP_HOST 0x4  /* VTEP: the node is a host; otherwise a gateway (strays.h) */
#define NEXT_HOP_FIXED 0x8 /* direct path: configured by the controller; agents do not expire it */
/*
 * VTEP of a host, or direct path to one: it runs no vSwitch. It checks no senders, gets no identities, and those that it
 * sends are ignored.
 */
#define NEXT_HOP_FOREIGN 0x10
/*
 * Direct path, also NEXT_HOP_FIXED: an instance that migrates is at this host now, or still. Packets from the underlay take the
 * path as well, by redirect_stray (strays.h). Instance: the same for a prefix that is delegated to it; the path is found by
 * `address`.
 */
#define NEXT_HOP_MOVED 0x20
/* Member of a service, only for the writer: new flows go to it. */
#define NEXT_HOP_SELECTED 0x40

/* Of a direct path. No node of IPv6 refuses packets of this length (RFC 8200 section 5). */
#define DIRECT_MTU_MIN 1280

struct next_hop {
	__u8 kind;
	__u8 flags;
	__u16 mtu; /* direct path: longest IP packet that the host can receive, at least DIRECT_MTU_MIN; 0: not known */
	__u32 vni; /* direct path: the destination's VNI, for the encapsulation; instance: the route's VNI */
	__u8 address[16]; /* network order */
	__u8 mac[8]; /* vIP: its vMAC; member of a service: the MAC address of its vNICs. In the first 6 bytes */
	/*
	 * Cached by packets from the kernel's FIB and neighbor tables, by one store: the first 6 bytes are the
	 * destination MAC address as in a packet, the last 2 the index of the underlay port. Valid until
	 * `l2_expires_ns` (CLOCK_MONOTONIC).
	 */
	__u64 l2;
	__u64 l2_expires_ns;
	/* Direct path, stored by packets: CLOCK_MONOTONIC in seconds when one last used it; 0: none did. */
	__u32 used;
	__u32 reserved32;
	__u64 reserved;
};

#define PUBLIC_IPV6 0x1 /* `outside` and `inside` are IPv6; otherwise IPv4 in their first 4 bytes */
/*
 * The prefix is one IPv4 address of the VPC's NAT gateway. `inside` has no address: its first 4 bytes are the cell of the struct
 * nat_gateway, the next 2 the number of the address in the NAT tables, both in host order.
 */
#define PUBLIC_NAT 0x2
#define PUBLIC_VIP_IPV6 0x4 /* `vip_address` is IPv6; otherwise IPv4 in its first 4 bytes */
/*
 * Of IPv6, with a length of 48 to 64: addresses are mapped by RFC 6296 (NPTv6), by which no checksum changes. Not all bits behind the
 * prefix stay.
 */
#define PUBLIC_NPTV6 0x8

/*
 * Gateway: public addresses of a VPC, and its own addresses that they stand for, one by one: both are prefixes of the
 * same length, without bits beyond it. Leaves of SCOPE_PUBLIC refer to it. Only `vip` and `meter` change; for any other change
 * the writer makes another cell.
 */
struct public_prefix {
	__u8 kind; /* NEXT_HOP_PUBLIC */
	__u8 flags;
	__u8 length;
	__u8 reserved8;
	__u32 vni;
	/*
	 * The struct next_hop of the vIP whose owner answers ARP and neighbor discovery for `outside`, with the vIP's vMAC.
	 * 0: the node does not have the vIP at the moment. Published by its own store, before the cell that it led to is
	 * reused.
	 */
	__u32 vip;
	/*
	 * Number of the prefix's meter in the map `meters` (meter_layout.h); 0: it has none. Published by its own store, which
	 * is removed before the number is another meter's.
	 */
	__u32 meter;
	__u8 outside[16]; /* network order */
	__u8 inside[16];
	__u8 vip_address[16]; /* only for the writer: which vIP `vip` leads to, as soon as the node has it */
};

/*
 * Gateway: the Internet side of a VPC, which is reached through `group_id` of its struct vrf. The sources are longest
 * prefix matches of IPv4 and IPv6 by the VPC's own addresses, with leaves of SCOPE_PUBLIC. Their prefixes do not
 * overlap.
 */
struct internet {
	__u8 kind; /* NEXT_HOP_INTERNET */
	__u8 reserved8[3];
	__u32 vni;
	__u64 sources4; /* root words */
	__u64 sources6;
	__u32 count4; /* number of prefixes in them, only for the writer */
	__u32 count6;
	/* The struct nat_gateway of the VPC; 0: it has no NAT gateway. Published by its own store. */
	__u32 nat;
	__u32 meter; /* of all Internet traffic of the VPC; as in struct public_prefix */
	__u64 reserved[3];
};

/*
 * Gateway: a route to a peered VPC, through a meter of each side of the peering. Numbers of meters that are removed become 0; for
 * any other change the writer makes another cell. Packets with such a route stay on gateways: no direct path avoids the meters,
 * also while both numbers are 0.
 */
struct peering {
	__u8 kind; /* NEXT_HOP_PEERING */
	__u8 reserved8[3];
	__u32 vni;  /* of the route */
	__u32 peer; /* the peer's VNI, where the packet is routed again */
	__u32 out_meter; /* of what the VNI sends to the peer, as in struct public_prefix; its limit outwards counts */
	__u32 in_meter; /* of what the peer gets; its limit inwards counts */
	__u32 reserved32;
	__u64 reserved[5];
};

/*
 * Gateway: source NAT of a VPC, for its instances without a public IPv4 address, and its port forwards. Its public addresses are leaves of SCOPE_PUBLIC
 * (PUBLIC_NAT). The sessions are at the owner of the vIP. Only `vip` changes; for any other change the writer makes another
 * cell, and other cells of the addresses.
 */
#define NAT_GATEWAY_64 \
	0x1 /* instances reach IPv4 addresses by a prefix of IPv6, which is in the cells behind (NAT64) */

struct nat_gateway {
	__u8 kind;  /* NEXT_HOP_NAT */
	__u8 flags; /* NAT_GATEWAY_64 */
	__u8 reserved8[2];
	__u32 vni;
	__u32 vip; /* as in struct public_prefix; the cells of the addresses have the address of the vIP */
	struct nat_pool pool;
	__u32 forwards; /* first cell of its port forwards; 0: it has none */
	__u32 forward_entries;
	__u32 reserved32;
};

/*
 * A port forward of a NAT gateway: the outside endpoint stands for the inside endpoint, and for each there is an entry, by which
 * packets find the other. An endpoint has its port in bits 0..15 and its IPv4 address in bits 16..47, in host order. The entries
 * are in a run of cells, four in each, in ascending order of their keys. No entry changes: for other port forwards, the writer
 * makes another NAT gateway with another run.
 */
struct nat_forward {
	__u64 key; /* an endpoint, NAT_FORWARD_UDP unless it is of TCP, and NAT_FORWARD_OUT if it is the inside endpoint */
	__u64 to; /* the other endpoint */
};

#define NAT_FORWARDS_CELL 4
struct nat_forwards {
	struct nat_forward entry[NAT_FORWARDS_CELL]; /* zero behind the last one */
};

#define NAT_FORWARD_ADDRESS_SHIFT 16
#define NAT_FORWARD_UDP_SHIFT 48
#define NAT_FORWARD_OUT (1ull << 49)
#define NAT_FORWARD_ENTRIES_MAX 512 /* of 256 port forwards */

/* In the two cells behind a struct nat_gateway: what it was made of. Packets read only the prefix. */
struct nat_addresses {
	__u8 vip_address[16]; /* which vIP `vip` leads to, as soon as the node has it */
	__u8 vip_ipv6;	      /* 1: `vip_address` is IPv6; otherwise IPv4 in its first 4 bytes */
	__u8 reserved8[7];
	/* The first 96 bits of the IPv6 addresses that stand for IPv4 addresses, in host order: halves, the low one without its low half. */
	__u64 prefix64[2];
	__u32 address[NAT_POOL_ADDRESSES_MAX]; /* of the numbers in the pool, network order */
	__u64 reserved[3];
};

#define NAT_GATEWAY_CELLS 3

/*
 * Gateway: an IPv4 vIP of this node's cluster, where most packets find it with one access. A vIP has one slot,
 * which vip_slot_index() (vip_slots.h) gives. Its entry of the exact match is the authority: vIPs that share a
 * slot with another, and those of IPv6, have only that. To change a slot, the writer clears `address`, stores
 * `mac` and then the new address. A reader that reads between two of these stores looks the address up, unless the
 * packet has the address of the old vIP and the MAC address of the new one: it is accepted at that moment.
 */
#define VIP_SLOTS 64
struct vip_slot {
	__u32 address; /* network order; 0: empty */
	__u32 reserved32;
	__u8 mac[8]; /* the vMAC, in the first 6 bytes */
};

/*
 * A service: the VMs that share the addresses of each of its mounts by vNICs (Achelous section 5.2). Each address of a mount,
 * in the VNI of its VPC, refers to it, with the MAC address of the router, so that neighbors send by the router. Its table is a
 * run of cells: SERVICE_SLOTS numbers of members, one byte each, chosen by the hash of a flow under `seed`; behind them a struct next_hop of
 * kind NEXT_HOP_VTEP for each number from 1 on, with the VTEP of the member's host. One without a member has kind 0. All nodes that know the
 * same members have the same slots. The table is replaced as a whole.
 */
#define SERVICE_SLOT_BITS 11
#define SERVICE_SLOTS (1 << SERVICE_SLOT_BITS)
#define SERVICE_SLOT_CELLS (SERVICE_SLOTS / CELL_BYTES)
#define SERVICE_MEMBERS_MAX 127
struct service {
	__u8 kind; /* NEXT_HOP_SERVICE */
	__u8 reserved8[3];
	__u32 id;
	__u64 seed[2]; /* the same on all nodes, never 0; no tenant knows it */
	/* First cell of the table in bits 0..27, the highest number of a member in bits 32..39; 0: the service has no member. */
	__u64 table;
	__u64 reserved[4];
};

/* A VM's port on this host, two cells. (EXACT_INDEX, 0, ifindex) and its addresses refer to it. */
/*
 * The port is a bonding vNIC: other ports have its addresses, too. Packets to them find it by its MAC address: by (VNI, link-local
 * address that follows from it).
 */
#define PORT_BONDED 0x1
#define PORT_PEER_REDIRECT 0x2 /* the port is a veth: deliver directly into its peer */
#define PORT_FILTERED 0x4      /* the port has a policy: its packets need a session (admission.h) */
#define PORT_DHCP6 0x8	       /* router advertisements tell the VM to take its IPv6 address by DHCPv6 */
#define PORT_SOURCES 0x10      /* the VM may send from what `sources` have */
#define PORT_UNPROTECTED 0x20  /* the VM may send from any unicast address, MAC and IP */
#define PORT_QOS 0x40	       /* the port marks or limits packets: `qos` and `rate_mbps` (qos.h, credit.h) */
#define PORT_IDENTIFIED \
	0x80 /* `identity` is not 0: packets of other ports do not read the second cell for it */

/*
 * Leaves of `sources`: the kind in bits 28..31. 0: the VM may not send from the address.
 *
 *   SOURCE_OWN   a secondary address, or a prefix that is delegated to the VM
 *   SOURCE_PAIR  an address that the VM may have in turn with others, and does not hold now
 *   SOURCE_HELD  such an address, and the VM gets the packets to it
 *   SOURCE_MAC   the link-local address that follows from a MAC address (RFC 4291 appendix A), from which the VM may
 *                also send: the own one of a pair
 *   SOURCE_NEIGHBORS   no source: the port's own subnet, if a delegated prefix contains it
 *
 * Bits 0..27 of the leaf of a pair are only for the writer: the number, from 1, of the pair's own MAC address among all
 * of the port, in ascending order; 0: the pair has none, and is reached by the router's MAC address.
 */
#define SOURCE_OWN 1u
#define SOURCE_PAIR 2u
#define SOURCE_HELD 3u
#define SOURCE_MAC 4u
#define SOURCE_NEIGHBORS 5u

struct port {
	__u8 kind; /* NEXT_HOP_PORT */
	__u8 flags;
	__u16 mtu;
	__u32 ifindex;
	__u32 vni;
	__u32 vrf; /* cell of the VNI's struct vrf */
	__u8 mac[6];
	__u16 scope; /* of the port's sessions and its meter: another number for each attachment; 0: it has neither */
	__u32 address4;	   /* network order; 0: none */
	__u32 router4;	   /* network order: the subnet's router, which is also the DHCP server; 0: none */
	__u8 address6[16]; /* zero: none */
	__u8 prefix6[16];  /* subnet's IPv6 prefix; zero: none */
	__u8 length4;	   /* subnet's prefix lengths */
	__u8 length6;
	__u8 reserved8[6];
	__u32 dns4[2];	/* network order; 0: none */
	__u64 instance; /* the controller's id, for logs */
	__u32 lease_s;	/* lifetime of DHCP leases of both families, in seconds */
	/*
	 * First cell of the port's struct policy; 0: none, everything is permitted; POLICY_CELL_MISSING: the tables
	 * have lost it, nothing is permitted. Published by its own store when the policy is replaced.
	 */
	__u32 policy;
	__u32 policy_id; /* only for the writer: id of the policy; 0: none */
	/*
	 * CLOCK_MONOTONIC in seconds. Before it, a TCP segment other than a SYN may begin a session, if the policy
	 * permits it: so connections go on that exist when a port gets its policy.
	 */
	__u32 adopt_until_s;
	__u16 identity; /* of the VM's groups within its VPC; 0: none */
	__u16 qos;	/* PORT_QOS_*; 0: packets of the VM keep their DSCP, and are not counted */
	__u32 rate_mbps; /* of the IP packets that the VM sends, and of those that it receives; 0: not limited */
	__u64 sources[2]; /* root words for IPv4 and IPv6 of what the VM has besides address4 and address6 */
};

#define PORT_QOS_DSCP 0x3f   /* the DSCP that packets of the VM get */
#define PORT_QOS_MARKS 0x40  /* they get one */
#define PORT_QOS_CREDIT 0x80 /* what the VM uses is counted, and its limits may change (credit.h) */

/*
 * What the security groups of a port permit (docs/decisions/policies.md). Rules only permit: a packet that no
 * rule permits is denied. (EXACT_INDEX, 0, EXACT_POLICY_ID | id) and the ports refer to it. Two cells: the first
 * for ingress, the second for egress, each of which has all that an evaluation needs. A policy never changes. For
 * other rules the writer makes another one, and points first the exact match and then the ports to it, each by
 * one store. So a packet that reads the link of its port once is judged by one policy.
 *
 * A service set is a longest prefix match, of the IPv4 form, over services: a key of 32 bits. Its leaves are ids
 * of rules, below 2^24. Its prefixes do not overlap, because a rule that another one covers permits nothing more.
 *
 *   bits 24..31  protocol
 *   bit  23      SERVICE_NO_TRANSPORT: the packet has no transport header, because it is a later fragment
 *   bits  7..22  destination port, or ICMP type and code; 0 if bit 23 is set
 *   bits  0..6   0
 *
 * A rule for a whole protocol ends before bit 23, so it covers later fragments; one with ports does not.
 *
 * The service sets of a policy have numbers from 1. Root word n is word (n - 1) % 8 of cell `sets` + (n - 1) / 8.
 */
#define POLICY_CELL_MISSING CELL_INDEX_MASK /* no memory has this cell */
#define SERVICE_PROTOCOL_SHIFT 24
#define SERVICE_NO_TRANSPORT 0x00800000u
#define SERVICE_PORT_SHIFT 7
/*
 * Keys of `identities`: the identity in bits 16..31, and this bit for an IPv6 packet. A prefix without the bit is
 * for packets of both families.
 */
#define POLICY_IDENTITY_SHIFT 16
#define POLICY_IDENTITY_IPV6 0x8000u

struct policy {
	__u8 kind; /* NEXT_HOP_POLICY */
	__u8 reserved8[3];
	__u32 id;
	__u32 generation; /* another one for each policy that these tables have had, never 0 */
	__u32 sets;	  /* cell with the root words of the service sets; 0: none */
	__u32 set_count;
	__u32 rules; /* number of rules in both directions, for metrics */
	/* Root words of the service sets for any IPv4 and any IPv6 address: copies of those in `sets`. */
	__u64 any[2];
	/*
	 * Root words of longest prefix matches by the remote's IPv4 and IPv6 address. A leaf is the number of the
	 * service set with the rules of all prefixes that cover the address, besides those for any address.
	 */
	__u64 addresses[2];
	/* Root word of a longest prefix match, of the IPv4 form, by the remote's identity. Leaves as above. */
	__u64 identities;
};

/* Limits of a policy. One that exceeds a limit is refused. */
#define POLICY_RULES_MAX 16384
#define POLICY_MEMBERSHIPS_MAX 262144 /* groups of all identities, added up */
#define POLICY_SETS_MAX 16384
#define POLICY_SERVICES_MAX 1048576 /* prefixes of all service sets, added up */
#define POLICY_CELLS_MAX 131072	    /* 8 MiB */

/*
 * Cells that an evaluation reads, at most. A longest prefix match that was built at once, which those of policies
 * are, begins with a directory of at least 4 bits; each further cell consumes at least 2 bits on average, up to the
 * bits of the longest prefix, or is the last one.
 *
 *   one service (25 bits)    12 cells, after one with the root word of its set
 *   identity (17 bits)        8
 *   address                  15 (IPv4), 63 (IPv6)
 *
 * An evaluation reads the policy, and finds one address, one identity and three services, of which the first one's
 * root word is in the policy.
 */
#define POLICY_READS_SERVICE 12
#define POLICY_READS_IDENTITY 8
#define POLICY_READS_ADDRESS4 15
#define POLICY_READS_ADDRESS6 63
#define POLICY_READS_BASE (1 + 3 * POLICY_READS_SERVICE + 2 + POLICY_READS_IDENTITY)
#define POLICY_READS_MAX4 (POLICY_READS_BASE + POLICY_READS_ADDRESS4)
#define POLICY_READS_MAX6 (POLICY_READS_BASE + POLICY_READS_ADDRESS6)

/*
 * The vIPs of a VPC's cluster (Zeta section V-A). The hash of a flow selects a bucket, which is the cell of
 * a struct next_hop of kind NEXT_HOP_VTEP with the vIP. A run of up to GROUP_CELLS_MAX cells, replaced as a
 * whole.
 */
#define GROUP_CELLS_MAX 4
#define GROUP_BUCKETS_MAX 63
struct group {
	__u32 count;
	__u32 bucket[GROUP_BUCKETS_MAX];
};

/* This node, three cells. */
#define UNDERLAY_PORTS_MAX 8
#define UNDERLAY_PORT_INTERNET 0x1 /* gateway: it leads to the Internet, and plain IP packets come in */
struct underlay_port {
	__u32 ifindex;
	__u16 mtu;
	__u8 mac[6];
	__u32 flags;
};

#define NODE_HAS_IPV4 0x1
#define NODE_HAS_IPV6 0x2

/*
 * The place of a gateway in the ring of its cluster (nat_ring.h): its position in bits 32..37, that of the next gateway that is
 * alive in bits 40..45, and in bits 0..27 the cell of that gateway's VTEP; 0: the node is alone in the ring.
 */
#define NAT_RING_MEMBER 0x100000000000000ull
#define NAT_RING_OWN_SHIFT 32
#define NAT_RING_NEXT_SHIFT 40
#define NAT_RING_POSITIONS 64 /* of the gateways of a cluster */

struct node_config {
	__u32 flags;
	__u32 vtep4; /* network order: outer source address */
	__u8 vtep6[16];
	__u8 router_mac[8];  /* the overlay's router, in the first 6 bytes */
	__u32 vxlan_ifindex; /* vSwitch: its VXLAN device */
	__u32 open_step; /* only for the writer: 1 while it may have written what belongs to no recorded revision */
	/*
	 * vSwitch: random, never 0 once the agent has started, and kept as long as the tables: which vIP a flow
	 * is sent to depends on it (tunnel.h), so that no tenant can choose flows that all load one gateway.
	 */
	__u64 flow_secret[2];
	/*
	 * vSwitch, only for the writer: the generation of the newest policy. Gateway: NAT_RING_*, published by its own store;
	 * 0: the node is in no ring.
	 */
	__u64 by_role;
	struct underlay_port port[UNDERLAY_PORTS_MAX]; /* ifindex 0: unused */
};

#endif
