/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: the DHCPv4 server of a port (RFC 2131, 2132, 6842). A port has one address, so there is
 * nothing to allocate: the answer is what the controller decided. The options of the answer are at
 * fixed places. Those that do not apply stay zero, which is padding.
 *
 * Contract: a UDP packet from the VM to the server's port, not fragmented. dhcp_answer() returns the
 * verdict: the packet was turned into the answer and is sent to the VM, or it was absorbed, or dropped
 * and counted. Uses the maps `cells`, `dhcp_requests`, and those of reply.h and count.h.
 */
#ifndef SLUICE_DHCP_H
#define SLUICE_DHCP_H

#include "vswitch/reply.h"

#define DHCP_SERVER_PORT 67
#define DHCP_CLIENT_PORT 68
#define DHCP_COOKIE 0x63825363
#define DHCP_BROADCAST 0x8000

#define BOOTP_REQUEST 1
#define BOOTP_REPLY 2
#define BOOTP_ETHERNET 1

enum dhcp_type {
	DHCP_NO_ANSWER = 0, /* not in the RFC: dhcp_decide() */
	DHCP_DISCOVER = 1,
	DHCP_OFFER = 2,
	DHCP_REQUEST = 3,
	DHCP_DECLINE = 4,
	DHCP_ACK = 5,
	DHCP_NAK = 6,
	DHCP_RELEASE = 7,
	DHCP_INFORM = 8,
	DHCP_CONTRADICTION = 256, /* not in the RFC: dhcp_decide() */
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

/* A client sends about ten options. A request with more than this many is malformed. */
#define DHCP_OPTIONS_MAX 64
/* Longer client identifiers are allowed, but unusual, and the answer does not repeat them. */
#define DHCP_CLIENT_ID_MAX 64

/* The beginning of a BOOTP message, with as much of the client's hardware address as Ethernet may use. */
struct bootp_start {
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
	__u8 chaddr[8];
};

struct bootp {
	struct bootp_start start;
	__u8 chaddr_rest[8];
	__u8 sname[64];
	__u8 file[128];
	__be32 cookie;
};

struct dhcp_option4 {
	__u8 code;
	__u8 length;
	__be32 value;
} __attribute__((packed, aligned(2)));

/* The options of an answer. */
struct dhcp_options {
	__u8 type[3]; /* code, length, value */
	__u8 pad;     /* makes the offsets of the others even */
	struct dhcp_option4 server;
	struct dhcp_option4 lease;
	struct dhcp_option4 mask;
	struct dhcp_option4 router;
	__u8 mtu[4];
	__u8 dns[10];
	__u8 client_id[2 + DHCP_CLIENT_ID_MAX];
	__u8 end[2];
} __attribute__((packed, aligned(2)));

#define DHCP_UDP_BYTES (UDP_BYTES + sizeof(struct bootp) + sizeof(struct dhcp_options))
#define DHCP_FRAME_BYTES (ETH_HLEN + IPV4_BYTES + DHCP_UDP_BYTES)
_Static_assert(sizeof(struct bootp) == 240, "RFC 2131 figure 1 and the magic cookie");

/* The fields of a request that the answer depends on. Addresses are in network order. */
struct dhcp_request {
	__be32 xid;
	__be32 ciaddr;
	__be32 requested;
	__be32 server;
	__be16 flags;
	__u8 type; /* enum dhcp_type */
	__u8 client_id_bytes;
	__u8 client_id[DHCP_CLIENT_ID_MAX];
};

/* The request that is being answered: memory per CPU, as `frames` of port.h. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dhcp_request);
} dhcp_requests SEC(".maps");

static __always_inline struct dhcp_request *dhcp_request_begin(void)
{
	__u32 zero = 0;
	struct dhcp_request *request = bpf_map_lookup_elem(&dhcp_requests, &zero);

	if (request)
		__builtin_memset(request, 0, sizeof(*request));
	return request;
}

#define DHCP_OPTIONS_END 0
#define DHCP_OPTION_MALFORMED (-1)

/* Reads the option at `at`. Returns its length, code included, or one of the two numbers above. */
static __always_inline int dhcp_option(struct __sk_buff *skb, __u32 at, struct dhcp_request *request)
{
	struct {
		__u8 code;
		__u8 length;
	} option = {};
	__u32 value = at + sizeof(option);

	if (context_load(skb, at, &option, 1))
		return DHCP_OPTION_MALFORMED;
	if (option.code == DHCP_PAD)
		return 1;
	if (option.code == DHCP_END)
		return DHCP_OPTIONS_END;
	if (context_load(skb, at, &option, sizeof(option)) || value + option.length > skb->len)
		return DHCP_OPTION_MALFORMED;
	if (option.code == DHCP_TYPE) {
		if (option.length != 1 || context_load(skb, value, &request->type, 1))
			return DHCP_OPTION_MALFORMED;
	} else if (option.code == DHCP_REQUESTED) {
		if (option.length != 4 || context_load(skb, value, &request->requested, 4))
			return DHCP_OPTION_MALFORMED;
	} else if (option.code == DHCP_SERVER) {
		if (option.length != 4 || context_load(skb, value, &request->server, 4))
			return DHCP_OPTION_MALFORMED;
	} else if (option.code == DHCP_CLIENT_ID) {
		__u32 bytes = option.length;

		if (bytes < 2)
			return DHCP_OPTION_MALFORMED;
		if (bytes <= DHCP_CLIENT_ID_MAX) {
			if (context_load(skb, value, request->client_id, bytes))
				return DHCP_OPTION_MALFORMED;
			request->client_id_bytes = bytes;
		}
	}
	return sizeof(option) + option.length;
}

/* Reads the request whose BOOTP message begins at `at`. */
static __always_inline enum drop_reason dhcp_read(struct __sk_buff *skb, __u32 at, const struct port *port,
						  struct dhcp_request *request)
{
	struct bootp_start start;
	__be32 cookie;

