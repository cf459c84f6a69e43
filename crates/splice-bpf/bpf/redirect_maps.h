/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How redirect and gate find a direction; user space sets max_entries before loading. */
#ifndef REDIRECT_MAPS_H
#define REDIRECT_MAPS_H

#include "redirect.h"

/* Sources; redirect is attached here. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__type(key, __u64);
	__type(value, __u64);
	__uint(max_entries, 1);
} sources SEC(".maps");

/* Indices of directions that need user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} calls SEC(".maps");

/* Cookie of a source -> its index in directions. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
	__uint(max_entries, 1);
} indices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct direction_entry);
	__uint(max_entries, 1);
} directions SEC(".maps");

static __always_inline void call(__u32 index)
{
	bpf_ringbuf_output(&calls, &index, sizeof(index), BPF_RB_FORCE_WAKEUP);
}

#endif
