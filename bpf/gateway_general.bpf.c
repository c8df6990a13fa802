/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * For tests: the gateway's program without its fast path. It must do the same as gateway.bpf.c with every packet.
 */
#define WITHOUT_FAST_PATH

#include "gateway.bpf.c"
