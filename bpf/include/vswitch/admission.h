/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * vSwitch: security groups (Achelous section 2.3). A packet of a known session passes a port. The first packet of a
 * connection is judged by the port's policy (policy.h) and begins a session, by which its answers pass as well.
 *
 * Contract: a unicast IP frame of a filtered port (PORT_FILTERED), parsed, at the start of the packet; messages between
 * a VM and its own host, such as ARP, ND and DHCP, are not judged. A session belongs to one port: a packet from one VM
 * to another on the same host needs one at each port. The packet is not changed. admit() returns DROP_none or the
 * reason to drop. Uses the maps `cells`, `admissions`, `session_shares`, `fragments`, those of session_maps.h and those of
 * remote_identities.h.
 *
 *   later fragment    passes if its first fragment has
 *   ICMP error        passes if the session of the packet that it quotes exists
 *   of a session      passes, and refreshes the session. If its sender began the session and has another identity than
 *                     then, the policy must permit it. Is dropped if the session was revoked (SESSION_REVOKED), and with
 *                     DROP_session_reset if it is to end (SESSION_RESET), which the caller answers (reset.h); a SYN ends it
 *   otherwise         TCP: must be a SYN (RFC 9293), ICMP: not an answer. If the policy permits it, it begins a session
 */
#ifndef SLUICE_ADMISSION_H
#define SLUICE_ADMISSION_H

#include "vswitch/port.h"

#include "common/icmp_kind.h"
#include "common/policy.h"
#include "common/session_maps.h"
#include "vswitch/fragments.h"
#include "vswitch/remote_identities.h"

/* The packet leaves the VM. Otherwise `from` of admit() has the sender's identity in its upper half. */
#define ADMIT_EGRESS 1u
#define ADMIT_UNKNOWN 2u /* for egress: the policy names groups, and the receiver's identity is not known */
#define ADMIT_IDENTITY_SHIFT 16

/* What the steps of admit() answer besides a reason to drop. */
#define ADMIT_PASS 0u
#define ADMIT_JUDGE 256u /* no session has the packet: the policy is asked */
#define ADMIT_BEGIN 257u /* the policy permits the packet: it begins a session */
#define ADMIT_ERROR 258u /* an ICMP error: the packet that it quotes decides */
#define ADMIT_AGAIN 259u /* the originator of the session has another identity: the policy is asked */

/* `identity` of a query for a packet from the VM: whether its receiver has another identity is not asked. */
#define IDENTITY_NOT_COMPARED 0x10000u

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SESSION_SCOPES);
	__type(key, __u32);
	__type(value, struct session_share);
} session_shares SEC(".maps");

/* The headers that an ICMP error quotes: as much as each error has at least (RFC 792, RFC 4443 section 3). */
struct quoted {
	__u64 source[2];
	__u64 destination[2];
	__u32 ports;
	__u8 protocol;
};

/* What is asked about a packet, and found: memory per CPU, as for the frame (port.h). */
struct admission {
	struct session_query query;
	struct session_hit hit;
	struct policy_packet packet;
	struct quoted quoted;
	struct remote_identity_key receiver;
	__u32 now;	  /* in ticks of the session table */
	__u32 generation; /* of the policy that permits the packet */
	__u32 rule;	  /* of that policy; with SESSION_EGRESS when the session begins */
	__u32 is_shared;  /* whether the session takes room that is assured to no port */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct admission);
} admissions SEC(".maps");

/* Sets the key of the query: addresses as in struct frame, source port in the upper half of `ports`. */
static __always_inline void query_flow(const struct session_config *config, struct session_query *query,
				       __u16 scope, __u8 protocol, int ipv6, const __u64 *source,
				       const __u64 *destination, __u32 ports)
{
	if (ipv6)
		session_query6(config, scope, protocol, source, destination, ports >> 16, ports, query);
	else
		session_query4(config, scope, protocol, source[1], destination[1], ports >> 16, ports, query);
}

