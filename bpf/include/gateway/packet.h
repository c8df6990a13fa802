/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Gateway: the state of a packet, which the stages of gateway.bpf.c fill in one after the other.
 *
 * Contract: packet_begin() gives it, with is_tunnel, error_type, error_mtu and public_vrf zero, and all else undefined:
 * zeroing all of it for each packet would take 3 ns. It is memory per CPU, because the verifier limits the
 * stack of all functions of a call chain together (docs/decisions/packet-memory.md); a CPU runs one
 * packet of the program at a time. Each stage states in its header which fields it fills in. Uses the
 * map `packets`.
 */
#ifndef SLUICE_PACKET_H
#define SLUICE_PACKET_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "common/flow_queue.h"
#include "common/frame.h"
#include "layout/cells.h"

struct packet {
	struct frame frame;    /* the tenant's frame; in answer_underlay.h the underlay's own */
	__u64 outer_source[2]; /* underlay address of the sender; as in struct frame */
	__u64 outer_source_mac;
	__u64 endpoint
		[2]; /* the instance that gets the packet, by an address of its own; as in struct frame */
	__u64 endpoint_mac;
	__u64 new_source[2]; /* addresses that translate() (translate.h) writes; as in struct frame */
	__u64 new_destination[2];
	__u64 internet_mac; /* of the Internet port by which the packet leaves */
	__u64 header[8];    /* copy of a header that translate.h changes */
	__u64 now_ns;	    /* CLOCK_MONOTONIC, coarse: one time for all stages */
	/* These are kept from packet to packet. */
	__u64 ticks; /* jiffies at which `now_ns` was read, which is kept as well */
	struct flow_sampler sampler;
	__u32 vni;	      /* in the VXLAN header that was received */
	__u32 vrf;	      /* cell of the struct vrf of `vni` */
	__u32 frame_bytes;    /* of the tenant's frame; to and from the Internet without padding */
	__u32 final_vni;      /* of the endpoint, behind peerings */
	__u32 final_vrf;      /* cell of the struct vrf of final_vni, of a packet to a public address */
	__u32 next_hop;	      /* cell of the endpoint's host */
	__u32 counters;	      /* as in struct vrf, of `vni` */
	__u32 elephant_bytes; /* as in struct vrf, of `vni` */
	__u32 verdict;	      /* XDP action of a packet that was sent */
	__u32 source_public; /* cell of the struct public_prefix of the source; 0: the source is not translated */
	__u32 destination_public;     /* likewise for the destination */
	__u32 public_vrf;	      /* of find_public_vrf() (lookup.h); 0: it was not looked up yet */
	__u32 internet_ifindex;	      /* of the Internet port by which the packet leaves */
	__u32 nat_gateway;	      /* cell of the struct nat_gateway that translates the source */
	__u32 peering[PEER_HOPS_MAX]; /* cells of the struct peering that the routes followed */
	__u32 next_option;	      /* offset of the TCP option that clamp_mss() (translate.h) reads next */
	__u16 longest; /* longest IP packet that the ways there and back carry, of a translated packet; in bytes */
	__u16 new_source_port; /* or identifier of ICMP: as the addresses, with PACKET_NAT_SOURCE; in host order */
	__u16 new_destination_port; /* the same with PACKET_NAT_DESTINATION */
	__u16 error_mtu;	    /* MTU that an ICMP error tells the sender */
	__u8 is_tunnel;		    /* VXLAN to this node */
	__u8 error_type;	    /* of the ICMP error that the sender gets; 0: none */
	__u16 mtu;		    /* of the endpoint's VPC; 0: no limit */
	__u16 udp_checksum;	    /* outer; as received */
	__u8 ipv6;		    /* the underlay packet is IPv6 */
	__u8 traffic_class;	    /* of the outer header */
	__u8 routed;		    /* sent to the router's MAC address; otherwise bridged within the VPC */
	__u8 endpoint_ipv6;	    /* `endpoint` is IPv6 */
	__u8 to_internet;	    /* the route has scope Internet */
	__u8 peerings;		    /* number of cells in `peering` */
	__u16 nat;		    /* PACKET_* */
	__u16 ring_path;	    /* UDP source port of a record (nat_ring.h), without VXLAN_SOURCE_MIN */
	__u8 ring; /* VXLAN reserved byte of a record; 0: the packet was received with none */
};

