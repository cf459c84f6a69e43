/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Servers of forwarded connections: which segments are theirs, their ports, and how many connections are opening. */
#ifndef SEGMENT_ORIGIN_H
#define SEGMENT_ORIGIN_H

#include "lib/tuple.h"
#include "segment/core.h"
#include "segment/flow.h"

/* How often to try to get a port while other CPUs get theirs. */
#define TAKE_TRIES 16

/* No network of clients may have more than one in so many of the connections that are opening. */
#define NETWORK_SHARE 2

/* Whether connections are forwarded here, or were. */
static __always_inline bool forwards(void)
{
	__u32 zero = 0;
	struct segment_gate *gate = bpf_map_lookup_elem(&segment_gates, &zero);

	return gate && READ_ONCE(gate->forwards);
}

/* The index of the origin that segments with this tuple come from; NULL if they are of no server. */
static __always_inline __u32 *origin_index_of(const struct segment_tuple *tuple)
{
	struct segment_route key = { .port = tuple->source_port };

	__builtin_memcpy(key.server, tuple->source, 16);
	__builtin_memcpy(key.source, tuple->destination, 16);
	return bpf_map_lookup_elem(&segment_routes, &key);
}

/* The origin of a flow; NULL if nobody forwards to its server any more. */
static __always_inline struct segment_origin *origin_of_flow(const struct segment_flow *flow)
{
	struct segment_tuple tuple;

	__u32 *index;

	reverse(&flow->side[0].out, &tuple);
	index = origin_index_of(&tuple);
	return index ? bpf_map_lookup_elem(&segment_origins, index) : NULL;
}

/* Where a segment belongs by its tuple alone. @tuple: on the stack, for Linux 6.1. @at: to be filled in. */
static __always_inline bool find_by_tuple(const struct segment_tuple *tuple, struct segment_place *at)
{
	struct segment_place *known = bpf_map_lookup_elem(&segment_tuples, tuple);

	if (!known)
		return false;
	at->serial = READ_ONCE(known->serial);
	fence();
	at->flow = known->flow;
	at->side = known->side;
	at->device = known->device;
	return true;
}

/*
 * Where a segment belongs: what comes from servers is found by its port, everything else by its tuple.
 * @tuple: the segment's. @at: to be filled in. False if it belongs nowhere.
 */
__noinline int find(struct segment_tuple *tuple, struct segment_place *at)
{
	struct segment_origin *origin;
	struct segment_flow *flow;
	__u32 port, state, slot, *index;

	if (!tuple || !at)
		return false;
	{
		/* Linux 6.1 takes no key from the argument of a function. */
		struct segment_tuple key = *tuple;

		if (find_by_tuple(&key, at))
			return true;
	}
	if (!forwards())
		return false;
	index = origin_index_of(tuple);
	if (!index)
		return false;
	origin = bpf_map_lookup_elem(&segment_origins, index);
	if (!origin)
		return false;
	port = bpf_ntohs(tuple->destination_port) - origin->first_port;
	if (port >= origin->ports)
		return false;
	slot = origin->base + port;
	flow = bpf_map_lookup_elem(&segment_flows, &slot);
	if (!flow)
		return false;
	state = load_acquire(&flow->state);
	if (state == SEGMENT_FREE || state == SEGMENT_CLAIMED)
		return false;
	at->flow = slot;
	at->side = *index << SEGMENT_ORIGIN_SHIFT | 1;
	at->device = origin->device;
	at->serial = flow->serial;
	return true;
}

/* Takes the port that was given back first. @slot: that of its connection. False if all are in use. */
static __always_inline bool take_port(struct segment_origin *origin, __u32 *slot)
{
	int i;

	for (i = 0; i < TAKE_TRIES; i++) {
		__u64 head = READ_ONCE(origin->head);
		__u64 *free;
		__u32 at;

		if (head == READ_ONCE(origin->tail))
			return false;
		/* What stands there was written before the tail. */
		fence();
		at = origin->base + head % origin->ports;
		free = bpf_map_lookup_elem(&segment_free, &at);
		if (!free)
			return false;
		/* Only the head lets user space write there again. */
		*slot = READ_ONCE(*free);
		if (__sync_val_compare_and_swap(&origin->head, head, head + 1) == head)
			return true;
	}
	return false;
}

/* How many connections are opening from the network of a client. @address: the client's. */
static __always_inline __u32 *openings_of(const __be32 *address)
{
	__u32 at;

	/* A /24 of IPv4, or a /56 of IPv6: what one customer has. Fibonacci hashing spreads neighbours. */
	if (!address[0] && !address[1])
		at = bpf_ntohl(address[3]) >> 8;
	else
		at = bpf_ntohl(address[0]) ^ bpf_ntohl(address[1]) >> 8;
	at = at * 2654435769U / (0xffffffff / PREFIXES + 1);
	return bpf_map_lookup_elem(&segment_openings, &at);
}

/* A connection is opening no more. Its state has changed, so nobody else says so. */
static __always_inline void count_off(struct segment_flow *flow)
{
	__u32 *openings = openings_of(flow->side[1].out.destination);

	if (!openings || !(flow->side[0].flags & SEGMENT_COUNTED))
		return;
	flow->side[0].flags &= ~SEGMENT_COUNTED;
	__sync_fetch_and_add(openings, -1);
}

#endif