static __always_inline enum session_answer find_session(const struct session_query *query, int ipv6,
							__u32 now, struct session_hit *hit)
{
	return ipv6 ? find_session6(query, now, hit) : find_session4(query, now, hit);
}

/* The ports of the session that a packet would be of. */
static __always_inline __u32 session_ports(struct __sk_buff *skb, const struct frame *frame,
					   enum icmp_kind kind)
{
	__be16 id = 0;

	if (kind == ICMP_NONE)
		return has_ports(frame->protocol) ? frame->transport : 0;
	if (kind == ICMP_OTHER || bpf_skb_load_bytes(skb, frame->transport_at + 4, &id, sizeof(id)))
		return 0;
	return icmp_ports(kind, frame->transport >> 24, bpf_ntohs(id));
}

/* Reads the transport header of the quoted packet, at this offset. */
static __always_inline long read_quoted_ports(struct __sk_buff *skb, __u32 at, int ipv6,
					      struct quoted *quoted)
{
	__be32 words[2] = {};
	enum icmp_kind kind;
	__u32 first;

	if (bpf_skb_load_bytes(skb, at, words, sizeof(words)))
		return -1;
	first = bpf_ntohl(words[0]);
	kind = icmp_kind_of(quoted->protocol, ipv6, first >> 24, first >> 16);
	if (has_ports(quoted->protocol))
		quoted->ports = first;
	else if (kind == ICMP_QUERY || kind == ICMP_ANSWER)
		quoted->ports = icmp_ports(kind, first >> 24, bpf_ntohl(words[1]) >> 16);
	return 0;
}

static __always_inline long read_quoted(struct __sk_buff *skb, const struct frame *frame,
					struct quoted *quoted)
{
	__u32 at = frame->transport_at + ICMP_BYTES;
	struct ipv4_header ip4;
	struct ipv6_header ip6;

	if (frame->flags & FRAME_IPV6) {
		if (bpf_skb_load_bytes(skb, at, &ip6, sizeof(ip6)) || bpf_ntohl(ip6.version) >> 28 != 6)
			return -1;
		load_halves(quoted->source, ip6.source);
		load_halves(quoted->destination, ip6.destination);
		quoted->protocol = ip6.next;
		return read_quoted_ports(skb, at + IPV6_BYTES, 1, quoted);
	}
	if (bpf_skb_load_bytes(skb, at, &ip4, sizeof(ip4)) || ip4.version >> 4 != 4 ||
	    ip4.fragment & bpf_htons(IPV4_OFFSET))
		return -1;
	quoted->source[1] = bpf_ntohl(ip4.source);
	quoted->destination[1] = bpf_ntohl(ip4.destination);
	quoted->protocol = ip4.protocol;
	return read_quoted_ports(skb, at + (ip4.version & 15) * 4, 0, quoted);
}

/* An ICMP error passes if the packet that it quotes is of a session of this port. It does not refresh the session. */
__attribute__((noinline)) __u32 admit_error(struct __sk_buff *skb, struct frame *frame,
					    struct admission *memory, __u32 scope)
{
	const struct session_config *config = session_config_at();
	struct quoted *quoted;
	int ipv6;

	if (!frame || !memory || !config)
		return DROP_stale_index;
	ipv6 = frame->flags & FRAME_IPV6;
	quoted = &memory->quoted;
	quoted->ports = 0;
	if (read_quoted(skb, frame, quoted))
		return DROP_no_session;
	query_flow(config, &memory->query, scope, quoted->protocol, ipv6, quoted->source, quoted->destination,
		   quoted->ports);
	if (find_session(&memory->query, ipv6, memory->now, &memory->hit) != SESSION_HIT ||
	    memory->hit.state & (SESSION_REVOKED | SESSION_RESET))
		return DROP_no_session;
	return ADMIT_PASS;
}

static __always_inline __u8 read_tcp_flags(struct __sk_buff *skb, const struct frame *frame)
{
	const struct tcp_header *tcp = linear_tcp(skb, 0, frame);
	__u8 flags = 0;

	if (tcp)
		return tcp->flags;
	bpf_skb_load_bytes(skb, frame->transport_at + __builtin_offsetof(struct tcp_header, flags), &flags,
			   1);
	return flags;
}

