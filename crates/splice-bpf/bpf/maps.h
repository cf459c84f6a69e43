/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps that the programs share; user space sets max_entries before loading. */
#ifndef MAPS_H
#define MAPS_H

/*
 * Cookie of a source -> the socket that its bytes go to. No program is attached to this map, so
 * being in it makes a socket a target and nothing else. A cookie is never used again, so a
 * verdict that runs late cannot meet the target of somebody else.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__type(key, __u64);
	__type(value, __u64);
	__uint(max_entries, 1);
} targets SEC(".maps");

#endif
