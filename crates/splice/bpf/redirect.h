/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the redirect program and user space share; mirrored by src/bpf_types.rs. */
#ifndef REDIRECT_H
#define REDIRECT_H

/*
 * One direction of a pair, in an array that user space has mapped. Every field has one writer,
 * so neither side can overwrite what the other counted.
 *
 * The order of the stream rests on one rule: bytes are redirected only while consumed == passed,
 * that is while user space has nothing of this direction left to copy; and user space copies only
 * after everything redirected has reached the target.
 */
struct direction {
	/* Written by the program. */
	__u64 redirected;	/* bytes handed to the target in the kernel */
	__u64 passed;		/* bytes left on the source for user space */
	__u64 last_ns;		/* CLOCK_MONOTONIC_COARSE when bytes last came */
	__s64 credit;		/* cost that fits the target without another look */
	__u32 largest;		/* highest cost of one skb so far */
	__u32 latched;		/* the target was full: pass until it is half empty */
	__u32 full;		/* skbs passed because the target was full */
	__u32 behind;		/* skbs passed because user space had bytes to copy */
	__u32 limited;		/* skbs passed because they reach the byte limit */
	__u32 missed;		/* skbs passed because the target was gone */
	__u32 trimmed;		/* skbs that began with bytes which had come before */
	__u32 fins;		/* bare ends of stream, dropped; the socket knows of them */

	/* Written by user space, on a cache line of its own. */
	__u64 consumed __attribute__((aligned(64))); /* passed bytes given to the target */
	__u32 base_seq;		/* sequence number of the direction's first byte */
	__u64 limit;		/* byte limit: what reaches it is user space's to move */
} __attribute__((aligned(64)));

/* What inspect tells of a target, which is a source of the other direction too. */
struct inspection {
	__u64 cookie;		/* in: the source whose target is meant */
	__u32 found;		/* out: 1 when there is such a target */
	__u32 queued_skbs;	/* out: redirected to it, not yet given to its send function */
	__u32 write_seq;	/* out: behind the last byte given to its send function */
	__u32 copied_seq;	/* out: behind the last byte that was taken out of it */
	__u32 rcv_nxt;		/* out: behind the last byte (or end of stream) that came */
	__u32 unused;
};

#endif
