// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * For tests: operations on the session tables, by the functions that packet programs use. The "packet" is
 * an array of struct session_test, which are answered in place.
 */
#include "common/session_maps.h"
#include "test/session_operation.h"

char _license[] SEC("license") = "Dual BSD/GPL";

#define OPERATIONS_MAX 16

/* Global functions, so that the verifier processes each once and not for every operation. */
__attribute__((noinline)) int run4(struct session_test *test)
{
	struct session_config *config = session_config_at();

	if (config && test)
		session_test_run(4, config, test);
	return 0;
}

__attribute__((noinline)) int run6(struct session_test *test)
{
	struct session_config *config = session_config_at();

	if (config && test)
		session_test_run(6, config, test);
	return 0;
}

/* The current operation: memory per CPU, because the functions below need the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct session_test);
} scratch SEC(".maps");

SEC("xdp")
int sessions_test(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct session_test *test = bpf_map_lookup_elem(&scratch, &zero);

	if (!test)
		return XDP_ABORTED;
	for (__u32 i = 0; i < OPERATIONS_MAX; i++) {
		struct session_test *at = (void *)(long)ctx->data;
		void *end = (void *)(long)ctx->data_end;

		at += i;
		if ((void *)(at + 1) > end)
			break;
		*test = *at;
		if (test->family == 4)
			run4(test);
		else
			run6(test);
		at = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
		at += i;
		if ((void *)(at + 1) > end)
			break;
		*at = *test;
	}
	return XDP_PASS;
}
