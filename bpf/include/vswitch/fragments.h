/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: fragments of a filtered port. A later fragment has no ports, so it passes only if the first fragment of its
 * datagram has passed the same port within FRAGMENT_TICKS.
 *
 * Contract: the frame is a fragment. Each port has a part of the table of its own, so that no port's fragments
 * displace another's while a host has at most FRAGMENT_PARTS ports. A datagram is known by 40 bits of a hash under
 * the node's secret. Later fragments that overtake their first one are dropped. The packet is not changed. Uses the
 * map `fragments`.
 */
#ifndef SLUICE_FRAGMENTS_H
#define SLUICE_FRAGMENTS_H

#include "common/session_maps.h"
#include "vswitch/port.h"

#define FRAGMENT_PARTS 1024
#define FRAGMENTS_OF_PART 64
#define FRAGMENT_TICKS (30 * SESSION_TICKS_PER_SECOND) /* as long as Linux waits for fragments of IPv4 */
#define FRAGMENT_TIME_MASK 0xffffffull

/* A datagram whose first fragment has passed: hash in bits 24..63, time in ticks in 0..23. 0: none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FRAGMENT_PARTS *FRAGMENTS_OF_PART);
	__type(key, __u32);
	__type(value, __u64);
} fragments SEC(".maps");

/* Where a fragment belongs: identification of its datagram, and offset in units of 8 bytes. */
struct fragment {
	__u32 id;
	__u16 offset;
};

/*
 * Reads the fragment's place. IPv6's fragment header is taken to be the last one in front of the transport header. Of
 * the extension headers that may stand behind it, only destination options are in use, and a datagram with them
 * is not admitted.
 */
static __always_inline long read_fragment(struct __sk_buff *skb, const struct frame *frame,
					  struct fragment *fragment)
{
	struct ipv6_extension header = {};
	__be16 words[2] = {};

	if (frame->flags & FRAME_IPV6) {
		__u32 at = frame->transport_at - (__u32)sizeof(header);

		if (bpf_skb_load_bytes(skb, at, &header, sizeof(header)))
			return -1;
		fragment->id = header.rest;
		fragment->offset = bpf_ntohs(header.fragment & bpf_htons(IPV6_OFFSET)) >> 3;
		return 0;
	}
	if (bpf_skb_load_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv4_header, id), words,
			       sizeof(words)))
		return -1;
	fragment->id = words[0];
	fragment->offset = bpf_ntohs(words[1] & bpf_htons(IPV4_OFFSET));
	return 0;
}

/* The entry of the datagram at the port, and its hash. NULL: none is used for this fragment. */
static __always_inline __u64 *fragment_entry(struct __sk_buff *skb, const struct frame *frame,
					     const struct node_config *node, __u16 scope, __u64 *hash)
{
	struct fragment fragment = {};
	__u64 flow;
	__u32 index;

	if (read_fragment(skb, frame, &fragment))
		return NULL;
	/* It could overwrite the flags of the TCP header that was judged (RFC 3128). */
	if (fragment.offset == 1 && frame->protocol == IPPROTO_TCP)
		return NULL;
	flow = frame_secret_hash(frame, node->flow_secret);
	*hash = exact_mix(flow << 32 | fragment.id, node->flow_secret[1]);
	index = scope % FRAGMENT_PARTS * FRAGMENTS_OF_PART + *hash % FRAGMENTS_OF_PART;
	return bpf_map_lookup_elem(&fragments, &index);
}

/* Remembers that the first fragment has passed. */
__attribute__((noinline)) int remember_fragment(struct __sk_buff *skb, const struct frame *frame, __u32 scope,
						__u32 now)
{
	const struct node_config *node = node_at();
	__u64 hash, *entry = node && frame ? fragment_entry(skb, frame, node, scope, &hash) : NULL;

	if (entry)
		WRITE_ONCE(*entry, (hash & ~FRAGMENT_TIME_MASK) | (now & FRAGMENT_TIME_MASK));
	return 0;
}

/* Whether the first fragment of a later one has passed. */
static __always_inline int is_known_fragment(struct __sk_buff *skb, const struct frame *frame, __u16 scope,
					     __u32 now)
{
	const struct node_config *node = node_at();
	__u64 hash, seen, *entry = node ? fragment_entry(skb, frame, node, scope, &hash) : NULL;

	if (!entry)
		return 0;
	seen = READ_ONCE(*entry);
	return seen && !((seen ^ hash) & ~FRAGMENT_TIME_MASK) &&
	       ((now - seen) & FRAGMENT_TIME_MASK) <= FRAGMENT_TICKS;
}

#endif