/* packet.nat; classify() (cgw.h) and take_over() (internet_in.h) clear it */
#define PACKET_FROM_GATEWAY 0x1	   /* another gateway has passed the packet on */
#define PACKET_TO_OWNER 0x2	   /* next_hop is a vIP, to the owner of which the packet is passed on */
#define PACKET_NAT_SOURCE 0x4	   /* source NAT has translated the source, and the port of the source */
#define PACKET_NAT_DESTINATION 0x8 /* the same for the destination */
#define PACKET_IN_RING 0x10	   /* the packet goes to the gateway in next_hop, with a record */
#define PACKET_NO_SESSION 0x20 /* with PACKET_NAT_SOURCE: by a port forward, so the packet has no session */
/* NAT64: the frame becomes one of the other family (nat64.h). New addresses are already of that one. */
#define PACKET_NAT64 0x40
/* This gateway has turned a packet of a VM to a public address into one of IPv4, which goes on as if it had come from the Internet. */
#define PACKET_TURNED 0x80
/* The source has a public address, but a session of source NAT that began before it had one comes first. */
#define PACKET_OLD_SESSION 0x100
/* With PACKET_OLD_SESSION: there is one, and another gateway owns it. */
#define PACKET_OWNED_ELSEWHERE 0x200

/*
 * Results of stages that are no verdicts: the program has to call the stage that is named next. The stages do not call each
 * other, because the verifier limits the stack of functions that call each other.
 */
#define FOR_UNDERLAY 0x100	  /* answer_underlay() */
#define FOR_INTERNET 0x200	  /* send_to_internet() */
#define FOR_NAT_SOURCE 0x300	  /* nat_source(), and then send_to_internet() again */
#define FOR_NAT_DESTINATION 0x400 /* nat_destination(), and then send_to_internet() again or enter_vpc() */
#define FOR_VPC 0x500		  /* enter_vpc() */
#define FOR_OWNER 0x600		  /* pass_on() */
#define FOR_PASSED_ON 0x700	  /* take_over(), and then as for internet_in() */
#define FOR_RING 0x800		  /* pass_around() */
#define FOR_TURNED 0x900	  /* turn_over(), and then as for internet_in() */
#define FOR_NAT64_OUT 0xa00	  /* nat64_out(), and then leave_as_ipv4() */
#define FOR_NAT64_IN 0xb00	  /* nat64_in(), and then deliver_inside() */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet);
} packets SEC(".maps");

/* The memory for the state of packets. It is never NULL, but the verifier wants that to be handled. */
static __always_inline struct packet *packet_memory(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&packets, &zero);
}

/* The state of a new packet. NULL as for packet_memory(). */
static __always_inline struct packet *packet_begin(void)
{
	struct packet *packet = packet_memory();

	if (packet) {
		packet->error_mtu = 0;
		packet->public_vrf = 0;
		packet->is_tunnel = 0;
		packet->error_type = 0;
	}
	return packet;
}

/*
 * Reads the coarse clock, whose time stays the same within a tick of the kernel's timer: it is asked only when the
 * number of ticks has changed, which is one load instead of a call. The number changes before the clock does, so
 * the time may be that of the tick before.
 */
static __always_inline __u64 coarse_now(struct packet *packet)
{
	__u64 ticks = bpf_jiffies64();

	if (packet->ticks != ticks) {
		packet->ticks = ticks;
		packet->now_ns = bpf_ktime_get_coarse_ns();
	}
	return packet->now_ns;
}

#endif
