/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What waits at a member of a map of sockets: for the kernel's worker, and for its reader. */
#ifndef REDIRECTIONS_QUEUES_H
#define REDIRECTIONS_QUEUES_H

#include <bpf/bpf_core_read.h>

/*
 * The kernel's structures, as far as they are read. The names behind ___ are ours: other headers declare
 * other fields of them.
 */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cookie___redirections {
	__s64 counter;
};

struct sock_common___redirections {
	struct cookie___redirections skc_cookie;
};

struct sock___redirections {
	struct sock_common___redirections __sk_common;
	void *sk_user_data;
};

struct list_head___redirections {
	struct list_head___redirections *next;
};

struct sk_buff___redirections {
	__u32 len;
};

struct sk_buff_head___redirections {
	void *next;
	__u32 qlen;
};

struct sk_msg_sg___redirections {
	__u32 size;
};

struct sk_msg___redirections {
	struct sk_msg_sg___redirections sg;
	struct list_head___redirections list;
};

struct sk_psock_work_state___redirections {
	__u32 len;
};

struct sk_psock___redirections {
	struct sk_buff_head___redirections ingress_skb;
	struct list_head___redirections ingress_msg;
	__u32 msg_tot_len;
	struct sk_psock_work_state___redirections work_state;
};

#pragma clang attribute pop

/* sk_user_data carries flags in its low bits (SK_USER_DATA_PTRMASK). */
#define USER_DATA_FLAGS 7UL

struct queues {
	struct sk_psock___redirections *psock;
	__u32 backlog;	/* messages that wait for the kernel's worker */
	__u32 unread;	/* 1 if there are bytes for its reader */
};

static __always_inline struct queues queues_of(struct sock___redirections *sk)
{
	void *user_data = NULL;
	struct sk_psock___redirections *psock;
	struct list_head___redirections *head, *first = NULL;
	struct queues found = {};

	bpf_core_read(&user_data, sizeof(user_data), &sk->sk_user_data);
	psock = (void *)((__u64)user_data & ~USER_DATA_FLAGS);
	if (!psock)
		return found;
	found.psock = psock;
	head = (void *)psock + bpf_core_field_offset(psock->ingress_msg);
	bpf_core_read(&found.backlog, sizeof(found.backlog), &psock->ingress_skb.qlen);
	bpf_probe_read_kernel(&first, sizeof(first), head);
	found.unread = first != head;
	return found;
}

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
static __always_inline int add_up(struct walk *walk, void *head, __s64 length_at)
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
 * that wait for the reader. 0 if they cannot be told at this moment.
 *
 * The worker puts a message into the reader's queue before it takes it from the backlog, so none is missed on the way.
 */
static __always_inline int count_queued(struct queues *queues, int to_local, __u64 *bytes)
{
	struct sk_psock___redirections *psock = queues->psock;
	__u32 backlog = 0, rest = 0, length = 0;
	__u64 first = 0;
	struct walk walk;
	void *head;

	*bytes = 0;
	if (!psock)
		return 1;
	if (queues->backlog) {
		head = (void *)psock + bpf_core_field_offset(psock->ingress_skb);
		bpf_probe_read_kernel(&first, sizeof(first), head);
		if (!add_up(&walk, head, bpf_core_field_offset(struct sk_buff___redirections, len)))
			return 0;
		bpf_core_read(&backlog, sizeof(backlog), &psock->ingress_skb.qlen);
		if (walk.nodes != backlog)
			return 0;
		*bytes = walk.bytes;
		/* Left of the first message, if not everything is (sk_psock_skb_state). */
		bpf_core_read(&rest, sizeof(rest), &psock->work_state.len);
		bpf_core_read(&length, sizeof(length), &((struct sk_buff___redirections *)first)->len);
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
	if (!add_up(&walk, head,
		    (__s64)bpf_core_field_offset(struct sk_msg___redirections, sg.size) -
			    (__s64)bpf_core_field_offset(struct sk_msg___redirections, list)))
		return 0;
	*bytes += walk.bytes;
	return 1;
}

#endif
