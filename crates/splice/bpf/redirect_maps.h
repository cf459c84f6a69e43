/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How redirect and gate find a direction; user space sets max_entries before loading. */
#ifndef REDIRECT_MAPS_H
#define REDIRECT_MAPS_H

#include "redirect.h"

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
	__type(value, struct direction);
	__uint(max_entries, 1);
} directions SEC(".maps");

#endif
