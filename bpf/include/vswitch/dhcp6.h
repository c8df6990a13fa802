/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: the DHCPv6 server of a port (RFC 8415). A port has one address, so there is nothing to allocate,
 * and nothing is remembered about a client: the first IA_NA of a message gets the address, all other IAs are
 * refused. The router's MAC address, which is the server's DUID, is the same on all hosts, so a VM that moves
 * keeps its server.
 *
 * Contract: a packet of is_dhcp6_request() to the server's port, from a port with an IPv6 address.
 * dhcp6_answer() returns the verdict: the packet was turned into the answer and is sent to the VM, or it was
 * absorbed, or dropped and counted. Uses the maps `cells`, `dhcp6_requests`, and those of reply.h and count.h.
 */
#ifndef SLUICE_DHCP6_H
#define SLUICE_DHCP6_H

#include "vswitch/reply.h"

#define DHCP6_CLIENT_PORT 546
#define DHCP6_SERVER_PORT 547
/* ff02::1:2, all servers of the link. */
#define DHCP6_SERVERS_HIGH 0xff02000000000000ull
#define DHCP6_SERVERS_LOW 0x10002ull

enum dhcp6_type {
	DHCP6_NO_ANSWER = 0, /* not in the RFC: dhcp6_decide() */
	DHCP6_SOLICIT = 1,
	DHCP6_ADVERTISE = 2,
	DHCP6_REQUEST = 3,
	DHCP6_CONFIRM = 4,
	DHCP6_RENEW = 5,
	DHCP6_REBIND = 6,
	DHCP6_REPLY = 7,
	DHCP6_RELEASE = 8,
	DHCP6_DECLINE = 9,
	DHCP6_RECONFIGURE = 10,
	DHCP6_INFORMATION = 11,
	DHCP6_RELAY_REPLY = 13,
};

#define DHCP6_BIT(type) (1u << (type))
/* Types of a server or a relay, which only the network may send to a VM. */
#define DHCP6_OF_SERVERS                                                                      \
	(DHCP6_BIT(DHCP6_ADVERTISE) | DHCP6_BIT(DHCP6_REPLY) | DHCP6_BIT(DHCP6_RECONFIGURE) | \
	 DHCP6_BIT(DHCP6_RELAY_REPLY))
/* Types by the identifiers that a message must and must not have (RFC 8415 section 16). */
#define DHCP6_TO_ONE_SERVER                                                             \
	(DHCP6_BIT(DHCP6_REQUEST) | DHCP6_BIT(DHCP6_RENEW) | DHCP6_BIT(DHCP6_RELEASE) | \
	 DHCP6_BIT(DHCP6_DECLINE))
#define DHCP6_TO_ANY_SERVER (DHCP6_BIT(DHCP6_SOLICIT) | DHCP6_BIT(DHCP6_CONFIRM) | DHCP6_BIT(DHCP6_REBIND))
#define DHCP6_OF_CLIENTS (DHCP6_TO_ONE_SERVER | DHCP6_TO_ANY_SERVER | DHCP6_BIT(DHCP6_INFORMATION))

enum dhcp6_code {
	DHCP6_CLIENT_ID = 1,
	DHCP6_SERVER_ID = 2,
	DHCP6_IA_NA = 3,
	DHCP6_IA_TA = 4,
	DHCP6_IA_ADDRESS = 5,
	DHCP6_PREFERENCE = 7,
	DHCP6_STATUS = 13,
	DHCP6_RAPID_COMMIT = 14,
	DHCP6_IA_PD = 25,
};

enum dhcp6_status_code {
	DHCP6_SUCCESS = 0,
	DHCP6_NO_ADDRS_AVAIL = 2,
	DHCP6_NO_BINDING = 3,
	DHCP6_NOT_ON_LINK = 4,
	DHCP6_NO_PREFIX_AVAIL = 6,
};

