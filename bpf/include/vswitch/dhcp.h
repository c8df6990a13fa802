/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * DHCPv4 for a port (RFC 2131, 2132, 6842). A port has one address, so there is
 * nothing to allocate: the request is read, and the answer says what the
 * controller decided. Options stand at fixed places of the answer; those that
 * do not apply stay zero, which is padding.
 */
#ifndef SLUICE_DHCP_H
#define SLUICE_DHCP_H

#include "vswitch/reply.h"

#define DHCP_SERVER_PORT 67
#define DHCP_CLIENT_PORT 68
#define DHCP6_CLIENT_PORT 546
#define DHCP_COOKIE 0x63825363
#define DHCP_BROADCAST 0x8000

enum dhcp_type {
	DHCP_DISCOVER = 1,
	DHCP_OFFER = 2,
	DHCP_REQUEST = 3,
	DHCP_DECLINE = 4,
	DHCP_ACK = 5,
	DHCP_NAK = 6,
	DHCP_RELEASE = 7,
	DHCP_INFORM = 8,
};

enum dhcp_code {
	DHCP_PAD = 0,
	DHCP_MASK = 1,
	DHCP_ROUTER = 3,
	DHCP_DNS = 6,
	DHCP_MTU = 26,
	DHCP_REQUESTED = 50,
	DHCP_LEASE = 51,
	DHCP_TYPE = 53,
	DHCP_SERVER = 54,
	DHCP_CLIENT_ID = 61,
	DHCP_END = 255,
};

/* A client sends about ten options; what stands behind this many is malformed. */
#define DHCP_OPTIONS_MAX 64
/* Longer client identifiers are legal, unheard of, and not echoed. */
#define DHCP_CLIENT_ID_MAX 64

struct bootp {
	__u8 op;
	__u8 htype;
	__u8 hlen;
	__u8 hops;
	__be32 xid;
	__be16 secs;
	__be16 flags;
	__be32 ciaddr;
	__be32 yiaddr;
	__be32 siaddr;
	__be32 giaddr;
	__u8 chaddr[16];
	__u8 sname[64];
	__u8 file[128];
	__be32 cookie;
} __attribute__((packed, aligned(2)));

struct dhcp_option4 {
	__u8 code;
	__u8 length;
	__be32 value;
} __attribute__((packed, aligned(2)));

struct dhcp_frame {
	struct ethhdr eth;
	struct ipv4_head ip;
	__be16 source_port;
	__be16 destination_port;
	__be16 udp_bytes;
	__u16 udp_checksum;
	struct bootp bootp;
	__u8 type[3]; /* code, length, value; and a pad to keep the rest even */
	__u8 pad;
	struct dhcp_option4 server;
	struct dhcp_option4 lease;
	struct dhcp_option4 mask;
	struct dhcp_option4 router;
	__u8 mtu[4];
	__u8 dns[10];
	__u8 client_id[2 + DHCP_CLIENT_ID_MAX];
	__u8 end[2];
} __attribute__((packed, aligned(2)));

#define DHCP_UDP_BYTES (sizeof(struct dhcp_frame) - ETH_HLEN - IPV4_BYTES)
_Static_assert(sizeof(struct bootp) == 240, "RFC 2131 figure 1 and the magic cookie");

/* What is kept of a request. All addresses in network order. */
struct dhcp_request {
	__be32 xid;
	__be32 ciaddr;
	__be32 requested;
	__be32 server;
	__be16 flags;
	__u8 type;
	__u8 client_id_bytes;
	__u8 client_id[DHCP_CLIENT_ID_MAX];
};

/* Reads one option at `at`. Its whole length, or 0: this is the end, or negative: malformed. */
static __always_inline int dhcp_option(struct __sk_buff *skb, __u32 at, struct dhcp_request *request)
{
	__u8 head[2] = {};

	if (bpf_skb_load_bytes(skb, at, head, 1))
		return -1;
	if (head[0] == DHCP_PAD)
		return 1;
	if (head[0] == DHCP_END)
		return 0;
	if (bpf_skb_load_bytes(skb, at, head, 2))
		return -1;
	if (at + 2 + head[1] > skb->len)
		return -1;
	if (head[0] == DHCP_TYPE) {
		if (head[1] != 1 || bpf_skb_load_bytes(skb, at + 2, &request->type, 1))
			return -1;
	} else if (head[0] == DHCP_REQUESTED) {
		if (head[1] != 4 || bpf_skb_load_bytes(skb, at + 2, &request->requested, 4))
			return -1;
	} else if (head[0] == DHCP_SERVER) {
		if (head[1] != 4 || bpf_skb_load_bytes(skb, at + 2, &request->server, 4))
			return -1;
	} else if (head[0] == DHCP_CLIENT_ID) {
		__u32 bytes = head[1];

		if (bytes < 2)
			return -1;
		if (bytes <= DHCP_CLIENT_ID_MAX) {
			if (bpf_skb_load_bytes(skb, at + 2, request->client_id, bytes))
				return -1;
			request->client_id_bytes = bytes;
		}
	}
	return 2 + head[1];
}

