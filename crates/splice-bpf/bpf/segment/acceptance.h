/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a flow learns from a segment: nothing, unless the receiver would take it. Whatever fails that test is translated
 * all the same, since its receiver has to answer: keep-alives and window probes fail it by design.
 *
 * The receiver is known by what has come by. What it has acknowledged last, and the end of its window, may be older here
 * than there, so this is never stricter than the receiver, and laxer only by what is on its way.
 */
#ifndef SEGMENT_ACCEPTANCE_H
#define SEGMENT_ACCEPTANCE_H

#include "segment/timestamp.h"

/* How far `promised` may fall behind, in bytes: a window is no larger (RFC 7323). */
#define PROMISE_REACH (1U << 30)

/*
 * Whether a segment lies in its receiver's window (RFC 9293, 3.10.7.4), and acknowledges what may be acknowledged: not
 * what nobody has sent, nor less than any window leaves under way (RFC 5961, 5.2; tcp_ack).
 */
static __always_inline bool is_in_window(const struct segment *s, const struct segment_side *side,
					 const struct segment_side *other)
{
	__u32 end = s->seq + s->payload, oldest = side->high_ack - side->largest_window;

	if (after(s->ack + side->ack_delta, high_seq(other)) || after(oldest, s->ack))
		return false;
	if (after(other->high_ack, end_of(s) + side->seq_delta))
		return false;
	/* That of the other peer, or before it the relay's. An end of stream takes no room. */
	return !after(end + side->seq_delta, other->edge) || !after(end, side->promised);
}

/* Takes in what an acceptable segment says. */
static __always_inline void learn(const struct segment *s, struct segment_flow *flow,
				  struct segment_side *side, struct segment_side *other)
{
	__u32 window = s->window << (side->window_left & 15), end = end_of(s);

	raise(&side->high_ack, s->ack);
	if (!after(side->high_ack, s->ack))
		raise(&side->edge, s->ack + window);
	if (window > READ_ONCE(side->largest_window))
		WRITE_ONCE(side->largest_window, window);
	advance_acked(other, s->ack + side->ack_delta, &flow->moved_ns);
	raise_high_seq(side, end);
	/* Else it would lie ahead again once two gigabytes have passed. */
	if (is_past(side) && after(end, side->promised + PROMISE_REACH))
		raise(&side->promised, other->edge - side->seq_delta);
}

/*
 * Who has reset a connection sends nothing more, and who has received a reset acknowledges nothing more. So a doubtful
 * reset was none.
 * @ack: what @side has acknowledged before.
 */
static __always_inline void clear_doubt(struct segment_side *side, struct segment_side *other, __u32 ack)
{
	if (marks(side) & SEGMENT_DOUBTED)
		take_marks(side, SEGMENT_DOUBTED);
	if ((marks(other) & SEGMENT_DOUBTED) && after(side->high_ack, ack))
		take_marks(other, SEGMENT_DOUBTED);
}

/*
 * Learns from a segment that goes by, also of a stream that goes by the sockets.
 * @s: the segment. @flow, @side, @other: its flow, the side of its sender, the other one. False for what an
 * endpoint would not take.
 */
static __always_inline bool hear(const struct segment *s, struct segment_flow *flow,
				 struct segment_side *side, struct segment_side *other)
{
	__u32 ack = side->high_ack;

	if ((s->flags & (ACK | RST | SYN)) != ACK || !s->is_verified || !is_in_window(s, side, other) ||
	    is_stale(s, flow, side))
		return false;
	learn(s, flow, side, other);
	if (s->flags & FIN)
		mark_end(side, end_of(s), SEGMENT_FIN);
	if ((marks(side) | marks(other)) & SEGMENT_DOUBTED)
		clear_doubt(side, other, ack);
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
