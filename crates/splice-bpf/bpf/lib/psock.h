/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What waits at a member of a map of sockets: for the kernel's worker, and for its reader. */
#ifndef PSOCK_H
#define PSOCK_H

#include <bpf/bpf_core_read.h>

/*
 * The kernel's structures, as far as they are read. The names after ___ are ours: other headers declare
 * other fields of them.
 */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head___queues {
	struct list_head___queues *next;
};

struct sk_buff___queues {
	__u32 len;
};

struct sk_buff_head___queues {
	void *next;
	__u32 qlen;
};

struct sk_msg_sg___queues {
	__u32 size;
};

struct sk_msg___queues {
	struct sk_msg_sg___queues sg;
	struct list_head___queues list;
};

struct sk_psock_work_state___queues {
	__u32 len;
};

struct sk_psock___queues {
	struct sk_buff_head___queues ingress_skb;
	struct list_head___queues ingress_msg;
	__u32 msg_tot_len;
	struct sk_psock_work_state___queues work_state;
};

#pragma clang attribute pop

/* sk_user_data carries flags in its low bits (SK_USER_DATA_PTRMASK). */
#define USER_DATA_FLAGS 7UL

/* What a map keeps of a member, by its sk_user_data; NULL if it is none. */
static __always_inline struct sk_psock___queues *psock_of(void *user_data)
{
	return (void *)((unsigned long)user_data & ~USER_DATA_FLAGS);
}

/* How many messages wait for the kernel's worker. */
static __always_inline __u32 backlog_of(struct sk_psock___queues *psock)
{
	__u32 messages = 0;

	bpf_core_read(&messages, sizeof(messages), &psock->ingress_skb.qlen);
	return messages;
}

/* Whether there are bytes for its reader that were redirected, or passed. */
static __always_inline int has_unread(struct sk_psock___queues *psock)
{
	void *first = NULL, *head = (void *)psock + bpf_core_field_offset(psock->ingress_msg);

	bpf_core_read(&first, sizeof(first), &psock->ingress_msg.next);
	return psock && first != head;
}

#endif
