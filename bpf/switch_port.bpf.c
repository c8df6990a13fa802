// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * For the lab's switches: attached to the switch's end of the veth pair that leads to a gateway. It passes
 * every frame. It is needed because a veth device wakes its peer for frames that XDP_TX sends only if the
 * peer has an XDP program.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int switch_port(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
