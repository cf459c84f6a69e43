/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs share with each other and with user space. */
#ifndef SEGMENT_MAPS_H
#define SEGMENT_MAPS_H

#include "segment/shared.h"

/* return values of a tc program (linux/bpf.h has the enum since 6.6) */
#define NEXT -1
#define DROP 2

#define PACKET_HOST 0		/* linux/if_packet.h: the frame was sent to this host */
#define LOOPBACK 1		/* the index of lo in every network namespace */
#define MAX_HOPS 4		/* relays of this process in a row that are taken in one go; each is verified
				   anew */
#define FLOWS 16384		/* a pair has one, 320 and 64 bytes each: 6 MiB in a namespace */
#define OPTION_BYTES 40		/* the most that a TCP header has room for */
#define AF_INET 2
#define AF_INET6 10

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * FLOWS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct segment_tuple);
	__type(value, struct segment_place);
} segment_tuples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOWS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct segment_flow);
} segment_flows SEC(".maps");

/* At the index of its flow. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOWS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct segment_change_over);
} segment_change_overs SEC(".maps");

/* At the index of its flow, also of a forwarded one. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOWS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct segment_cold);
} segment_colds SEC(".maps");

/* Slots of flows that need user space. One calls once each time it is held: there is room for all at once. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 * FLOWS);	/* bytes: a slot with its header (BPF_RINGBUF_HDR_SZ) */
} segment_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct segment_gate);
} segment_gates SEC(".maps");

/* Of forwarded connections. User space sizes what it needs of them. */
#define ORIGINS 256		/* servers, times addresses of this host that lead to them */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct segment_end);
	__type(value, struct segment_listener);
} segment_listeners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ORIGINS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct segment_route);
	__type(value, __u32);
} segment_routes SEC(".maps");

/* The devices that forwarded connections may come in on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} segment_devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ORIGINS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct segment_origin);
} segment_origins SEC(".maps");

/*
 * How many connections are opening from networks of clients, each counted at a place that follows from its prefix.
 * Networks that share a place share its bound.
 */
#define PREFIXES 4096

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PREFIXES);
	__type(key, __u32);
	__type(value, __u32);
} segment_openings SEC(".maps");

/* At the indices of slots: see struct segment_origin. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} segment_free SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOWS);
	__type(key, struct segment_tuple);
	__type(value, struct segment_seen);
} segment_handshakes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SEGMENT_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} segment_counts SEC(".maps");

struct scratch {
	__u8 old[64] __attribute__((aligned(8)));
	__u8 new[64] __attribute__((aligned(8)));
};

/* Keeps the compiler from proving a bound by means that the verifier does not follow. */
#define OPAQUE(x) asm volatile("" : "+r"(x))

/* The compiler would compare `x - low` alone, of which the verifiers of 6.1 and 6.12 learn nothing about `x`. */
#define IS_WITHIN(x, low, high)	\
	({ bool fits = (x) >= (low); OPAQUE(x); fits && (x) <= (high); })

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} segment_scratch SEC(".maps");

/* So much payload is summed up at a time: bpf_csum_diff takes no more (MAX_BPF_STACK, Linux 6.12). */
#define CHUNK_BYTES 512

struct chunk {
	__be32 words[CHUNK_BYTES / 4];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct chunk);
} segment_chunks SEC(".maps");

/* @reason: enum segment_reason. Counts a segment more. */
static __always_inline void count(__u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&segment_counts, &reason);

	if (n)
		*n += 1;
}

/* @slot: index of a flow. What its change-over has to know; NULL for no flow. */
static __always_inline struct segment_change_over *change_over_of(__u32 slot)
{
	return bpf_map_lookup_elem(&segment_change_overs, &slot);
}

static __always_inline struct scratch *scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&segment_scratch, &zero);
}

#endif
