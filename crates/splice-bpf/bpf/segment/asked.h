/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Programs that user space runs, on a packet that says what it wants to know or to have done. */
#ifndef SEGMENT_ASKED_H
#define SEGMENT_ASKED_H

#include "segment/forward.h"
#include "segment/sockets.h"

/*
 * Run by user space on a packet that is a struct segment_inspection: tells what the kernel knows
 * of two sockets, without a lock and in one call. write_seq and copied_seq move only by the
 * relay's own hand.
 */
SEC("tc")
int segment_inspect(struct __sk_buff *skb)
{
	struct segment_inspection *in;
	struct segment_seen *seen;
	struct segment_tuple tuple;
	struct segment_socket out;
	int i;

	for (i = 0; i < 2; i++) {
		in = (void *)(long)skb->data;
		if ((void *)(in + 1) > (void *)(long)skb->data_end)
			return DROP;
		tuple = in->tuple[i];
		__builtin_memset(&out, 0, sizeof(out));
		inspect(skb, &tuple, &out);
		seen = bpf_map_lookup_elem(&segment_handshakes, &tuple);
		in->socket[i] = out;
		if (seen)
			in->seen[i] = *seen;
	}
	return NEXT;
}

/*
 * Run by user space when a flow is over: connection tracking has not seen its end, and would keep
 * the two connections for five days.
 */
SEC("tc")
int segment_forget(struct __sk_buff *skb)
{
	struct segment_inspection *in;
	struct segment_tuple tuple;
	__u32 forgotten = 0;
	int i;

	for (i = 0; i < 2; i++) {
		in = (void *)(long)skb->data;
		if ((void *)(in + 1) > (void *)(long)skb->data_end)
			return DROP;
		tuple = in->tuple[i];
		forgotten += forget(skb, &tuple);
	}
	in = (void *)(long)skb->data;
	if ((void *)(in + 1) > (void *)(long)skb->data_end)
		return DROP;
	in->forgotten = forgotten;
	return NEXT;
}

/*
 * Run by user space when the host's filters ask for the state of connections: whether connection tracking
 * knows these two.
 */
SEC("tc")
int segment_tracked(struct __sk_buff *skb)
{
	struct segment_inspection *in;
	struct segment_tuple tuple;
	__u32 known;
	int i;

	for (i = 0; i < 2; i++) {
		in = (void *)(long)skb->data;
		if ((void *)(in + 1) > (void *)(long)skb->data_end)
			return DROP;
		tuple = in->tuple[i];
		known = track(skb, &tuple);
		in = (void *)(long)skb->data;
		if ((void *)(in + 1) > (void *)(long)skb->data_end)
			return DROP;
		in->tracked[i] = known;
	}
	return NEXT;
}

/* Run by user space on a packet that is a struct segment_released. */
SEC("tc")
int segment_release(struct __sk_buff *skb)
{
	struct segment_released *in;
	__u32 i, flow, serial;

	for (i = 0; i < SEGMENT_RELEASED_MOST; i++) {
		in = (void *)(long)skb->data;
		if ((void *)(in + 1) > (void *)(long)skb->data_end)
			return DROP;
		if (i >= in->count)
			break;
		flow = in->flow[i];
		serial = in->serial[i];
		release(flow, serial);
	}
	return NEXT;
}

#endif