/* A client sends about ten options. A message with more than this many, those within IAs included, is malformed. */
#define DHCP6_OPTIONS_MAX 32
/* A client has an IA_NA, and perhaps an IA_TA and an IA_PD. A message with more IAs than this is malformed. */
#define DHCP6_IAS_MAX 4
/* So is one that lists more addresses in its first IA_NA that are not the port's. */
#define DHCP6_OTHERS_MAX 4
/* RFC 8415 section 11.1: 128 bytes behind the type. */
#define DHCP6_CLIENT_ID_MAX 130
#define DHCP6_CLIENT_ID_MIN 3

/* The start of a message: the type in the first byte, and the client's number of the exchange. */
struct dhcp6_start {
	__u8 type;
	__u8 transaction[3];
};

struct dhcp6_option {
	__be16 code;
	__be16 bytes; /* behind this header */
};

/* A DUID-LL (RFC 8415 section 11.4). */
struct dhcp6_server_id {
	struct dhcp6_option option;
	__be16 type;
	__be16 hardware;
	__u8 mac[ETH_ALEN];
};

#define DHCP6_DUID_LL 3
#define DHCP6_ETHERNET 1

struct dhcp6_status {
	struct dhcp6_option option;
	__be16 code;
};

/* IA_NA and IA_PD. An IA_TA ends behind `iaid`. */
struct dhcp6_ia {
	struct dhcp6_option option;
	__be32 iaid;
	__be32 renew_s;
	__be32 rebind_s;
};

#define DHCP6_IA_VALUE (sizeof(struct dhcp6_ia) - sizeof(struct dhcp6_option))
#define DHCP6_IA_TA_VALUE sizeof(__be32)

struct dhcp6_address {
	struct dhcp6_option option;
	__be32 address[4];
	__be32 preferred_s;
	__be32 valid_s;
};

#define DHCP6_ADDRESS_VALUE (sizeof(struct dhcp6_address) - sizeof(struct dhcp6_option))

/* Where an answer's message begins. */
#define DHCP6_MESSAGE_AT (ETH_HLEN + IPV6_BYTES + UDP_BYTES)
/* The longest answer: both identifiers, Preference or Rapid Commit, a status, and all IAs, one with addresses. */
#define DHCP6_FRAME_MAX                                                                        \
	(DHCP6_MESSAGE_AT + sizeof(struct dhcp6_start) + sizeof(struct dhcp6_server_id) +      \
	 sizeof(struct dhcp6_option) + DHCP6_CLIENT_ID_MAX + sizeof(struct dhcp6_option) + 1 + \
	 sizeof(struct dhcp6_status) +                                                         \
	 DHCP6_IAS_MAX * (sizeof(struct dhcp6_ia) + sizeof(struct dhcp6_status)) +             \
	 (1 + DHCP6_OTHERS_MAX) * sizeof(struct dhcp6_address))
/* So it fits the smallest MTU of IPv6. */
_Static_assert(DHCP6_FRAME_MAX - ETH_HLEN <= 1280, "longest answer");

#define DHCP6_HAS_CLIENT_ID 0x01
#define DHCP6_HAS_SERVER_ID 0x02
#define DHCP6_OTHER_SERVER 0x04	 /* the server identifier is not this server's */
#define DHCP6_HAS_RAPID 0x08	 /* Rapid Commit */
#define DHCP6_LISTS_OWN 0x10	 /* some IA lists the port's address */
#define DHCP6_LISTS_OTHER 0x20	 /* some IA lists another one */
#define DHCP6_LISTS_FOREIGN 0x40 /* the first IA_NA lists one that is not in the subnet */

/* The part of a message that is still to be read: offsets into the packet. */
struct dhcp6_rest {
	__u32 at;
	__u32 end;    /* of the message */
	__u32 ia_end; /* of the IA whose options are being read; 0: they are the message's own */
};

/*
 * The fields of a message that the answer depends on, and how far reading and writing are. This is memory, so that the
 * verifier does not follow each combination of lengths.
 */
