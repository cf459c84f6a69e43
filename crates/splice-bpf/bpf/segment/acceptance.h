/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a flow learns from a segment: nothing, unless it is acceptable to its receiver (RFC 9293, 3.10.7.4). Whatever fails
 * that test is translated all the same, since its receiver has to answer: keep-alives and window probes fail it by design.
 *
 * The receiver is known by what has come by. Its last acknowledgement and the end of its window may be newer there than
 * here, so this is laxer than the receiver by what is on its way. It is stricter only where segments overtake one
 * another after this program; the next segment of the same sender then makes up for what was not learned.
 */
#ifndef SEGMENT_ACCEPTANCE_H
#define SEGMENT_ACCEPTANCE_H

#include "segment/timestamp.h"

/* The right edge of the receiver's window, or before it that of the relay's socket; in the sequence space of @side. */
static __always_inline __u32 window_end(const struct segment_side *side, const struct segment_side *other)
{
	__u32 edge = other->edge - side->seq_delta;

	/* The relay's may have been left far behind. */
	return after(side->announced_edge, edge) ? side->announced_edge : edge;
}

/*
 * Whether a segment begins in its receiver's window, or where its sender's stream has got to, as after a FIN, which
 * takes no room; and whether not all of it is too old (RFC 9293, 3.10.7.4). What reaches beyond the window counts, too
 * (tcp_sequence): it may be wider by now.
 */
static __always_inline bool is_in_window(const struct segment *s, const struct segment_side *side,
					 const struct segment_side *other)
{
	return !after(other->high_ack, end_of(s) + side->seq_delta) &&
	       (!after(s->seq, window_end(side, other)) || s->seq == high_seq(side));
}

/*
 * Whether what it acknowledges may be acknowledged: not what nobody has sent, nor less than any window leaves under way,
 * nor what lies before the stream (RFC 5961, 5.2; tcp_ack).
 */
static __always_inline bool is_ack_acceptable(const struct segment *s, const struct segment_side *side,
					      const struct segment_side *other)
{
	__u32 oldest = side->high_ack - side->largest_window;

	if (after(side->first_ack, oldest))
		oldest = side->first_ack;
	return !after(s->ack + side->ack_delta, high_seq(other)) && !after(oldest, s->ack);
}

/*
 * A stream has come far beyond the edge that its socket has announced, which would lie ahead again after two gigabytes.
 * Nothing of note is returned.
 */
__noinline int leave_socket(struct segment_side *side, struct segment_side *other)
{
	if (!side || !other)
		return 0;
	raise(&side->announced_edge, other->edge - side->seq_delta);
	add_marks(side, SEGMENT_DISTANT);
	return 0;
}

/* Takes in what an acceptable segment says that came at @now_ns. */
static __always_inline void learn(const struct segment *s, struct segment_flow *flow,
				  struct segment_side *side, struct segment_side *other, __u64 now_ns)
{
	__u32 window = s->window << (side->window_left & 15), end = end_of(s);

	raise(&side->high_ack, s->ack);
	if (!after(side->high_ack, s->ack))
		raise(&side->edge, s->ack + window);
	if (window > READ_ONCE(side->largest_window))
		WRITE_ONCE(side->largest_window, window);
	advance_acked(other, s->ack + side->ack_delta, &flow->moved_ns, now_ns);
	/* What has no bytes takes its sender no further, wherever in the window it stands. */
	if (!is_pure_ack(s)) {
		if (after(s->seq, high_seq(side)) && !(marks(side) & SEGMENT_GAP))
			add_marks(side, SEGMENT_GAP);
		raise_high_seq(side, end);
	}
	if (is_taken_over(side) && after(end, side->announced_edge + SEGMENT_WINDOW_LIMIT))
		leave_socket(side, other);
	if (after(side->high_ack, side->first_ack + SEGMENT_WINDOW_LIMIT))
		WRITE_ONCE(side->first_ack, side->high_ack - SEGMENT_WINDOW_LIMIT);
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

/* Keeps when the sender's last segment was accepted, @now_ns, and since when each of the two waits for an acknowledgement. */
static __always_inline void keep_time(const struct segment *s, struct segment_side *side,
				      struct segment_side *other, __u64 now_ns)
{
	__u32 now = ticks_of(now_ns);

