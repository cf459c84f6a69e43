/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How much memory is on the way through a TCP socket that only programs write to. */
#ifndef BACKLOG_H
#define BACKLOG_H

#include "kernel_fields.h"
#include "lib/bound.h"
#include "lib/psock.h"

/*
 * A target's share is its send buffer but for an eighth: the worker that finds it full comes again
 * after a jiffy only (sk_psock_backlog). Gate refuses what is new at a quarter beyond it.
 */
#define SPARE_SHIFT 3
#define REFUSE_SHIFT 2

/* Memory after the target that no peer has yet: in its backlog, of `pending` bytes, and sent. */
static __always_inline __s64 on_the_way(struct tcp_sock *tcp, __u32 pending)
{
	struct sock *sk = &tcp->inet_conn.icsk_inet.sk;

	return (__s64)sk->sk_wmem_queued + pending +
	       (__s64)backlog_of(psock_of(sk->sk_user_data)) * BOUND_SKB_COST;
}

#endif
