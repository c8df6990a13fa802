/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The model of the kernel's helpers for tc programs. It records the tunnel key
 * and the redirect that a program chose, for the checks of the fuzz target.
 */
#ifndef SLUICE_FUZZ_SKB_H
#define SLUICE_FUZZ_SKB_H

#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include "kernel.h"

/* Of bpf_skb_adjust_room(), since Linux 6.3; as in decapsulate.h. */
#define ADJUST_ROOM_DECAP_IPV6 (1ull << 8)

static struct {
	struct __sk_buff skb;
	struct bpf_tunnel_key key;
	int key_family; /* 4 or 6; 0: the packet has no tunnel key */
	uint32_t gbp;	/* the group policy id of the key, and flags above it */
	int has_gbp;	/* otherwise a device that sends it may add any id */
	uint32_t redirected_to;
	/*
	 * CHECKSUM_PARTIAL: a device will compute the checksum of the packet from
	 * csum_start on and store it csum_offset bytes behind that.
	 */
	int checksum_pending;
	int32_t csum_start; /* from skb.data */
	uint16_t csum_offset;
	int encapsulated; /* the kernel knows that there is a tunnel */
	int unresolved;	  /* the kernel has no neighbor entries */
} tc;

/* The version of the kernel that is modeled. */
int LINUX_KERNEL_VERSION = 6 << 16 | 18 << 8;

/* What the kernel's FIB answers: the interface, and the MAC address of every next hop. */
#define FIB_IFINDEX (((struct node_config *)&pristine[CELL_NODE])->port[0].ifindex)
static const uint8_t fib_mac[ETH_ALEN] = { 2, 0, 0, 0, 0, 0xfb };

long bpf_fib_lookup(void *ctx, struct bpf_fib_lookup *params, int size, __u32 flags)
{
	if (ctx != &tc.skb || size != sizeof(*params) || flags)
		abort();
	params->ifindex = FIB_IFINDEX;
	memcpy(params->dmac, fib_mac, ETH_ALEN);
	return tc.unresolved ? BPF_FIB_LKUP_RET_NO_NEIGH : BPF_FIB_LKUP_RET_SUCCESS;
}

/* Offset of a pending checksum in the packet. */
static int32_t checksum_place(void)
{
	return tc.csum_start + tc.csum_offset;
}

static void set_linear(uint32_t data, uint32_t linear)
{
	tc.skb.data = data;
	tc.skb.data_end = data + linear;
	tc.skb.len = linear + kernel.fragment_bytes;
	poison(data, tc.skb.data_end);
}

static uint32_t linear_bytes(void)
{
	return tc.skb.data_end - tc.skb.data;
}

/* Receives a packet whose first `linear` bytes are linear. */
static void receive(const uint8_t *bytes, uint32_t length, uint32_t linear)
{
	memset(&tc, 0, sizeof(tc));
	set_linear(lay_out(bytes, length, linear), linear);
}

/* Moves bytes from the fragments until `length` bytes are linear. */
static long make_linear(uint32_t length)
{
	uint32_t linear = linear_bytes(), more;

	if (length > tc.skb.len)
		return -12;
	if (length <= linear)
		return 0;
	more = length - linear;
	ASAN_UNPOISON_MEMORY_REGION(ARENA, ARENA_BYTES);
	memcpy((void *)(uintptr_t)tc.skb.data_end, kernel.fragments, more);
	memmove(kernel.fragments, kernel.fragments + more, kernel.fragment_bytes - more);
	kernel.fragment_bytes -= more;
	set_linear(tc.skb.data, length);
	return 0;
}

long bpf_skb_load_bytes(const void *skb, __u32 offset, void *to, __u32 length)
{
	long failed = skb != &tc.skb || offset > 0xffff ||
		      load_bytes(tc.skb.data, linear_bytes(), offset, to, length);

	if (failed)
		memset(to, 0, length);
	return failed ? -14 : 0;
}

long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 offset, const void *from, __u32 length, __u64 flags)
{
	if (!length || flags & ~(__u64)(BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH))
		abort();
	if (make_linear(offset + length))
		return -14;
	memcpy((void *)(uintptr_t)(skb->data + offset), from, length);
	return 0;
}

long bpf_skb_pull_data(struct __sk_buff *skb, __u32 length)
{
	return make_linear(length ? length : skb->len);
}

long bpf_skb_change_tail(struct __sk_buff *skb, __u32 length, __u64 flags)
{
	uint32_t had = skb->len;

	if (flags || length > 2 * PACKET_MAX || length < ETH_HLEN || make_linear(skb->len))
		return -22;
	/* The kernel keeps the place of a pending checksum in the packet. */
	if (tc.checksum_pending && checksum_place() > 0 && length < (uint32_t)checksum_place() + 2)
		return -22;
	ASAN_UNPOISON_MEMORY_REGION(ARENA, ARENA_BYTES);
	if (length > had)
		memset((void *)(uintptr_t)skb->data_end, 0, length - had);
	set_linear(skb->data, length);
	skb->gso_size = 0;
	return 0;
}

#define ENCAPSULATION                                                                            \
	(BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | \
	 BPF_F_ADJ_ROOM_ENCAP_L2_ETH | BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN))
#define GSO_OF_SCTP 0xffff

/* Makes room for the headers of a tunnel behind the Ethernet header. */
static long make_room(uint32_t bytes)
{
	uint8_t *data = (uint8_t *)(uintptr_t)(tc.skb.data - bytes);

	if (tc.encapsulated)
		return -114;
	if (tc.skb.gso_size == GSO_OF_SCTP || make_linear(ETH_HLEN))
		return -95;
	ASAN_UNPOISON_MEMORY_REGION(ARENA, ARENA_BYTES);
	memmove(data, data + bytes, ETH_HLEN);
	memset(data + ETH_HLEN, 0, bytes);
	set_linear(tc.skb.data - bytes, linear_bytes() + bytes);
	tc.csum_start += bytes;
	tc.encapsulated = 1;
	return 0;
}