	if (context_load(skb, at, &start, sizeof(start)) ||
	    context_load(skb, at + __builtin_offsetof(struct bootp, cookie), &cookie, sizeof(cookie)))
		return DROP_dhcp_malformed;
	if (start.op == BOOTP_REPLY)
		return DROP_forged_control;
	/* A VM is not a relay: with a giaddr, the answer would have to be sent to that address. */
	if (start.op != BOOTP_REQUEST || start.htype != BOOTP_ETHERNET || start.hlen != ETH_ALEN ||
	    start.giaddr || cookie != bpf_htonl(DHCP_COOKIE))
		return DROP_dhcp_malformed;
	if (load_mac(start.chaddr) != load_mac(port->mac))
		return DROP_spoofed_mac;
	request->xid = start.xid;
	request->flags = start.flags;
	request->ciaddr = start.ciaddr;
	at += sizeof(struct bootp);
	for (int i = 0; i < DHCP_OPTIONS_MAX; i++) {
		int bytes = dhcp_option(skb, at, request);

		if (bytes == DHCP_OPTION_MALFORMED)
			return DROP_dhcp_malformed;
		if (bytes == DHCP_OPTIONS_END)
			return DROP_none;
		at += bytes;
	}
	return DROP_dhcp_malformed;
}

/*
 * The answer to a request (RFC 2131 section 4.3): its type, DHCP_NO_ANSWER, or DHCP_CONTRADICTION for a
 * request that contradicts itself.
 */
static __always_inline enum dhcp_type dhcp_decide(const struct dhcp_request *request, const struct port *port)
{
	__be32 asked = request->ciaddr ? request->ciaddr : request->requested;

	switch (request->type) {
	case DHCP_DISCOVER:
		return DHCP_OFFER;
	case DHCP_INFORM:
		return request->ciaddr == port->address4 ? DHCP_ACK : DHCP_CONTRADICTION;
	case DHCP_RELEASE:
	case DHCP_DECLINE:
		return DHCP_NO_ANSWER;
	case DHCP_REQUEST:
		if (request->server && request->server != port->router4)
			return DHCP_NO_ANSWER; /* the client chose another server */
		if (!asked)
			return DHCP_CONTRADICTION;
		return asked == port->address4 ? DHCP_ACK : DHCP_NAK;
	default:
		return DHCP_CONTRADICTION;
	}
}

/* Writes the BOOTP message. What it does not store is zero, from `flags` on (reply_begin()). */
static __always_inline void dhcp_write_bootp(struct bootp *bootp, const struct dhcp_request *request,
					     const struct port *port, enum dhcp_type answer)
{
	bootp->start.op = BOOTP_REPLY;
	bootp->start.htype = BOOTP_ETHERNET;
	bootp->start.hlen = ETH_ALEN;
	bootp->start.hops = 0;
	bootp->start.xid = request->xid;
	bootp->start.secs = 0;
	bootp->start.flags = request->flags;
	if (answer == DHCP_ACK)
		bootp->start.ciaddr = request->ciaddr;
	if (answer != DHCP_NAK && request->type != DHCP_INFORM)
		bootp->start.yiaddr = port->address4;
	__builtin_memcpy(bootp->start.chaddr, port->mac, ETH_ALEN);
	bootp->cookie = bpf_htonl(DHCP_COOKIE);
}

static __always_inline void dhcp_write_option4(struct dhcp_option4 *option, enum dhcp_code code, __be32 value)
{
	option->code = code;
	option->length = sizeof(value);
	option->value = value;
}

/* Writes the options, whose memory is zero. */
static __always_inline void dhcp_write_options(struct dhcp_options *options,
					       const struct dhcp_request *request, const struct port *port,
					       const struct port *service, enum dhcp_type answer)
{
	options->type[0] = DHCP_TYPE;
	options->type[1] = 1;
	options->type[2] = answer;
	dhcp_write_option4(&options->server, DHCP_SERVER, port->router4);
	if (request->client_id_bytes) {
		options->client_id[0] = DHCP_CLIENT_ID;
		options->client_id[1] = request->client_id_bytes;
		__builtin_memcpy(options->client_id + 2, request->client_id, DHCP_CLIENT_ID_MAX);
	}
	options->end[0] = DHCP_END;
	if (answer == DHCP_NAK)
		return;
	if (request->type != DHCP_INFORM)
		dhcp_write_option4(&options->lease, DHCP_LEASE, bpf_htonl(service->lease_s));
	dhcp_write_option4(&options->mask, DHCP_MASK,
			   bpf_htonl((__u32)(0xffffffff00000000ull >> (service->length4 & 63))));
	dhcp_write_option4(&options->router, DHCP_ROUTER, port->router4);
	options->mtu[0] = DHCP_MTU;
	options->mtu[1] = 2;
	options->mtu[2] = port->mtu >> 8;
	options->mtu[3] = (__u8)port->mtu;
	if (service->dns4[0]) {
		__be32 second = service->dns4[1];

		options->dns[0] = DHCP_DNS;
		options->dns[1] = second ? 8 : 4;
		__builtin_memcpy(options->dns + 2, &service->dns4[0], 4);
		__builtin_memcpy(options->dns + 6, &second, 4);
	}
}

/* Writes Ethernet, IPv4 and UDP: to ciaddr, or to where the client can receive it (RFC 2131 section 4.1). */
static __always_inline void dhcp_write_headers(struct cursor *cursor, const struct dhcp_request *request,
					       const struct port *port, const struct node_config *node,
					       enum dhcp_type answer)
{
	struct ethernet_header *ethernet = next_header(cursor, struct ethernet_header);
	struct ipv4_header *ip = next_header(cursor, struct ipv4_header);
	struct udp_header *udp = next_header(cursor, struct udp_header);
	int broadcast =
		answer == DHCP_NAK || (!request->ciaddr && request->flags & bpf_htons(DHCP_BROADCAST));

