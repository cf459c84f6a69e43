/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a flow learns from segments. */
#ifndef SEGMENT_FLOW_H
#define SEGMENT_FLOW_H

#include "lib/atomics.h"
#include "segment/parse.h"

/* How far `promised` may fall behind, in bytes: a window is no larger (RFC 7323). */
#define PROMISE_REACH (1U << 30)

static __always_inline __u32 high_seq(const struct segment_side *side)
{
	return READ_ONCE(side->reach);
}

static __always_inline __u32 marks(const struct segment_side *side)
{
	return READ_ONCE(side->reach) >> 32;
}

/* Tells the marks before; a full barrier. */
static __always_inline __u32 add_marks(struct segment_side *side, __u32 added)
{
	return __sync_fetch_and_or(&side->reach, (__u64)added << 32) >> 32;
}

static __always_inline void take_marks(struct segment_side *side, __u32 taken)
{
	__sync_fetch_and_and(&side->reach, ~((__u64)taken << 32));
}

static __always_inline bool is_past(const struct segment_side *side)
{
	return marks(side) & SEGMENT_PAST;
}

static __always_inline bool is_pure_ack(const struct segment *s)
{
	return !s->payload && !(s->flags & (SYN | FIN | RST));
}

/* The peer has sent up to there: what was taken for the end of its stream before that is none. */
static __always_inline void raise_high_seq(struct segment_side *side, __u32 to)
{
	__u64 old = READ_ONCE(side->reach);
	__u64 kept = ~(__u64)(SEGMENT_FIN | SEGMENT_FIN_ACKED);
	int i;

	for (i = 0; i < 16 && after(to, old); i++) {
		__u64 found = __sync_val_compare_and_swap(&side->reach, old,
							  (old >> 32 & kept) << 32 | to);

		if (found == old)
			return;
		old = found;
	}
}

/* Marks the end of what has come, if it lies there; a full barrier then. */
static __always_inline bool mark_end(struct segment_side *side, __u32 end, __u32 added)
{
	__u64 old = READ_ONCE(side->reach);
	int i;

	for (i = 0; i < 16 && (__u32)old == end; i++) {
		__u64 found = __sync_val_compare_and_swap(&side->reach, old,
							  old | (__u64)added << 32);

		if (found == old)
			return true;
		old = found;
	}
	return false;
}

/*
 * The other peer has acknowledged up to `ack` (in this side's sequence space). Many CPUs may say so
 * at once; who loses the race says nothing new, or says it again with the next segment.
 */
static __always_inline void advance_acked(struct segment_side *side, __u32 ack, __u64 *moved_ns)
{
	__u64 old = READ_ONCE(side->acked);
	__u32 step = ack - (__u32)old;
	int i;

	for (i = 0; i < 4; i++) {
		__u64 found;

		if (step == 0 || step >> 31)
			return;
		found = __sync_val_compare_and_swap(&side->acked, old, old + step);
		if (found == old) {
			*moved_ns = bpf_ktime_get_coarse_ns();
			return;
		}
		old = found;
		step = ack - (__u32)old;
	}
}

/*
 * Only what can be true may move the marks: a forger has to hit the windows. False for what an
 * endpoint discards because of what it acknowledges (tcp_ack): what nobody has sent, or less than
 * any window leaves under way (RFC 5961).
 */
static __always_inline bool learn(const struct segment *s, struct segment_flow *flow,
				  struct segment_side *side, struct segment_side *other)
{
	__u32 ack = s->ack + side->ack_delta, end = end_of(s);
	__u32 oldest = side->high_ack - (0xffffU << (side->window_left & 15));

	if (after(ack, high_seq(other)) || after(oldest, s->ack))
		return false;
	raise(&side->high_ack, s->ack);
	if (!after(side->high_ack, s->ack))
		raise(&side->edge, s->ack + (s->window << (side->window_left & 15)));
	advance_acked(other, ack, &flow->moved_ns);
	/*
	 * Within the window that the other peer, or before it the relay, has announced; an end of
	 * stream may lie one beyond.
	 */
	if (!after(end + side->seq_delta, other->edge + 1)) {
		raise_high_seq(side, end);
		/* Else it would lie ahead again once two gigabytes have passed. */
		if (is_past(side) && after(end, side->promised + PROMISE_REACH))
			raise(&side->promised, other->edge - side->seq_delta);
	} else if (!after(end, side->promised + 1)) {
		raise_high_seq(side, end);
	}
	return true;
}

/*
 * Learns from a segment that goes by, also of a stream that goes by the sockets.
 * @s: the segment. @flow, @side, @other: its flow, the side of its sender, the other one. False for what an
 * endpoint would not believe.
 */
static __always_inline bool hear(const struct segment *s, struct segment_flow *flow,
				 struct segment_side *side, struct segment_side *other)
{
	if ((s->flags & (ACK | RST | SYN)) != ACK || !learn(s, flow, side, other))
		return false;
	if (s->flags & FIN)
		mark_end(side, end_of(s), SEGMENT_FIN);
	return true;
}

/*
 * Marks the end of a stream as acknowledged.
 * @other: the side whose stream it is. @ack: what is acknowledged of it, in its sequence space. Whether that was
 * its end, for the first time.
 */
static __always_inline bool acknowledge_end(struct segment_side *other, __u32 ack)
{
	return (marks(other) & (SEGMENT_FIN | SEGMENT_FIN_ACKED)) == SEGMENT_FIN &&
	       mark_end(other, ack, SEGMENT_FIN_ACKED);
}

#endif
