// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * For the lab's switches: the end of a veth pair that faces a gateway. It
 * passes every frame. Its presence is the point: a veth device wakes its peer
 * for frames sent by XDP_TX only if the peer has an XDP program too.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int switch_port(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
