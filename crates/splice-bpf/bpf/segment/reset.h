/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How a flow ends: by resets, and for how long it still translates then. */
#ifndef SEGMENT_RESET_H
#define SEGMENT_RESET_H

#include "segment/acceptance.h"

/* skb->mark of a copy on its way to the relay's own socket; nobody else sees it */
#define COPY_ACK 0x53504c41
#define COPY_RST 0x53504c52
/* and of one whose acknowledgement is translated, for the other peer; its payload goes to that socket */
#define COPY_TO_PEER 0x53504c50

/*
 * How long a flow that is over still translates after its last segment: four retransmissions of a FIN
 * that get lost before they come here (0.2, 0.6, 1.4, 3 s). Each retransmission waits twice as long as
 * the one before, so a late one prolongs it; TIME_WAIT's length is the most (TCP_TIMEWAIT_LEN).
 */
#define TIME_WAIT_NS (3200ULL * 1000 * 1000)
#define LONGEST_TIME_WAIT_NS (60ULL * 1000 * 1000 * 1000)
#define RETRANSMISSION_GROWTH 3

/* A segment came in TIME_WAIT, or began it. @since_ns: when the last one came; 0: this is the first. */
static __always_inline void prolong(struct segment_flow *flow, __u64 since_ns)
{
	__u64 now = bpf_ktime_get_ns(), most = LONGEST_TIME_WAIT_NS;
	__u64 wait = since_ns && now > since_ns ? (now - since_ns) * RETRANSMISSION_GROWTH : 0;

	wait = wait < TIME_WAIT_NS ? TIME_WAIT_NS : wait;
	wait = now + (wait < most ? wait : most);
	flow->last_ns = now;
	/* The answer to a late retransmission comes at once, and says nothing of when the next one does. */
	if (!since_ns || wait > flow->deadline_ns)
		flow->deadline_ns = wait;
}

/* A flow is over, unless user space has ended it already. */
static __always_inline void end_spliced(struct segment_flow *flow)
{
	__sync_val_compare_and_swap(&flow->state, SEGMENT_SPLICED, SEGMENT_TIME_WAIT);
}

/*
 * A reset ends the flow only where an endpoint would accept it: exactly at the place that it
 * expects next. Everything else is for the endpoint to judge, which asks back (RFC 5961).
 */
static __always_inline bool is_accepted_reset(const struct segment *s, const struct segment_side *side)
{
	return s->is_verified && s->seq == high_seq(side);
}

/*
 * The answer of a host to a question of the relay's socket (SEGMENT_ASKED) when the connection is not there any more: it
 * stands at the number that the question has acknowledged, and acknowledges nothing (RFC 9293, 3.10.7.1). Whatever that peer
 * has sent beyond it will not be sent again.
 */
static __always_inline bool tells_of_no_connection(const struct segment *s, const struct segment_side *side,
						   const struct segment_side *other)
{
	return s->is_verified && !(s->flags & ACK) && (marks(side) & SEGMENT_ASKED) &&
	       s->seq == other->high_ack + other->ack_delta;
}

/*
 * Where all that was sent has not been acknowledged yet, the endpoint may still expect what was acknowledged last, if
 * the rest got lost, or, where the sender has sent beyond its window, since that has shrunk, send its reset at the right
 * edge (tcp_acceptable_seq).
 */
static __always_inline bool is_doubtful_reset(const struct segment *s, const struct segment_side *side,
					      const struct segment_side *other)
{
	__u32 next = other->high_ack + other->ack_delta;
	/* The window is announced to the sender in steps. It forgives what is less than one of its own. */
	__u32 room = other->edge - other->high_ack;
	__u32 rounded_edge = next + (room & -(1U << (side->own_scale & 15)));
	__u32 forgiven = rounded_edge + (1U << (side->window_left & 15));

	return s->is_verified &&
	       (s->seq == next || (s->seq == rounded_edge && !after(forgiven, high_seq(side))));
}

/*
 * Who takes a reset at the end of all that was sent has received all of it, and who sends one says
 * what it has received: acknowledgements that were still due (40 ms and more) never come now.
 */
static __always_inline void learn_from_reset(const struct segment *s, struct segment_flow *flow,
					     struct segment_side *side, struct segment_side *other)
{
	__u32 ack = s->ack + side->ack_delta;
	__u64 now = bpf_ktime_get_coarse_ns();

	if (is_taken_over(side) && s->seq == high_seq(side))
		advance_acked(side, s->seq, &flow->moved_ns, now);
	if (is_taken_over(other) && (s->flags & ACK) && !after(ack, high_seq(other)))
		advance_acked(other, ack, &flow->moved_ns, now);
}

/*
 * A reset that is going to be translated.
 * @s, @flow, @side, @other: as for accept_segment(). @state: of the flow.
 */
static __always_inline void take_reset(struct segment *s, struct segment_flow *flow,
				       struct segment_side *side, struct segment_side *other, __u32 state)
{
	/* A peer that has closed answers a retransmission so; both streams were complete. */
	if (marks(side) & marks(other) & SEGMENT_FIN_ACKED)
		return;
	if (!is_accepted_reset(s, side) && !tells_of_no_connection(s, side, other)) {
		count(SEGMENT_RST_REFUSED);
		/* Nobody shows whether it was accepted: user space sees that both have fallen silent. */
		if (is_doubtful_reset(s, side, other)) {
			WRITE_ONCE(side->doubted_seq, s->seq);
			add_marks(side, SEGMENT_DOUBTED);
		}
		return;
	}
	learn_from_reset(s, flow, side, other);
	/* The other peer's answer to it is none of its own. */
	if (!(marks(other) & SEGMENT_RST))
		add_marks(side, SEGMENT_RST);
	s->copy = COPY_RST;
	if (state == SEGMENT_SPLICED) {
		prolong(flow, 0);
		end_spliced(flow);
	}
}

#endif
