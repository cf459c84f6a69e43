/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How much lies in front of a socket's send function. */
#ifndef BACKLOG_H
#define BACKLOG_H

#include "kernel_fields.h"

/* skbs that wait on the socket's psock for the worker that sends them. */
static __always_inline __u32 backlog_skbs(void *user_data)
{
	struct sk_psock *psock = (void *)((unsigned long)user_data & ~USER_DATA_FLAGS);
	__u32 skbs = 0;

	bpf_core_read(&skbs, sizeof(skbs), &psock->ingress_skb.qlen);
	return skbs;
}

#endif