/* Counts the packet in the session that was found. */
static __always_inline __u32 touch_session(struct session_config *config, struct admission *memory, int ipv6)
{
	enum session_answer answer =
		ipv6 ? session_touch(6, config, &memory->query, &memory->hit, memory->now)
		     : session_touch(4, config, &memory->query, &memory->hit, memory->now);

	return answer == SESSION_GONE ? ADMIT_JUDGE : ADMIT_PASS;
}

/*
 * Whether the sender of the packet began the session that was found, with another identity than it has now. Of a session that
 * the VM began, the identity is the receiver's: such a packet was the VM's own, and has come back from a gateway.
 */
static __always_inline int has_other_identity(const struct admission *memory, int ipv6)
{
	const struct session_data *data;
	__u32 identity = memory->query.identity;

	if (memory->hit.direction != SESSION_ORIGINAL || identity == IDENTITY_NOT_COMPARED ||
	    identity == memory->hit.state >> SESSION_IDENTITY_SHIFT)
		return 0;
	data = ipv6 ? session_data_at(6, &memory->hit) : session_data_at(4, &memory->hit);
	return data && !(READ_ONCE(data->action[1]) & SESSION_EGRESS);
}

/*
 * A packet of a session that is to end. The SYN of a new connection ends it, and is judged as any other; a reason for all
 * others. The agent provokes no more segments of the VM (SESSION_RST) when the VM has sent one that is answered.
 */
static __always_inline __u32 pass_by_reset(struct session_config *config, struct admission *memory, int ipv6)
{
	const __u32 mask = SESSION_TCP_SYN | SESSION_TCP_ACK | SESSION_TCP_RST | SESSION_TCP_FIN;
	__u32 flags = memory->query.tcp_flags;
	struct session_data *data;

	if ((flags & mask) == SESSION_TCP_SYN) {
		enum session_answer answer =
			ipv6 ? session_end(6, config, &memory->hit) : session_end(4, config, &memory->hit);

		return answer == SESSION_BUSY ? DROP_table_busy : ADMIT_JUDGE;
	}
	if (memory->query.identity != IDENTITY_NOT_COMPARED || memory->hit.state & SESSION_RST ||
	    (flags & (SESSION_TCP_ACK | SESSION_TCP_RST)) != SESSION_TCP_ACK)
		return DROP_session_reset;
	data = ipv6 ? session_data_at(6, &memory->hit) : session_data_at(4, &memory->hit);
	if (data)
		OR(&data->state, SESSION_RST);
	return DROP_session_reset;
}

/* Counts the packet in its session, if that exists. Otherwise the policy is asked. */
static __always_inline __u32 pass_by_session(struct session_config *config, struct admission *memory,
					     int ipv6)
{
	if (find_session(&memory->query, ipv6, memory->now, &memory->hit) != SESSION_HIT)
		return ADMIT_JUDGE;
	if (memory->hit.state & SESSION_RESET)
		return pass_by_reset(config, memory, ipv6);
	if (memory->hit.state & SESSION_REVOKED)
		return memory->query.identity == IDENTITY_NOT_COMPARED ? DROP_egress_denied
								       : DROP_ingress_denied;
	if (has_other_identity(memory, ipv6))
		return ADMIT_AGAIN;
	return touch_session(config, memory, ipv6);
}

/* First step: packets that pass by a session or by their first fragment. ADMIT_*, or a reason. */
__attribute__((noinline)) __u32 admit_known(struct __sk_buff *skb, struct frame *frame,
					    struct admission *memory, __u32 scope)
{
	struct session_config *config = session_config_at();
	enum icmp_kind kind;
	int ipv6;