struct dhcp6_request {
	struct dhcp6_rest rest;
	__u32 answer_end;
	struct dhcp6_start start;
	__u8 has; /* DHCP6_HAS_*, DHCP6_OTHER_SERVER and DHCP6_LISTS_* */
	__u8 client_id_bytes;
	__u8 ias;	  /* number of IAs */
	__u8 others;	  /* number of addresses in `other` */
	__u8 granted;	  /* number of the first IA_NA, from 1; 0: the message has no IA_NA */
	__u8 is_in_first; /* while the message is read: whether the option is within that IA_NA */
	__be16 ia_code[DHCP6_IAS_MAX];
	__be32 iaid[DHCP6_IAS_MAX];
	__be32 other[DHCP6_OTHERS_MAX][4]; /* addresses of the first IA_NA that the VM may not use */
	__u8 client_id[DHCP6_CLIENT_ID_MAX + 2];
};

/* The request that is being answered: memory per CPU, as `frames` of port.h. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dhcp6_request);
} dhcp6_requests SEC(".maps");

static __always_inline struct dhcp6_request *dhcp6_request_at(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&dhcp6_requests, &zero);
}

/*
 * Whether the packet is UDP of a DHCPv6 client to all servers. The caller has compared the destination port. Clients
 * that know a server's address use it only if the server permits that, which this one does not.
 */
static __always_inline int is_dhcp6_request(const struct frame *frame)
{
	return frame->transport >> 16 == DHCP6_CLIENT_PORT && frame->destination[0] == DHCP6_SERVERS_HIGH &&
	       frame->destination[1] == DHCP6_SERVERS_LOW && is_link_local64(frame->source) &&
	       frame->source[1] != ROUTER6_LOW;
}

/* Bits of a half of an address that a prefix has of which `length` bits are from this half on. */
static __always_inline __u64 half_mask(int length)
{
	if (length <= 0)
		return 0;
	return length >= 64 ? ~0ull : ~0ull << (64 - length);
}

/* Whether an address, given as words of the packet, is in the port's subnet. */
static __always_inline int is_in_subnet(const struct port *port, const struct port *service,
					const void *address)
{
	__u64 high = load_half(address) ^ load_half(port->prefix6);
	__u64 low = load_half(address + 8) ^ load_half(port->prefix6 + 8);

	return !(high & half_mask(service->length6)) && !(low & half_mask(service->length6 - 64));
}

/* Records an address that an IA lists. 0, or negative if there are too many. */
static __always_inline int dhcp6_note_address(struct dhcp6_request *request, __u32 port_cell,
					      const __be32 *address)
{
	const struct port *port = vm_port_at(port_cell);
	const struct port *service = vm_port_service_at(port_cell);
	__u32 others = request->others;

	if (!port || !service)
		return -1;
	if (LOAD64(address) == LOAD64(port->address6) && LOAD64(address + 2) == LOAD64(port->address6 + 8)) {
		request->has |= DHCP6_LISTS_OWN;
		return 0;
	}
	request->has |= DHCP6_LISTS_OTHER;
	if (!request->is_in_first)
		return 0;
	if (!is_in_subnet(port, service, address))
		request->has |= DHCP6_LISTS_FOREIGN;
	if (others >= DHCP6_OTHERS_MAX)
		return -1;
	for (int i = 0; i < 4; i++)
		request->other[others & (DHCP6_OTHERS_MAX - 1)][i] = address[i];
	request->others = others + 1;
	return 0;
}

/* Records an IA. 0, or negative if there are too many. */
static __always_inline int dhcp6_note_ia(struct dhcp6_request *request, __be16 code, __be32 iaid)
{
	__u32 ias = request->ias;

	if (ias >= DHCP6_IAS_MAX)
		return -1;
	request->ia_code[ias & (DHCP6_IAS_MAX - 1)] = code;
	request->iaid[ias & (DHCP6_IAS_MAX - 1)] = iaid;
	request->ias = ias + 1;
	request->is_in_first = code == bpf_htons(DHCP6_IA_NA) && !request->granted;
	if (request->is_in_first)
		request->granted = ias + 1;
	return 0;
}

_Static_assert(!(DHCP6_IAS_MAX & (DHCP6_IAS_MAX - 1)) && !(DHCP6_OTHERS_MAX & (DHCP6_OTHERS_MAX - 1)),
	       "masks");

