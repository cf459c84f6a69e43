/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What becomes of a segment whose flow is spliced, or over. */
#ifndef SEGMENT_STEADY_H
#define SEGMENT_STEADY_H

#include "segment/reset.h"

/*
 * ECN ends here where only one of the connections does it: nobody after it can echo to the sender that its
 * segments were marked instead of dropped, and it would never slow down. So the program sets ECE, as the
 * relay's socket did, until the sender sets CWR (RFC 3168, 6.1.3).
 */
static __always_inline void end_ecn(struct segment *s, struct segment_side *side,
				    const struct segment_side *other)
{
	if ((side->flags & SEGMENT_ECHO_ECN) && s->is_acceptable) {
		if ((s->flags & CWR) && (marks(side) & SEGMENT_CONGESTED))
			take_marks(side, SEGMENT_CONGESTED);
		if (s->congested && !(marks(side) & SEGMENT_CONGESTED))
			add_marks(side, SEGMENT_CONGESTED);
	}
	s->flags &= ~(ECE | CWR);
	if ((marks(other) & SEGMENT_CONGESTED) && !(s->flags & (SYN | RST)))
		s->flags |= ECE;
	s->congested = 0;
	s->clear_ecn = 1;
}

/*
 * Writes what has been found into the segment, and where it goes from here.
 * @s: the segment. @side, @other: of its sender, and the other one. @seq, @ack: its numbers in the receiver's
 * sequence spaces. @window: in bytes.
 */
static __always_inline void place(struct segment *s, struct segment_side *side,
				  const struct segment_side *other, __u32 seq, __u32 ack, __u32 window)
{
	if (s->payload && after(seq + s->payload, other->edge))
		count(SEGMENT_NO_ROOM);
	s->sack_delta += side->ack_delta;
	s->seq = seq;
	s->ack = ack;
	window >>= side->window_right & 15;
	s->window = window < 0xffff ? window : 0xffff;
	if (side->flags & SEGMENT_STRIP_SACK)
		s->strip_sack = 1;
	if (side->flags & SEGMENT_CLEAR_ECN)
		end_ecn(s, side, other);
	s->local = side->flags & SEGMENT_LOCAL;
	s->out_device = side->out_device;
	s->tuple = side->out;
}

/*
 * Where the next number of a pure ACK may lie: the relay may have accepted more from this peer than the other one
 * has room for, so it can lie outside of the other's window; there an acknowledgement would be ignored.
 * @s: the segment. @seq: its number in the sequence space of @other. The number to send it with.
 */
static __always_inline __u32 within_window(const struct segment *s, __u32 seq,
					   const struct segment_side *other)
{
	return s->is_acceptable && is_pure_ack(s) && after(seq, other->edge) ? other->edge : seq;
}

/*
 * Turns a segment into what the other peer expects, in SPLICED and TIME_WAIT. It may end the flow.
 * @s: the segment. @flow, @slot: its flow, and the flow's index. @from: the side of its sender. @state: of the flow.
 * False when it is called in a wrong way.
 */
__noinline int translate_steady(struct segment *s, struct segment_flow *flow, __u32 slot, __u32 from,
				__u32 state)
{
	struct segment_side *side, *other;
	__u32 end, seq, ack, window;

	if (!s || !flow)
		return 0;
	s->copy = 0;
	side = &flow->side[from & 1];
	other = &flow->side[!(from & 1)];
	end = end_of(s);
	seq = s->seq + side->seq_delta;
	ack = s->ack + side->ack_delta;
	window = s->window << (side->window_left & 15);

	if (state == SEGMENT_TIME_WAIT && s->is_verified)
		prolong(flow, flow->last_ns);
	s->is_acceptable = accept_segment(s, flow, side, other);
	if (s->flags & RST) {
		take_reset(s, flow, side, other, state);
	} else if (s->is_acceptable && acknowledge_end(other, ack)) {
		/*
		 * The other end of stream may be acknowledged on another CPU at this moment: a full barrier
		 * each lets one of the two see both. Where something seems to lie after an end, the next
		 * acknowledgement may show that it was none: user space looks later.
		 */
		if (state == SEGMENT_SPLICED && (add_marks(side, 0) & SEGMENT_FIN_ACKED) &&
		    is_end(side) && is_end(other)) {
			prolong(flow, 0);
			end_spliced(flow);
			s->copy = COPY_RST;
		}
	} else if (!s->is_acceptable && s->is_verified) {
		count(SEGMENT_UNACCEPTABLE);
		keep_time_of_probe(s, side, other);
	}
	if (s->sack_clip)
		s->sack_floor += side->ack_delta;
	if (!(side->flags & SEGMENT_FORWARDED)) {
		seq = within_window(s, seq, other);
		/* Connection tracking has seen the question, and forgets a connection that does not answer. */
		if ((marks(side) & SEGMENT_ASKED) && s->is_acceptable && is_pure_ack(s) && !s->copy)
			s->copy = COPY_ACK;
	}
	if (s->payload)
		count_payload(s, flow, slot, from);
	place(s, side, other, seq, ack, window);
	if (s->has_timestamp) {
		translate_timestamp(s, flow, slot, from);
		/* One that is out of order may be discarded yet. */
		if (s->is_acceptable && end == high_seq(side))
			note_timestamp(&side->latest_timestamp, s->tsval);
	}
	return 1;
}

#endif
