/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Replaces libbpf's header of this name for programs that are compiled natively:
 * fields of the kernel's struct sk_buff are read from the skb of the fuzz target.
 */
#ifndef SLUICE_FUZZ_BPF_CORE_READ_H
#define SLUICE_FUZZ_BPF_CORE_READ_H

struct sk_buff;

/* The kernel's view of the packet that the program works on; the fuzz target defines it. */
struct sk_buff *native_skb(void);

#define BPF_CORE_READ_BITFIELD(object, field) ((object)->field)
#define BPF_CORE_READ(object, field) ((void)(object), native_skb()->field)
#define BPF_CORE_READ_BITFIELD_PROBED(object, field) BPF_CORE_READ(object, field)

#endif