	if (!frame || !memory || !config)
		return DROP_stale_index;
	memory->now = session_ticks(bpf_ktime_get_coarse_ns());
	if (frame->flags & FRAME_LATER)
		return is_known_fragment(skb, frame, scope, memory->now) ? ADMIT_PASS : DROP_unknown_fragment;
	kind = icmp_kind(frame);
	if (kind == ICMP_ERROR)
		return ADMIT_ERROR;
	ipv6 = frame->flags & FRAME_IPV6;
	query_flow(config, &memory->query, scope, frame->protocol, ipv6, frame->source, frame->destination,
		   session_ports(skb, frame, kind));
	memory->query.tcp_flags = frame->protocol == IPPROTO_TCP ? read_tcp_flags(skb, frame) : 0;
	memory->query.bytes = skb->len;
	return kind == ICMP_OTHER ? ADMIT_JUDGE : pass_by_session(config, memory, ipv6);
}

/* Whether a TCP segment may begin a session: the SYN of a client. Others may while the port adopts connections. */
static __always_inline int may_begin(const struct frame *frame, __u32 tcp_flags, const struct port *port)
{
	const __u32 mask = SESSION_TCP_SYN | SESSION_TCP_ACK | SESSION_TCP_RST | SESSION_TCP_FIN;

	if (frame->protocol != IPPROTO_TCP || (tcp_flags & mask) == SESSION_TCP_SYN)
		return 1;
	return bpf_ktime_get_coarse_ns() / 1000000000ull < port->adopt_until_s;
}

/* Asks the policy. The rule that permits the packet, or POLICY_DENIED. */
static __always_inline __u32 ask_policy(const struct frame *frame, struct admission *memory, __u32 policy,
					__u32 from, enum icmp_kind kind)
{
	struct policy_packet *packet = &memory->packet;
	int egress = from & ADMIT_EGRESS;
	__u16 service = 0;

	if (kind != ICMP_NONE)
		service = frame->transport >> 16;
	else if (has_ports(frame->protocol))
		service = frame->transport;
	packet->high = egress ? frame->destination[0] : frame->source[0];
	packet->low = egress ? frame->destination[1] : frame->source[1];
	packet->service = policy_service(frame->protocol, service);
	packet->identity = from >> ADMIT_IDENTITY_SHIFT;
	packet->ipv6 = !!(frame->flags & FRAME_IPV6);
	packet->egress = egress;
	return policy_evaluate(policy, packet);
}

/* Whether an egress rule of the policy names a group that has members. */
static __always_inline int names_receivers(__u32 policy_cell)
{
	const struct policy *policy = policy_cell ? cell_at(policy_cell + 1) : NULL;

	return policy && policy->kind == NEXT_HOP_POLICY && policy->identities;
}

/*
 * The identity of the VM to which the frame from this port is sent, as `from` of admit() has it; with ADMIT_UNKNOWN if this
 * host does not know it. It is not searched for if the policy does not ask for it.
 */
__attribute__((noinline)) __u32 receiver_identity(struct frame *frame, struct admission *memory,
						  __u32 port_cell)
{
	const struct port *port = vm_port_at(port_cell), *service = vm_port_service_at(port_cell);
	struct exact_hit hit = {};
	enum exact_answer found;
	__u32 identity, zero = 0;

	if (!frame || !memory || !port || !service || !names_receivers(READ_ONCE(service->policy)))
		return 0;
	if (frame->flags & FRAME_IPV6)
		found = find_ipv6(port->vni, frame->destination[0], frame->destination[1], &hit);
	else
		found = find_ipv4(port->vni, frame->destination[1], &hit);
	port = found == EXACT_HIT ? vm_port_at(hit.next) : NULL;
	if (port)
		return (__u32)port_identity(port, hit.next) << ADMIT_IDENTITY_SHIFT;
	port = vm_port_at(port_cell);
	/* The same memory again: Linux 6.1 accepts no argument of a global function as the key of a map. */
	memory = bpf_map_lookup_elem(&admissions, &zero);
	if (!memory)
		return 0;
	identity = find_remote_identity(frame, port ? port->vni : 0, memory->now, &memory->receiver);
	return identity == REMOTE_IDENTITY_UNKNOWN ? ADMIT_UNKNOWN : identity << ADMIT_IDENTITY_SHIFT;
}

