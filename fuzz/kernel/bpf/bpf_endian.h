/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Replaces libbpf's header of this name for programs that are compiled natively. */
#ifndef SLUICE_FUZZ_BPF_ENDIAN_H
#define SLUICE_FUZZ_BPF_ENDIAN_H

#include <endian.h>

#define bpf_htons(x) htobe16(x)
#define bpf_ntohs(x) be16toh(x)
#define bpf_htonl(x) htobe32(x)
#define bpf_ntohl(x) be32toh(x)
#define bpf_cpu_to_be64(x) htobe64(x)
#define bpf_be64_to_cpu(x) be64toh(x)

#endif
