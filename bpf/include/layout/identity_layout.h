/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Identities of VMs on other hosts: the map `remote_identities` of the vSwitch.
 *
 * Contract: crates/tables binds this at build time. The agent writes entries and removes them; programs write only `used`.
 * Addresses are as in struct frame: halves in host order, high half first, IPv4 in the low 32 bits of the second.
 */
#ifndef SLUICE_IDENTITY_LAYOUT_H
#define SLUICE_IDENTITY_LAYOUT_H

#include <linux/types.h>

#define REMOTE_IDENTITIES_MAX 65536

struct remote_identity_key {
	__u32 vni;  /* of the sender, and of the VM: an identity means something in its own VPC only */
	__u32 ipv6; /* 1 if the address is IPv6, otherwise 0 */
	__u64 address[2];
};

struct remote_identity {
	__u32 identity; /* 16 bits; 0: the VM has no security groups, or there is no such VM */
	__u32 used;	/* when a packet was last judged by it, in ticks of the session table */
};

#endif
