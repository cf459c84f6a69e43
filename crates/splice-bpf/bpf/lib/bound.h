/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A bound on what is outstanding at a target, for redirects that know no back-pressure.
 *
 * Every program that has one does the same three steps under its source's socket lock: it reads how much is outstanding, counts
 * the message with redirect_begins, and redirects it; redirect_is_refused takes the count back. They differ in what is
 * outstanding, as they differ in what they know of the target:
 *
 *   program            target              outstanding                       until
 *   redirect, mesh     peer of a TCP       memory: unwritten(), what the     the peer has acknowledged it
 *                      socket              socket has queued, BOUND_SKB_COST
 *                                          for each message (backlog.h)
 *   redirections       peer of a TCP       bytes: unwritten(), and what      it is sent
 *                      socket              was written and not sent
 *   redirections       reader, or peer     bytes in its queues               it is read, or sent
 *                      of another kind     (redirections_queues.h)
 *   bypass_send        reader of a TCP     bytes: `unread` of bypass.bpf.c,  it is read
 *                      socket              BOUND_MESSAGE_COST for each message
 *
 * - The first two own the target: nobody else writes there, so the place of its first redirected byte is fixed, and what is sent
 *   and not acknowledged can be counted to the same share. A target of redirections is its user's, who may write, so that place is
 *   taken anew whenever the backlog is empty.
 * - A bypass redirects by SK_MSG, in the sender's system call, straight to the reader's queue: there is no backlog and no worker. It
 *   counts what a reader takes in any case, for the order, and needs no look at the socket. That queue has a struct sk_msg for
 *   each message, however short.
 */
#ifndef BOUND_H
#define BOUND_H

/* What a queued message costs beside its bytes, in bytes. */
enum bound_cost {
	BOUND_SKB_COST = 1536,		/* struct sk_buff (SKB_TRUESIZE of an empty TCP skb is 1280 on 64 bits) */
	BOUND_MESSAGE_COST = 1024,	/* struct sk_msg (Linux 6.18), rounded up */
};

/* Counts @bytes before they are queued, so that nobody takes the target for empty while they are on their way. */
static __always_inline void redirect_begins(__u64 *redirected, __u32 bytes)
{
	__sync_fetch_and_add(redirected, bytes);
}

/* The helper did not take them. */
static __always_inline void redirect_is_refused(__u64 *redirected, __u32 bytes)
{
	__sync_fetch_and_add(redirected, -(__u64)bytes);
}

/*
 * Bytes that were redirected to a TCP socket's peer, and that the kernel's worker has not given to its send function.
 * @base: the socket's number of the byte that followed when @redirected was 0. @write_seq: of the next byte now. "Negative", 2^31
 * and more, if others have written there, or have redirected something after @redirected was read.
 */
static __always_inline __u32 unwritten(__u32 base, __u64 redirected, __u32 write_seq)
{
	return base + (__u32)redirected - write_seq;
}

#endif
