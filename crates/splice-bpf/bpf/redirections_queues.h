/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How many bytes wait at a target. */
#ifndef REDIRECTIONS_QUEUES_H
#define REDIRECTIONS_QUEUES_H

#include "lib/psock.h"

/* A way through one of the kernel's lists, whose nodes begin with the next one. Others may change it meanwhile. */
struct walk {
	__u64 head;
	__u64 node;
	__s64 length_at;	/* where the length of a node's bytes is, seen from the node */
	__u64 bytes;
	__u32 nodes;
	__u32 is_whole;		/* 1 if it has come back to the head */
};

/* A longer list is not counted, since this may hold up a softirq: some 50 us. */
#define MOST_NODES 1024

static long walk_on(__u32 index, void *context)
{
	struct walk *walk = context;
	__u32 bytes = 0;
	__u64 next = 0;

	(void)index;
	if (walk->node == walk->head) {
		walk->is_whole = 1;
		return 1;
	}
	/* A node that is gone by now is memory of others, or of nobody. */
	if (bpf_probe_read_kernel(&bytes, sizeof(bytes), (void *)(walk->node + walk->length_at)) ||
	    bpf_probe_read_kernel(&next, sizeof(next), (void *)walk->node))
		return 1;
	walk->bytes += bytes;
	walk->nodes++;
	walk->node = next;
	return 0;
}

/* Adds up the list at @head. 0 if it is too long, or has changed meanwhile. */
static __always_inline int add_list(struct walk *walk, void *head, __s64 length_at)
{
	__u64 first = 0;

	if (bpf_probe_read_kernel(&first, sizeof(first), head))
		return 0;
	*walk = (struct walk){ .head = (__u64)head, .node = first, .length_at = length_at };
	bpf_loop(MOST_NODES + 1, walk_on, walk, 0);
	return walk->is_whole;
}

/*
 * The bytes in a target's queues: the backlog, less what the worker has sent of its first message, and with @to_local those
 * that wait for the reader. 0 if they cannot be told, or have changed meanwhile.
 *
 * The worker puts a message into the reader's queue before it takes it from the backlog, so none is missed on the way.
 */
static __always_inline int count_queued(struct sk_psock___queues *psock, int to_local, __u64 *bytes)
{
	__u32 rest = 0, length = 0;
	__u64 first = 0;
	struct walk walk;
	void *head;

	*bytes = 0;
	if (!psock)
		return 1;
	if (backlog_of(psock)) {
		head = (void *)psock + bpf_core_field_offset(psock->ingress_skb);
		bpf_probe_read_kernel(&first, sizeof(first), head);
		if (!add_list(&walk, head, bpf_core_field_offset(struct sk_buff___queues, len)))
			return 0;
		if (walk.nodes != backlog_of(psock))
			return 0;
		*bytes = walk.bytes;
		/* Left of the first message, if not everything is (sk_psock_skb_state). */
		bpf_core_read(&rest, sizeof(rest), &psock->work_state.len);
		bpf_core_read(&length, sizeof(length), &((struct sk_buff___queues *)first)->len);
		if (rest && rest < length)
			*bytes -= length - rest;
	}
	if (!to_local)
		return 1;
	/* Since 6.6.128, 6.12.75, 6.18.14 and 7.0 the kernel adds them up itself. */
	if (bpf_core_field_exists(psock->msg_tot_len)) {
		bpf_core_read(&length, sizeof(length), &psock->msg_tot_len);
		*bytes += length;
		return 1;
	}
	head = (void *)psock + bpf_core_field_offset(psock->ingress_msg);
	if (!add_list(&walk, head,
		    (__s64)bpf_core_field_offset(struct sk_msg___queues, sg.size) -
			    (__s64)bpf_core_field_offset(struct sk_msg___queues, list)))
		return 0;
	*bytes += walk.bytes;
	return 1;
}

/* More than the number of times that the worker may come in between one after the other. */
#define TRIES 4

#define UNCOUNTED (~0ULL)

/* The same; UNCOUNTED if they cannot be told. Whoever changes the queues is soon done, so that is tried again. */
__noinline __u64 queued_bytes(__u64 psock, __u32 to_local)
{
	__u64 bytes = 0;

	for (__u32 i = 0; i < TRIES; i++)
		if (count_queued((void *)psock, to_local, &bytes))
			return bytes;
	return UNCOUNTED;
}

#endif
