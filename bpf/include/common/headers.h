/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Lengths and numbers of network headers. */
#ifndef SLUICE_HEADERS_H
#define SLUICE_HEADERS_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>

#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define ARP_BYTES 28
#define ETHERTYPE_VLAN 0x8100
#define ETHERTYPE_QINQ 0x88a8

/* IPv6 extension headers that are followed; the rest is a transport protocol. */
#define NEXT_HOP_BY_HOP 0
#define NEXT_ROUTING 43
#define NEXT_FRAGMENT 44
#define NEXT_AUTHENTICATION 51
#define NEXT_DESTINATION 60

#define ICMP4_UNREACHABLE 3
#define ICMP4_NEEDS_FRAGMENTATION 4 /* code of the above */
#define ICMP4_TIME_EXCEEDED 11
#define ICMP4_ECHO 8
#define ICMP4_ECHO_REPLY 0
#define ICMP6_TOO_BIG 2
#define ICMP6_TIME_EXCEEDED 3
#define ICMP6_ECHO 128
#define ICMP6_ECHO_REPLY 129
#define ICMP6_ROUTER_SOLICIT 133
#define ICMP6_ROUTER_ADVERT 134
#define ICMP6_SOLICIT 135
#define ICMP6_ADVERT 136
#define ICMP6_REDIRECT 137

#define ICMP_BYTES 8

#endif
