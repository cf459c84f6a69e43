/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of one redirect, and what user space has set. */
#ifndef REDIRECTIONS_MAPS_H
#define REDIRECTIONS_MAPS_H

#include "redirections.h"

const volatile struct redirections_setting setting SEC(".rodata.setting");

/* User space sets the types and sizes of the first two maps, and the sizes of all. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__type(key, __u64);
	__type(value, __u64);
	__uint(max_entries, 1);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__type(key, __u64);
	__type(value, __u64);
	__uint(max_entries, 1);
} targets SEC(".maps");

/* Cookie of a source (or 0, if there is only one) -> its redirection. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct redirection);
	__uint(max_entries, 1);
} redirections SEC(".maps");

#endif