	WRITE_ONCE(side->accepted_at, now);
	if (READ_ONCE(other->waiting)) {
		bool is_all = s->ack + side->ack_delta == high_seq(other);

		WRITE_ONCE(other->waiting, is_all ? 0 : now);
		/* Another CPU may have had more in hand. */
		if (is_all && s->ack + side->ack_delta != high_seq(other))
			WRITE_ONCE(other->waiting, now);
		if (is_all && (marks(other) & SEGMENT_GAP))
			take_marks(other, SEGMENT_GAP);
	}
	if (!is_pure_ack(s) && !READ_ONCE(side->waiting))
		WRITE_ONCE(side->waiting, now);
}

/*
 * A peer that has no room is asked for it (RFC 9293, 3.8.6.1), by a segment that it discards and answers: who asks,
 * waits.
 */
static __always_inline void keep_time_of_probe(const struct segment *s, struct segment_side *side,
					       const struct segment_side *other)
{
	/* Its window is announced to it in steps. */
	__u32 step = 1U << (side->own_scale & 15), edge = other->edge - side->seq_delta;

	if (!s->is_verified || s->seq + 1 != high_seq(side) || after(edge, high_seq(side) + step - 1))
		return;
	if (!READ_ONCE(side->waiting))
		WRITE_ONCE(side->waiting, ticks_of(bpf_ktime_get_coarse_ns()));
	if (!(marks(side) & SEGMENT_PROBES))
		add_marks(side, SEGMENT_PROBES);
}

/*
 * Takes in where a stream ends. Of several ends, a receiver meets the first one that it has not received more than.
 * @side, @other: of the stream, and the other one. @end: the number after the FIN.
 */
static __always_inline void learn_end(struct segment_side *side, const struct segment_side *other, __u32 end)
{
	__u32 acked = other->high_ack - side->seq_delta, known = READ_ONCE(side->fin_end);

	if (!after(end, acked) || ((marks(side) & SEGMENT_FIN) && after(known, acked) && !after(known, end)))
		return;
	WRITE_ONCE(side->fin_end, end);
	add_marks(side, SEGMENT_FIN);
}

/*
 * Tests a segment as its receiver does (RFC 9293, 3.10.7.4), and learns from it if it is acceptable; also of a stream that
 * goes by the sockets.
 * @s: the segment. @flow, @side, @other: its flow, the side of its sender, the other one. Whether it is acceptable.
 */
static __always_inline bool accept_segment(const struct segment *s, struct segment_flow *flow,
				 struct segment_side *side, struct segment_side *other)
{
	__u32 ack = side->high_ack;
	__u64 now_ns;

	if ((s->flags & (ACK | RST | SYN)) != ACK || !s->is_verified || !is_in_window(s, side, other) ||
	    !is_ack_acceptable(s, side, other) || is_stale(s, side))
		return false;
	now_ns = bpf_ktime_get_coarse_ns();
	learn(s, flow, side, other, now_ns);
	if (s->flags & FIN)
		learn_end(side, other, end_of(s));
	keep_time(s, side, other, now_ns);
	if ((marks(side) | marks(other)) & SEGMENT_DOUBTED)
		clear_doubt(side, other, ack);
	return true;
}

/* The stream has ended, and its sender has sent nothing beyond that. */
static __always_inline bool is_end(const struct segment_side *side)
{
	return READ_ONCE(side->fin_end) == high_seq(side);
}

/*
 * Marks the end of a stream as acknowledged. Who acknowledges more has not taken it for the end.
 * @other: the side whose stream it is. @ack: what is acknowledged of it, in its sequence space. Whether that was
 * its end, for the first time; a full barrier then.
 */
static __always_inline bool acknowledge_end(struct segment_side *other, __u32 ack)
{
	__u32 known = marks(other) & (SEGMENT_FIN | SEGMENT_FIN_ACKED);

	if (known == SEGMENT_FIN && ack == READ_ONCE(other->fin_end)) {
		add_marks(other, SEGMENT_FIN_ACKED);
		return true;
	}
	if ((known & SEGMENT_FIN_ACKED) && after(ack, READ_ONCE(other->fin_end)))
		take_marks(other, SEGMENT_FIN_ACKED);
	return false;
}

#endif
