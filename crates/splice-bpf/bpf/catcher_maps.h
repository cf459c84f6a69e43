/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What catcher has caught, for admit; user space sets max_entries before loading. */
#ifndef CATCHER_MAPS_H
#define CATCHER_MAPS_H

/* Cookie -> the connection's socket. No program is attached, and the kernel removes what is closed. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__type(key, __u64);
	__type(value, __u64);
	__uint(max_entries, 1);
} caught SEC(".maps");

#endif