/* Generation of a policy; 0 if the tables have lost it. */
static __always_inline __u32 policy_generation(__u32 cell)
{
	const struct policy *policy = cell ? cell_at(cell) : NULL;

	return policy && policy->kind == NEXT_HOP_POLICY ? policy->generation : 0;
}

/* Second step: a packet without a session. ADMIT_PASS, ADMIT_BEGIN, or a reason. */
__attribute__((noinline)) __u32 admit_by_policy(struct frame *frame, struct admission *memory,
						__u32 port_cell, __u32 from)
{
	const struct port *service = vm_port_service_at(port_cell);
	enum icmp_kind kind;
	__u32 policy;

	if (!frame || !memory || !service)
		return DROP_stale_index;
	kind = icmp_kind(frame);
	if (kind == ICMP_ANSWER || !may_begin(frame, memory->query.tcp_flags, service))
		return DROP_no_session;
	policy = READ_ONCE(service->policy);
	memory->rule = ask_policy(frame, memory, policy, from, kind);
	if (memory->rule == POLICY_DENIED)
		return from & ADMIT_EGRESS ? DROP_egress_denied : DROP_ingress_denied;
	if (from & ADMIT_EGRESS)
		memory->rule |= SESSION_EGRESS;
	memory->generation = policy_generation(policy);
	memory->query.identity = from >> ADMIT_IDENTITY_SHIFT;
	return kind == ICMP_OTHER ? ADMIT_PASS : ADMIT_BEGIN;
}

/* The member of a service to which the VM's packets of the session go, as in `action` (services.h). */
static __always_inline __u32 pinned_member(const struct session_data *data)
{
	return READ_ONCE(data->action[1]) & SESSION_MEMBER_MASK << SESSION_MEMBER_SHIFT;
}

/*
 * Instead of the second step: a packet of a session whose originator has another identity now. If the policy permits the
 * packet, the session has that identity from then on. Otherwise the packet is dropped, and the session stays: the policy that
 * knows the identity may come a moment later, and whoever can send one packet cannot end the session. ADMIT_PASS,
 * ADMIT_JUDGE, or a reason.
 *
 * The identity is stored by itself, because other packets set bits of the same word. The rule and its generation are stored
 * together, as the agent replaces them: what the agent has judged by a newer policy is not overwritten, because it waits for
 * the end of programs that know only the older one.
 */
__attribute__((noinline)) __u32 admit_again(struct frame *frame, struct admission *memory, __u32 port_cell)
{
	const struct port *service = vm_port_service_at(port_cell);
	struct session_config *config = session_config_at();
	struct session_data *data;
	__u32 policy, from;
	int ipv6;

	if (!frame || !memory || !service || !config)
		return DROP_stale_index;
	ipv6 = frame->flags & FRAME_IPV6;
	policy = READ_ONCE(service->policy);
	from = memory->query.identity << ADMIT_IDENTITY_SHIFT;
	memory->rule = ask_policy(frame, memory, policy, from, icmp_kind(frame));
	if (memory->rule == POLICY_DENIED)
		return DROP_ingress_denied;
	data = ipv6 ? session_data_at(6, &memory->hit) : session_data_at(4, &memory->hit);
	if (!data)
		return DROP_stale_index;
	WRITE_ONCE(((__u16 *)&data->state)[1], memory->query.identity);
	memory->rule |= pinned_member(data);
	WRITE_ONCE(*(__u64 *)data->action, policy_generation(policy) | (__u64)memory->rule << 32);
	return touch_session(config, memory, ipv6);
}