/* Reads the client identifier. 0, or negative if it is malformed. */
static __always_inline int dhcp6_read_client_id(struct __sk_buff *skb, struct dhcp6_request *request,
						__u32 at, __u32 bytes)
{
	if (request->has & DHCP6_HAS_CLIENT_ID || bytes > DHCP6_CLIENT_ID_MAX)
		return -1;
	/* The compiler would make one comparison of both, from which the verifier learns no bound. */
	asm volatile("" : "+r"(bytes));
	if (bytes < DHCP6_CLIENT_ID_MIN || context_load(skb, at, request->client_id, bytes))
		return -1;
	request->has |= DHCP6_HAS_CLIENT_ID;
	request->client_id_bytes = bytes;
	return 0;
}

/* Reads the server identifier. 0, or negative if it is malformed. */
static __always_inline int dhcp6_read_server_id(struct __sk_buff *skb, struct dhcp6_request *request,
						__u32 at, __u32 bytes)
{
	const struct node_config *node = node_at();
	struct dhcp6_server_id id = {};
	const __u32 own = sizeof(id) - sizeof(id.option);

	if (request->has & DHCP6_HAS_SERVER_ID || !node)
		return -1;
	request->has |= DHCP6_HAS_SERVER_ID;
	if (bytes != own) {
		request->has |= DHCP6_OTHER_SERVER;
		return 0;
	}
	if (context_load(skb, at, &id.type, own))
		return -1;
	if (id.type != bpf_htons(DHCP6_DUID_LL) || id.hardware != bpf_htons(DHCP6_ETHERNET) ||
	    load_mac(id.mac) != load_mac(node->router_mac))
		request->has |= DHCP6_OTHER_SERVER;
	return 0;
}

/*
 * Reads an option of `bytes` at `at` that is not within an IA, or the fields of an IA, whose options are then the rest.
 * 0, or negative if it is malformed.
 */
static __always_inline int dhcp6_read_option(struct __sk_buff *skb, struct dhcp6_request *request,
					     __be16 code, __u32 at, __u32 bytes)
{
	__u32 fields;
	__be32 iaid;

	if (code == bpf_htons(DHCP6_CLIENT_ID))
		return dhcp6_read_client_id(skb, request, at, bytes);
	if (code == bpf_htons(DHCP6_SERVER_ID))
		return dhcp6_read_server_id(skb, request, at, bytes);
	if (code == bpf_htons(DHCP6_RAPID_COMMIT)) {
		request->has |= DHCP6_HAS_RAPID;
		return bytes ? -1 : 0;
	}
	if (code != bpf_htons(DHCP6_IA_NA) && code != bpf_htons(DHCP6_IA_TA) &&
	    code != bpf_htons(DHCP6_IA_PD))
		return 0;
	fields = code == bpf_htons(DHCP6_IA_TA) ? DHCP6_IA_TA_VALUE : DHCP6_IA_VALUE;
	if (bytes < fields || context_load(skb, at, &iaid, sizeof(iaid)) ||
	    dhcp6_note_ia(request, code, iaid))
		return -1;
	/* Prefixes are nothing that a VM could have. */
	if (code != bpf_htons(DHCP6_IA_PD)) {
		request->rest.at = at + fields;
		request->rest.ia_end = at + bytes;
	}
	return 0;
}

/*
 * Reads the next option of the request. 0, or negative if it is malformed. It is a function, so that the verifier
 * processes it once and not for every option.
 */