	reply_ethernet(ethernet, port, node, ETH_P_IP);
	if (broadcast)
		__builtin_memset(ethernet->destination, 0xff, ETH_ALEN);
	write_ipv4(ip, &(struct ipv4_fields){
			       .bytes = IPV4_BYTES + DHCP_UDP_BYTES,
			       .fragment = IPV4_DF,
			       .ttl = REPLY_TTL,
			       .protocol = IPPROTO_UDP,
			       .source = port->router4,
			       .destination = broadcast ? 0xffffffff : port->address4,
		       });
	udp->source = bpf_htons(DHCP_SERVER_PORT);
	udp->destination = bpf_htons(DHCP_CLIENT_PORT);
	udp->bytes = bpf_htons(DHCP_UDP_BYTES);
	udp->checksum = 0;
}

/* Writes the answer into the packet, which has DHCP_FRAME_BYTES. 0, or negative if it failed. */
static __always_inline long dhcp_write(struct __sk_buff *skb, const struct dhcp_request *request,
				       __u32 port_cell, enum dhcp_type answer)
{
	const __u32 udp_at = ETH_HLEN + IPV4_BYTES;
	const __u32 addresses = ETH_HLEN + __builtin_offsetof(struct ipv4_header, source);
	const struct port *port = vm_port_at(port_cell);
	const struct port *service = vm_port_service_at(port_cell);
	const struct node_config *node = node_at();
	struct cursor cursor = cursor_at(skb, 0);

	if (!port || !service || !node || !cursor_has(&cursor, DHCP_FRAME_BYTES))
		return -1;
	dhcp_write_headers(&cursor, request, port, node, answer);
	dhcp_write_bootp(next_header(&cursor, struct bootp), request, port, answer);
	dhcp_write_options(next_header(&cursor, struct dhcp_options), request, port, service, answer);
	return reply_checksum(skb, addresses, udp_at + DHCP_UDP_BYTES - addresses,
			      (__u64)bpf_htons(DHCP_UDP_BYTES) + bpf_htons(IPPROTO_UDP),
			      udp_at + __builtin_offsetof(struct udp_header, checksum));
}

/* Answers the VM's request, whose BOOTP message begins at `at`. */
__attribute__((noinline)) int dhcp_answer(struct __sk_buff *skb, __u32 port_cell, __u32 at)
{
	const struct port *port = vm_port_at(port_cell);
	struct dhcp_request *request = dhcp_request_begin();
	enum drop_reason reason;
	enum dhcp_type answer;

	if (!port || !request)
		return port_drop(0, DROP_stale_index);
	reason = dhcp_read(skb, at, port, request);
	if (reason)
		return port_drop(port->vni, reason);
	answer = dhcp_decide(request, port);
	if (answer == DHCP_CONTRADICTION)
		return port_drop(port->vni, DROP_dhcp_malformed);
	if (answer == DHCP_NO_ANSWER)
		return VERDICT_ABSORBED;
	reason = reply_begin(skb, DHCP_FRAME_BYTES);
	if (reason)
		return port_drop(port->vni, reason);
	if (dhcp_write(skb, request, port_cell, answer))
		return port_drop(port->vni, DROP_headroom);
	return reply_send(skb);
}

#endif
