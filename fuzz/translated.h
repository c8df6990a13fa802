/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What is true of each packet that the gateway translates, whatever is in it. Computed without the code under test, from
 * the pristine tables of kernel.h.
 */
#ifndef SLUICE_FUZZ_TRANSLATED_H
#define SLUICE_FUZZ_TRANSLATED_H

#include "kernel.h"

/* An Ethernet frame with an IP packet. */
static int is_ipv4(const uint8_t *frame)
{
	return frame[12] == 0x08 && frame[13] == 0x00;
}

/* Whether the first bits of two addresses are the same. */
static int has_prefix(const uint8_t *address, const uint8_t *prefix, uint32_t bits)
{
	for (uint32_t i = 0; i < bits; i++)
		if ((address[i / 8] ^ prefix[i / 8]) & 0x80 >> i % 8)
			return 0;
	return 1;
}

/*
 * Whether the address, of the frame's family, is in the outside or the inside of a public prefix. Those of a NAT gateway have no
 * inside.
 */
static int is_public(const uint8_t *frame, const uint8_t *address, int is_inside)
{
	for (uint32_t cell = CELL_FIRST_FREE; cell < cells_used; cell++) {
		const struct public_prefix *public = (void *)&pristine[cell];

		if (is_inside && public->flags & PUBLIC_NAT)
			continue;
		if (public->kind == NEXT_HOP_PUBLIC && is_ipv4(frame) != !!(public->flags & PUBLIC_IPV6) &&
		    has_prefix(address, is_inside ? public->inside : public->outside, public->length))
			return 1;
	}
	return 0;
}

static const uint8_t *source_of(const uint8_t *frame)
{
	return frame + (is_ipv4(frame) ? 26 : 22);
}

/* Residue of the transport checksum; -1: the packet has none, or is not of a simple form. */
static int transport_residue(const uint8_t *frame)
{
	uint32_t at = is_ipv4(frame) ? 34 : 54, bytes, protocol, pseudo;

	if (is_ipv4(frame)) {
		if (frame[14] != 0x45 || (frame[20] & 0x3f) | frame[21])
			return -1;
		bytes = (frame[16] << 8 | frame[17]) - 20;
		protocol = frame[23];
	} else {
		bytes = frame[18] << 8 | frame[19];
		protocol = frame[20];
	}
	if (protocol == IPPROTO_UDP && !(frame[at + 6] | frame[at + 7]))
		return -1;
	if (protocol == IPPROTO_ICMP && is_ipv4(frame))
		return residue(frame + at, bytes, 0);
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP &&
	    (protocol != IPPROTO_ICMPV6 || is_ipv4(frame)))
		return -1;
	pseudo = residue(source_of(frame), is_ipv4(frame) ? 8 : 32, 0);
	return residue(frame + at, bytes, pseudo + bytes + protocol);
}

/*
 * Checks what became of a frame: `before` was received, `after` is sent. Lengths have been checked. A checksum that was
 * right is right, and one that was wrong is as wrong as before.
 */
static void check_translated(const uint8_t *before, const uint8_t *after)
{
	uint32_t header = is_ipv4(before) ? (before[14] & 15) * 4 : 40;
	uint32_t bytes = is_ipv4(before) ? before[16] << 8 | before[17] : (before[18] << 8 | before[19]) + 40;

	if (memcmp(before + 12, after + 12, 3) ||
	    memcmp(before + (is_ipv4(before) ? 16 : 18), after + (is_ipv4(before) ? 16 : 18), 2))
		fail("family or length of a translated packet");
	if (is_ipv4(before) && residue(after + 14, header, 0))
		fail("IPv4 header checksum of a translated packet");
	if (transport_residue(before) != transport_residue(after))
		fail("transport checksum of a translated packet");
	/* What follows the transport header, or the IP header if there is no transport header, stays as it is. */
	if (bytes > header + 400 &&
	    memcmp(before + 14 + header + 400, after + 14 + header + 400, bytes - header - 400))
		fail("payload of a translated packet");
}

#endif