__attribute__((noinline)) int dhcp6_next_option(struct __sk_buff *skb, __u32 port_cell)
{
	struct dhcp6_request *request = dhcp6_request_at();
	struct dhcp6_option option;
	__u32 at, bytes, limit;
	__be32 address[4];

	if (!request)
		return -1;
	limit = request->rest.ia_end ? request->rest.ia_end : request->rest.end;
	at = request->rest.at;
	if (at + sizeof(option) > limit || context_load(skb, at, &option, sizeof(option)))
		return -1;
	bytes = bpf_ntohs(option.bytes);
	at += sizeof(option);
	if (at + bytes > limit)
		return -1;
	request->rest.at = at + bytes;
	if (!request->rest.ia_end)
		return dhcp6_read_option(skb, request, option.code, at, bytes);
	if (option.code != bpf_htons(DHCP6_IA_ADDRESS))
		return 0;
	if (bytes < DHCP6_ADDRESS_VALUE || context_load(skb, at, address, sizeof(address)))
		return -1;
	return dhcp6_note_address(request, port_cell, address);
}

/* Reads the message that the UDP datagram at `udp_at` carries, whose IP packet ends at `end`. */
static __always_inline enum drop_reason dhcp6_read(struct __sk_buff *skb, struct dhcp6_request *request,
						   __u32 port_cell, __u32 udp_at, __u32 end)
{
	struct dhcp6_rest *rest = &request->rest;
	struct udp_header udp;

	/* IPv6 demands a checksum (RFC 8200 section 8.1). The VM may have left it pending, so it is not verified. */
	if (context_load(skb, udp_at, &udp, sizeof(udp)) || !udp.checksum)
		return DROP_dhcp_malformed;
	rest->at = udp_at + UDP_BYTES + sizeof(struct dhcp6_start);
	rest->end = udp_at + bpf_ntohs(udp.bytes);
	if (rest->end > end || rest->at > rest->end ||
	    context_load(skb, udp_at + UDP_BYTES, &request->start, sizeof(request->start)))
		return DROP_dhcp_malformed;
	if (request->start.type < 32 && DHCP6_BIT(request->start.type) & DHCP6_OF_SERVERS)
		return DROP_forged_control;
	for (int i = 0; i <= DHCP6_OPTIONS_MAX; i++) {
		if (rest->at == rest->ia_end)
			rest->ia_end = 0;
		if (rest->at == rest->end)
			return DROP_none;
		if (dhcp6_next_option(skb, port_cell))
			return DROP_dhcp_malformed;
	}
	return DROP_dhcp_malformed;
}

/* The checks of RFC 8415 section 16 on a whole message. */
static __always_inline enum drop_reason dhcp6_check(const struct dhcp6_request *request)
{
	__u32 type = request->start.type < 32 ? DHCP6_BIT(request->start.type) : 0, has = request->has;

	if (!(type & DHCP6_OF_CLIENTS))
		return DROP_dhcp_malformed;
	if (type & DHCP6_TO_ONE_SERVER && !(has & DHCP6_HAS_SERVER_ID))
		return DROP_dhcp_malformed;
	if (type & DHCP6_TO_ANY_SERVER && has & DHCP6_HAS_SERVER_ID)
		return DROP_dhcp_malformed;
	if (type & DHCP6_BIT(DHCP6_INFORMATION))
		return request->ias ? DROP_dhcp_malformed : DROP_none;
	return has & DHCP6_HAS_CLIENT_ID ? DROP_none : DROP_dhcp_malformed;
}

/* The type of the answer to a valid message, or DHCP6_NO_ANSWER. */
static __always_inline enum dhcp6_type dhcp6_decide(const struct dhcp6_request *request)
{
	if (request->has & DHCP6_OTHER_SERVER)
		return DHCP6_NO_ANSWER;
	if (request->start.type == DHCP6_CONFIRM && !(request->has & (DHCP6_LISTS_OWN | DHCP6_LISTS_OTHER)))
		return DHCP6_NO_ANSWER; /* RFC 8415 section 18.3.3 */
	if (request->start.type == DHCP6_SOLICIT && !(request->has & DHCP6_HAS_RAPID))
		return DHCP6_ADVERTISE;
	return DHCP6_REPLY;
}

/* Appends bytes to the answer. 0, or negative if it failed. */
static __always_inline long dhcp6_put(struct __sk_buff *skb, struct dhcp6_request *request, const void *bytes,
				      __u32 count)
{
	__u32 at = request->answer_end;

	request->answer_end = at + count;
	return bpf_skb_store_bytes(skb, at, bytes, count, 0);
}

