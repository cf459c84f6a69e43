/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The names of the functions of stacks. For the end of trace_stacks.bpf.c and trace_live.bpf.c: of a process that may not
 * trace, the kernel then refuses a program at a tracepoint first, and says why.
 */
#ifndef TRACE_NAME_H
#define TRACE_NAME_H

#include "trace_connection.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TRACE_NAMES);
	__type(key, __u32);
	__type(value, struct trace_symbol);
} symbols SEC(".maps");

/* Names the functions at the addresses of `symbols`, up to the first that is zero. */
SEC("syscall")
int trace_name(void *ctx)
{
	struct trace_symbol *symbol;
	__u32 i, key;

	(void)ctx;
	for (i = 0; i < TRACE_NAMES; i++) {
		key = i;
		symbol = bpf_map_lookup_elem(&symbols, &key);
		if (!symbol || !symbol->address)
			break;
		BPF_SNPRINTF((char *)symbol->name, sizeof(symbol->name), "%ps", symbol->address);
	}
	return 0;
}

#endif
