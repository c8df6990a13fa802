// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * For tests: source NAT, by the functions that packet programs use. The "packet" is an array of struct nat_test, which are
 * answered in place.
 */
#include "common/nat_maps.h"
#include "common/nat_install.h"
#include "test/nat_operation.h"

char _license[] SEC("license") = "Dual BSD/GPL";

#define OPERATIONS_MAX 16

struct nat_scratch {
	struct nat_packet packet;
	struct nat_test test;
};

/* The present packet: memory per CPU, because the functions need the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_scratch);
} nat_scratch SEC(".maps");

/* Global, so that the verifier processes it once and not for every operation. */
__attribute__((noinline)) int run_nat(struct nat_scratch *scratch)
{
	if (scratch)
		nat_test_run(&scratch->packet, &scratch->test);
	return 0;
}

SEC("xdp")
int nat_test(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct nat_scratch *scratch = bpf_map_lookup_elem(&nat_scratch, &zero);

	if (!scratch)
		return XDP_ABORTED;
	for (__u32 i = 0; i < OPERATIONS_MAX; i++) {
		struct nat_test *at = (void *)(long)ctx->data;
		void *end = (void *)(long)ctx->data_end;

		at += i;
		if ((void *)(at + 1) > end)
			break;
		scratch->test = *at;
		run_nat(scratch);
		at = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
		at += i;
		if ((void *)(at + 1) > end)
			break;
		*at = scratch->test;
	}
	return XDP_PASS;
}