static __always_inline long dhcp6_put_status(struct __sk_buff *skb, struct dhcp6_request *request, __u16 code)
{
	struct dhcp6_status status = {
		.option = { bpf_htons(DHCP6_STATUS), bpf_htons(sizeof(status) - sizeof(status.option)) },
		.code = bpf_htons(code),
	};

	return dhcp6_put(skb, request, &status, sizeof(status));
}

static __always_inline long dhcp6_put_ids(struct __sk_buff *skb, struct dhcp6_request *request,
					  const struct node_config *node)
{
	struct dhcp6_server_id server = {
		.option = { bpf_htons(DHCP6_SERVER_ID), bpf_htons(sizeof(server) - sizeof(server.option)) },
		.type = bpf_htons(DHCP6_DUID_LL),
		.hardware = bpf_htons(DHCP6_ETHERNET),
	};
	struct dhcp6_option client = { bpf_htons(DHCP6_CLIENT_ID), bpf_htons(request->client_id_bytes) };
	__u32 bytes = request->client_id_bytes;
	long failed;

	__builtin_memcpy(server.mac, node->router_mac, ETH_ALEN);
	failed = dhcp6_put(skb, request, &server, sizeof(server));
	if (!bytes)
		return failed;
	failed |= dhcp6_put(skb, request, &client, sizeof(client));
	/* The verifier of Linux 6.1 does not learn from a comparison with zero that a number is not zero. */
	bytes -= 1;
	asm volatile("" : "+r"(bytes));
	if (bytes >= DHCP6_CLIENT_ID_MAX)
		return -1;
	return failed | dhcp6_put(skb, request, request->client_id, bytes + 1);
}

/* Appends an address, given as words, with its lifetime. */
static __always_inline long dhcp6_put_address(struct __sk_buff *skb, struct dhcp6_request *request,
					      const void *address, __u32 lifetime_s)
{
	struct dhcp6_address option = {
		.option = { bpf_htons(DHCP6_IA_ADDRESS), bpf_htons(DHCP6_ADDRESS_VALUE) },
		.preferred_s = bpf_htonl(lifetime_s),
		.valid_s = bpf_htonl(lifetime_s),
	};

	for (int i = 0; i < 4; i++)
		option.address[i] = LOAD32(address + 4 * i);
	return dhcp6_put(skb, request, &option, sizeof(option));
}

/* Appends the IA with the port's address. Addresses that the VM may not use get the lifetime 0. */
static __always_inline long dhcp6_put_granted(struct __sk_buff *skb, struct dhcp6_request *request,
					      __u32 port_cell, __be32 iaid)
{
	const struct port *port = vm_port_at(port_cell);
	const struct port *service = vm_port_service_at(port_cell);
	__u32 others = request->start.type == DHCP6_SOLICIT ? 0 : request->others;
	struct dhcp6_ia ia = {
		.option = { bpf_htons(DHCP6_IA_NA) },
		.iaid = iaid,
	};
	long failed;

	if (!port || !service)
		return -1;
	/* RFC 8415 section 21.4: 0.5 and 0.8 of the preferred lifetime. */
	ia.renew_s = bpf_htonl(service->lease_s / 2);
	ia.rebind_s = bpf_htonl(service->lease_s / 5 * 4);
	ia.option.bytes = bpf_htons(DHCP6_IA_VALUE + (1 + others) * sizeof(struct dhcp6_address));
	failed = dhcp6_put(skb, request, &ia, sizeof(ia));
	failed |= dhcp6_put_address(skb, request, port->address6, service->lease_s);
	for (__u32 i = 0; i < DHCP6_OTHERS_MAX; i++) {
		if (i >= others)
			break;
		failed |= dhcp6_put_address(skb, request, request->other[i], 0);
	}
	return failed;
}