/* Before the third step: whether the port may have another session. DROP_none, or a reason. */
__attribute__((noinline)) __u32 has_room(struct admission *memory, __u32 port_cell, __u32 ipv6)
{
	const struct port *port = vm_port_at(port_cell);
	struct session_config *config = session_config_at();
	struct session_share *share;
	__u32 scope, egress, alike, sessions;

	if (!port || !config || !memory)
		return DROP_stale_index;
	scope = port->scope;
	share = bpf_map_lookup_elem(&session_shares, &scope);
	if (!share)
		return DROP_session_limit;
	egress = !!(memory->rule & SESSION_EGRESS);
	alike = READ_ONCE(share->begun[egress]) - READ_ONCE(share->ended[egress]);
	sessions = alike + READ_ONCE(share->begun[!egress]) - READ_ONCE(share->ended[!egress]);
	if (sessions >= READ_ONCE(share->limit) || alike >= READ_ONCE(share->limit_each))
		return DROP_session_limit;
	memory->is_shared = sessions >= READ_ONCE(share->assured);
	if (!memory->is_shared || (__s32)(READ_ONCE(config->shared_begun) - READ_ONCE(config->shared_ended) -
					  READ_ONCE(config->shared_limit)) < 0)
		return DROP_none;
	ADD(&config->full[!!ipv6], 1);
	return DROP_sessions_full;
}

/* After the third step: counts the record of a session that was published. */
static __always_inline void count_session(const struct admission *memory, __u32 scope)
{
	struct session_share *share = bpf_map_lookup_elem(&session_shares, &scope);
	struct session_config *config = session_config_at();

	if (share)
		ADD(&share->begun[!!(memory->rule & SESSION_EGRESS)], 1);
	if (config && memory->is_shared)
		ADD(&config->shared_begun, 1);
}

/* Third step: begins the session of a packet that the policy permits. ADMIT_PASS, or a reason. */
static __always_inline __u32 begin_session(const struct frame *frame, struct admission *memory, __u32 scope)
{
	enum session_answer answer;

	if (frame->flags & FRAME_IPV6)
		answer = create_session6(&memory->query, memory->generation, memory->rule, memory->now,
					 &memory->hit);
	else
		answer = create_session4(&memory->query, memory->generation, memory->rule, memory->now,
					 &memory->hit);
	if (memory->hit.published)
		count_session(memory, scope);
	switch (answer) {
	case SESSION_CREATED:
	case SESSION_HIT:
		return ADMIT_PASS;
	case SESSION_BUSY:
		return DROP_table_busy;
	default:
		return DROP_sessions_full;
	}
}

/*
 * Whether a packet may pass the filtered port in this cell: DROP_none, or why not. `from` is ADMIT_*. The steps are
 * called one after the other, because the verifier limits the stack of functions that call each other.
 */
static __always_inline enum drop_reason admit(struct __sk_buff *skb, struct frame *frame,
					      const struct port *port, __u32 port_cell, __u32 from)
{
	__u32 zero = 0, scope = port->scope, answer;
	struct admission *memory = bpf_map_lookup_elem(&admissions, &zero);

	if (!memory)
		return DROP_stale_index;
	memory->query.identity = from & ADMIT_EGRESS ? IDENTITY_NOT_COMPARED : from >> ADMIT_IDENTITY_SHIFT;
	answer = admit_known(skb, frame, memory, scope);
	if (answer == ADMIT_AGAIN)
		answer = admit_again(frame, memory, port_cell);
	if (answer == ADMIT_ERROR)
		answer = admit_error(skb, frame, memory, scope);
	frame->judged |= answer == ADMIT_JUDGE;
	if (answer == ADMIT_JUDGE && from & ADMIT_EGRESS)
		from |= receiver_identity(frame, memory, port_cell);
	if (answer == ADMIT_JUDGE)
		answer = admit_by_policy(frame, memory, port_cell, from);
	if (answer == DROP_egress_denied && from & ADMIT_UNKNOWN)
		answer = post_unknown_receiver(frame, port_cell);
	if (answer == ADMIT_BEGIN) {
		answer = has_room(memory, port_cell, frame->flags & FRAME_IPV6);
		if (answer == DROP_none)
			answer = begin_session(frame, memory, scope);
	}
	if (answer == ADMIT_PASS && (frame->flags & (FRAME_FRAGMENT | FRAME_LATER)) == FRAME_FRAGMENT)
		remember_fragment(skb, frame, scope, memory->now);
	return answer;
}

#endif
