/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* libbpf's header of this name, for programs compiled natively: there is one skb. */
#ifndef SLUICE_FUZZ_BPF_CORE_READ_H
#define SLUICE_FUZZ_BPF_CORE_READ_H

struct sk_buff;
extern struct sk_buff native_skb;

#define BPF_CORE_READ(object, field) ((void)(object), native_skb.field)
#define BPF_CORE_READ_BITFIELD_PROBED(object, field) BPF_CORE_READ(object, field)

#endif