/* Appends an IA that has nothing but a status. */
static __always_inline long dhcp6_put_refused(struct __sk_buff *skb, struct dhcp6_request *request,
					      __be16 code, __be32 iaid, __u16 status)
{
	__u32 is_temporary = code == bpf_htons(DHCP6_IA_TA);
	__u32 fields = is_temporary ? DHCP6_IA_TA_VALUE : DHCP6_IA_VALUE;
	struct dhcp6_ia ia = {
		.option = { code, bpf_htons(fields + sizeof(struct dhcp6_status)) },
		.iaid = iaid,
	};
	long failed;

	if (is_temporary)
		failed = dhcp6_put(skb, request, &ia, sizeof(ia.option) + DHCP6_IA_TA_VALUE);
	else
		failed = dhcp6_put(skb, request, &ia, sizeof(ia));
	return failed | dhcp6_put_status(skb, request, status);
}

/* Appends the answer to the first IA_NA, if there is one. Nothing is said about an address that is given back. */
static __always_inline long dhcp6_put_first(struct __sk_buff *skb, struct dhcp6_request *request,
					    __u32 port_cell)
{
	__u32 number = request->granted - 1;
	__u8 type = request->start.type;
	__be32 iaid;

	if (number >= DHCP6_IAS_MAX || type == DHCP6_RELEASE || type == DHCP6_DECLINE)
		return 0;
	iaid = request->iaid[number];
	if (type == DHCP6_REQUEST && request->has & DHCP6_LISTS_FOREIGN)
		return dhcp6_put_refused(skb, request, bpf_htons(DHCP6_IA_NA), iaid, DHCP6_NOT_ON_LINK);
	return dhcp6_put_granted(skb, request, port_cell, iaid);
}

/* Appends the answers to all other IAs. */
static __always_inline long dhcp6_put_others(struct __sk_buff *skb, struct dhcp6_request *request)
{
	const __u32 of_lease = DHCP6_BIT(DHCP6_RENEW) | DHCP6_BIT(DHCP6_REBIND) | DHCP6_BIT(DHCP6_RELEASE) |
			       DHCP6_BIT(DHCP6_DECLINE);
	long failed = 0;

	for (__u32 i = 0; i < DHCP6_IAS_MAX; i++) {
		__be16 code = request->ia_code[i];
		__u16 status = DHCP6_NO_ADDRS_AVAIL;

		if (i >= request->ias)
			break;
		if (request->granted == i + 1)
			continue;
		if (DHCP6_BIT(request->start.type & 31) & of_lease)
			status = DHCP6_NO_BINDING;
		else if (code == bpf_htons(DHCP6_IA_PD))
			status = DHCP6_NO_PREFIX_AVAIL;
		failed |= dhcp6_put_refused(skb, request, code, request->iaid[i], status);
	}
	return failed;
}

/* Appends the options between the identifiers and the IAs. */
static __always_inline long dhcp6_put_flags(struct __sk_buff *skb, struct dhcp6_request *request,
					    enum dhcp6_type answer)
{
	struct dhcp6_option option = { bpf_htons(DHCP6_RAPID_COMMIT) };
	__u8 type = request->start.type, preference = 255;

	if (answer == DHCP6_ADVERTISE) {
		/* This is the only server, so the client need not wait for others (RFC 8415 section 18.2.1). */
		option.code = bpf_htons(DHCP6_PREFERENCE);
		option.bytes = bpf_htons(sizeof(preference));
		return dhcp6_put(skb, request, &option, sizeof(option)) |
		       dhcp6_put(skb, request, &preference, sizeof(preference));
	}
	if (type == DHCP6_SOLICIT)
		return dhcp6_put(skb, request, &option, sizeof(option));
	if (type == DHCP6_CONFIRM)
		return dhcp6_put_status(skb, request,
					request->has & DHCP6_LISTS_OTHER ? DHCP6_NOT_ON_LINK : DHCP6_SUCCESS);
	return type == DHCP6_RELEASE || type == DHCP6_DECLINE ? dhcp6_put_status(skb, request, DHCP6_SUCCESS)
							      : 0;
}