/* Supports only what the programs use: encapsulation, and removal of bytes behind the Ethernet header. */
long bpf_skb_adjust_room(struct __sk_buff *skb, __s32 delta, __u32 mode, __u64 flags)
{
	uint8_t *data = (uint8_t *)(uintptr_t)skb->data;
	uint32_t removed = -delta, header;

	if (mode != BPF_ADJ_ROOM_MAC || (delta > 0 && flags != ENCAPSULATION) ||
	    (delta < 0 && flags & ~(BPF_F_ADJ_ROOM_NO_CSUM_RESET | ADJUST_ROOM_DECAP_IPV6)))
		abort();
	if (data[12] == 0x08 && data[13] == 0x00)
		header = flags & ADJUST_ROOM_DECAP_IPV6 ? 40 : 20;
	else if (data[12] == 0x86 && data[13] == 0xdd)
		header = 40;
	else
		return -95;
	if (delta > 0)
		return make_room(delta);
	if (removed >= skb->len - ETH_HLEN || skb->len - ETH_HLEN - removed < header ||
	    make_linear(ETH_HLEN + removed))
		return -95;
	memmove(data + removed, data, ETH_HLEN);
	set_linear(skb->data + removed, linear_bytes() - removed);
	/* As skb_postpull_rcsum(): a checksum that began in what was removed is not computed any more. */
	tc.csum_start -= removed;
	if (tc.csum_start < 0)
		tc.checksum_pending = 0;
	return 0;
}

/* One changed byte cannot mark a packet: the checksum of its header would be wrong. */
long bpf_skb_ecn_set_ce(struct __sk_buff *skb)
{
	(void)skb;
	abort();
}

long bpf_csum_level(struct __sk_buff *skb, __u64 level)
{
	if (skb != &tc.skb || level != BPF_CSUM_LEVEL_DEC)
		abort();
	return 0;
}

long bpf_skb_change_type(struct __sk_buff *skb, __u32 type)
{
	skb->pkt_type = type;
	return 0;
}

static uint16_t fold(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

long bpf_l3_csum_replace(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 size)
{
	uint16_t *at = (uint16_t *)(uintptr_t)(skb->data + offset);

	if (size != 2)
		abort();
	if (offset & 1 || make_linear(offset + 2))
		return -14;
	*at = ~fold((uint64_t)(uint16_t) ~*at + (uint16_t)~from + (uint16_t)to);
	return 0;
}

long bpf_l4_csum_replace(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 flags)
{
	uint16_t *at = (uint16_t *)(uintptr_t)(skb->data + offset);
	uint32_t size = flags & BPF_F_HDR_FIELD_MASK;

	if (size && size != 2)
		abort();
	if (offset & 1 || make_linear(offset + 2))
		return -14;
	/* As inet_proto_csum_replace4(): the device will compute the checksum over the new bytes. */
	if (tc.checksum_pending)
		return 0;
	if (size)
		*at = ~fold((uint64_t)(uint16_t) ~*at + (uint16_t)~from + (uint16_t)to);
	else
		*at = ~fold((uint64_t)(uint16_t) ~*at + (uint32_t)to);
	return 0;
}

long bpf_redirect(__u32 ifindex, __u64 flags)
{
	tc.redirected_to = ifindex;
	return flags ? TC_ACT_SHOT : TC_ACT_REDIRECT;
}

/* No packet is examined but the one that a program returns. */
long bpf_clone_redirect(struct __sk_buff *skb, __u32 ifindex, __u64 flags)
{
	if (skb != &tc.skb || ifindex != skb->ifindex || flags)
		abort();
	return 0;
}

long bpf_redirect_peer(__u32 ifindex, __u64 flags)
{
	return bpf_redirect(ifindex, flags);
}

long bpf_skb_get_tunnel_key(struct __sk_buff *skb, struct bpf_tunnel_key *key, __u32 size, __u64 flags)
{
	if (skb != &tc.skb || size != sizeof(*key))
		abort();
	memset(key, 0, size);
	if (tc.key_family != (flags & BPF_F_TUNINFO_IPV6 ? 6 : 4))
		return tc.key_family ? -71 : -22;
	*key = tc.key;
	return 0;
}

long bpf_skb_set_tunnel_key(struct __sk_buff *skb, struct bpf_tunnel_key *key, __u32 size, __u64 flags)
{
	if (skb != &tc.skb || size != sizeof(*key))
		abort();
	tc.key = *key;
	tc.has_gbp = 0;
	tc.key_family = flags & BPF_F_TUNINFO_IPV6 ? 6 : 4;
	return 0;
}

long bpf_skb_get_tunnel_opt(struct __sk_buff *skb, void *option, __u32 size)
{
	if (skb != &tc.skb || size != sizeof(tc.gbp))
		abort();
	memset(option, 0, size);
	if (!tc.key_family || !tc.has_gbp)
		return -2;
	memcpy(option, &tc.gbp, size);
	return size;
}

long bpf_skb_set_tunnel_opt(struct __sk_buff *skb, void *option, __u32 size)
{
	if (skb != &tc.skb || size != sizeof(tc.gbp) || !tc.key_family)
		abort();
	memcpy(&tc.gbp, option, size);
	tc.has_gbp = 1;
	return 0;
}

#endif