/* `at`: where the BOOTP header stands. */
static __always_inline enum drop_reason dhcp_read(struct __sk_buff *skb, __u32 at,
						  const struct port *port,
						  struct dhcp_request *request)
{
	struct {
		__u8 op, htype, hlen, hops;
		__be32 xid;
		__be16 secs, flags;
		__be32 ciaddr, yiaddr, siaddr, giaddr;
		__u8 chaddr[8];
	} head;
	__be32 cookie;

	if (bpf_skb_load_bytes(skb, at, &head, sizeof(head)) ||
	    bpf_skb_load_bytes(skb, at + sizeof(struct bootp) - 4, &cookie, 4))
		return DROP_dhcp_malformed;
	if (head.op == 2)
		return DROP_forged_control;
	/* A VM is no relay: giaddr would have the answer sent elsewhere. */
	if (head.op != 1 || head.htype != 1 || head.hlen != 6 || head.giaddr ||
	    cookie != bpf_htonl(DHCP_COOKIE))
		return DROP_dhcp_malformed;
	if (load_mac(head.chaddr) != load_mac(port->mac))
		return DROP_spoofed_mac;
	request->xid = head.xid;
	request->flags = head.flags;
	request->ciaddr = head.ciaddr;
	at += sizeof(struct bootp);
	for (int i = 0; i < DHCP_OPTIONS_MAX; i++) {
		int bytes = dhcp_option(skb, at, request);

		if (bytes < 0)
			return DROP_dhcp_malformed;
		if (!bytes)
			return DROP_none;
		at += bytes;
	}
	return DROP_dhcp_malformed;
}

/* RFC 2131 section 4.3: which answer, 0: none, negative: the request contradicts itself. */
static __always_inline int dhcp_decide(const struct dhcp_request *request, const struct port *port)
{
	__be32 asked = request->ciaddr ? request->ciaddr : request->requested;

	switch (request->type) {
	case DHCP_DISCOVER:
		return DHCP_OFFER;
	case DHCP_INFORM:
		return request->ciaddr == port->address4 ? DHCP_ACK : -1;
	case DHCP_RELEASE:
	case DHCP_DECLINE:
		return 0;
	case DHCP_REQUEST:
		if (request->server && request->server != port->router4)
			return 0; /* it chose another server: not our business */
		if (!asked)
			return -1;
		return asked == port->address4 ? DHCP_ACK : DHCP_NAK;
	default:
		return -1;
	}
}

static __always_inline void dhcp_write_bootp(struct bootp *bootp, const struct dhcp_request *request,
					     const struct port *port, int answer)
{
	bootp->op = 2;
	bootp->htype = 1;
	bootp->hlen = 6;
	/* Up to `flags` lies what reply_begin() leaves as it was. */
	bootp->hops = 0;
	bootp->xid = request->xid;
	bootp->secs = 0;
	bootp->flags = request->flags;
	if (answer == DHCP_ACK)
		bootp->ciaddr = request->ciaddr;
	if (answer != DHCP_NAK && request->type != DHCP_INFORM)
		bootp->yiaddr = port->address4;
	__builtin_memcpy(bootp->chaddr, port->mac, 6);
	bootp->cookie = bpf_htonl(DHCP_COOKIE);
}

static __always_inline void dhcp_option4_write(struct dhcp_option4 *option, __u8 code, __be32 value)
{
	option->code = code;
	option->length = 4;
	option->value = value;
}