/* Writes the message of the answer. 0, or negative if it failed. */
static __always_inline long dhcp6_write(struct __sk_buff *skb, struct dhcp6_request *request, __u32 port_cell,
					enum dhcp6_type answer)
{
	const struct node_config *node = node_at();
	struct dhcp6_start start = request->start;
	long failed;

	if (!node)
		return -1;
	request->answer_end = DHCP6_MESSAGE_AT;
	start.type = answer;
	failed = dhcp6_put(skb, request, &start, sizeof(start));
	failed |= dhcp6_put_ids(skb, request, node);
	failed |= dhcp6_put_flags(skb, request, answer);
	if (request->start.type == DHCP6_CONFIRM)
		return failed;
	failed |= dhcp6_put_first(skb, request, port_cell);
	return failed | dhcp6_put_others(skb, request);
}

/* Writes the headers of the answer, which ends at `end`, to the VM's link-local address. 0, or negative if it failed. */
static __always_inline long dhcp6_write_headers(struct __sk_buff *skb, const struct frame *frame,
						__u32 port_cell, __u32 end)
{
	const __u32 addresses = ETH_HLEN + __builtin_offsetof(struct ipv6_header, source);
	const struct port *port = vm_port_at(port_cell);
	const struct node_config *node = node_at();
	const __u64 source[2] = { ROUTER6_HIGH, ROUTER6_LOW };
	__u16 bytes = end - ETH_HLEN - IPV6_BYTES;
	struct cursor cursor = cursor_at(skb, 0);
	struct udp_header *udp;
	struct ipv6_header *ip;

	if (!port || !node || !cursor_has(&cursor, DHCP6_MESSAGE_AT))
		return -1;
	reply_ethernet(next_header(&cursor, struct ethernet_header), port, node, ETH_P_IPV6);
	ip = next_header(&cursor, struct ipv6_header);
	write_ipv6(ip, &(struct ipv6_fields){ .bytes = bytes, .next = IPPROTO_UDP, .hop_limit = REPLY_TTL });
	store_halves(ip->source, source);
	store_halves(ip->destination, frame->source);
	udp = next_header(&cursor, struct udp_header);
	udp->source = bpf_htons(DHCP6_SERVER_PORT);
	udp->destination = bpf_htons(DHCP6_CLIENT_PORT);
	udp->bytes = bpf_htons(bytes);
	udp->checksum = 0;
	return reply_checksum(skb, addresses, end - addresses,
			      (__u64)bpf_htons(bytes) + bpf_htons(IPPROTO_UDP),
			      ETH_HLEN + IPV6_BYTES + __builtin_offsetof(struct udp_header, checksum));
}

/* Answers the VM's message. */
__attribute__((noinline)) int dhcp6_answer(struct __sk_buff *skb, __u32 port_cell, struct frame *frame)
{
	const struct port *port = vm_port_at(port_cell);
	struct dhcp6_request *request = dhcp6_request_at();
	enum drop_reason reason = DROP_dhcp_malformed;
	enum dhcp6_type answer;
	__u32 end;

	if (!port || !frame || !request)
		return port_drop(0, DROP_stale_index);
	__builtin_memset(request, 0, sizeof(*request));
	if (!(frame->flags & (FRAME_OPTIONS | FRAME_FRAGMENT)))
		reason = dhcp6_read(skb, request, port_cell, frame->transport_at, ETH_HLEN + frame->ip_bytes);
	if (!reason)
		reason = dhcp6_check(request);
	if (reason)
		return port_drop(port->vni, reason);
	answer = dhcp6_decide(request);
	if (answer == DHCP6_NO_ANSWER)
		return VERDICT_ABSORBED;
	reason = reply_begin(skb, DHCP6_FRAME_MAX);
	if (reason)
		return port_drop(port->vni, reason);
	if (dhcp6_write(skb, request, port_cell, answer))
		return port_drop(port->vni, DROP_headroom);
	end = request->answer_end;
	if (bpf_skb_change_tail(skb, end, 0) || dhcp6_write_headers(skb, frame, port_cell, end))
		return port_drop(port->vni, DROP_headroom);
	return reply_send(skb);
}

#endif