static __always_inline void dhcp_write_options(struct dhcp_frame *frame,
					       const struct dhcp_request *request,
					       const struct port *port, const struct port *service,
					       int answer)
{
	frame->type[0] = DHCP_TYPE;
	frame->type[1] = 1;
	frame->type[2] = answer;
	dhcp_option4_write(&frame->server, DHCP_SERVER, port->router4);
	if (request->client_id_bytes) {
		frame->client_id[0] = DHCP_CLIENT_ID;
		frame->client_id[1] = request->client_id_bytes;
		__builtin_memcpy(frame->client_id + 2, request->client_id, DHCP_CLIENT_ID_MAX);
	}
	frame->end[0] = DHCP_END;
	if (answer == DHCP_NAK)
		return;
	if (request->type != DHCP_INFORM)
		dhcp_option4_write(&frame->lease, DHCP_LEASE, bpf_htonl(service->lease_s));
	dhcp_option4_write(&frame->mask, DHCP_MASK,
			   bpf_htonl((__u32)(0xffffffff00000000ull >> (service->length4 & 63))));
	dhcp_option4_write(&frame->router, DHCP_ROUTER, port->router4);
	frame->mtu[0] = DHCP_MTU;
	frame->mtu[1] = 2;
	frame->mtu[2] = port->mtu >> 8;
	frame->mtu[3] = (__u8)port->mtu;
	if (service->dns4[0]) {
		__be32 second = service->dns4[1];

		frame->dns[0] = DHCP_DNS;
		frame->dns[1] = second ? 8 : 4;
		__builtin_memcpy(frame->dns + 2, &service->dns4[0], 4);
		__builtin_memcpy(frame->dns + 6, &second, 4);
	}
}

/* RFC 2131 section 4.1: to ciaddr, or where the client can hear it. */
static __always_inline void dhcp_write_headers(struct dhcp_frame *frame,
					       const struct dhcp_request *request,
					       const struct port *port,
					       const struct node_config *node, int answer)
{
	int broadcast = answer == DHCP_NAK ||
			(!request->ciaddr && request->flags & bpf_htons(DHCP_BROADCAST));

	reply_ethernet(&frame->eth, port, node, ETH_P_IP);
	if (broadcast)
		__builtin_memset(frame->eth.h_dest, 0xff, ETH_ALEN);
	reply_ipv4(&frame->ip, sizeof(*frame) - ETH_HLEN, IPPROTO_UDP, port->router4,
		   broadcast ? 0xffffffff : port->address4);
	frame->source_port = bpf_htons(DHCP_SERVER_PORT);
	frame->destination_port = bpf_htons(DHCP_CLIENT_PORT);
	frame->udp_bytes = bpf_htons(DHCP_UDP_BYTES);
	frame->udp_checksum = 0;
}

static __always_inline int dhcp_send(struct __sk_buff *skb, const struct dhcp_request *request,
				     __u32 port_cell, int answer)
{
	const struct port *port = vm_port_at(port_cell);
	const struct port *service = vm_port_service_at(port_cell);
	const struct node_config *node = node_at();
	struct dhcp_frame *frame = (void *)(long)skb->data;

	if (!port || !service || !node || (void *)(frame + 1) > (void *)(long)skb->data_end)
		return -1;
	dhcp_write_bootp(&frame->bootp, request, port, answer);
	dhcp_write_options(frame, request, port, service, answer);
	dhcp_write_headers(frame, request, port, node, answer);
	/* The IPv4 addresses stand right before UDP. */
	return reply_checksum(skb, ETH_HLEN + 12, 8 + DHCP_UDP_BYTES,
			      (__u64)bpf_htons(DHCP_UDP_BYTES) + bpf_htons(IPPROTO_UDP),
			      __builtin_offsetof(struct dhcp_frame, udp_checksum));
}

/* Answers a DHCP packet of the VM; `at`: where its BOOTP header stands. */
__attribute__((noinline)) int dhcp_answer(struct __sk_buff *skb, __u32 port_cell, __u32 at)
{
	const struct port *port = vm_port_at(port_cell);
	struct dhcp_request request = {};
	enum drop_reason reason;
	int answer;

	if (!port)
		return port_drop(0, DROP_stale_index);
	reason = dhcp_read(skb, at, port, &request);
	if (reason)
		return port_drop(port->vni, reason);
	answer = dhcp_decide(&request, port);
	if (answer < 0)
		return port_drop(port->vni, DROP_dhcp_malformed);
	if (!answer)
		return ABSORBED;
	if (reply_begin(skb, sizeof(struct dhcp_frame)) ||
	    dhcp_send(skb, &request, port_cell, answer))
		return port_drop(port->vni, DROP_headroom);
	return reply_send(skb);
}

#endif
