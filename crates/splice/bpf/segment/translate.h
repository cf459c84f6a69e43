/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What becomes of a segment's numbers, window and stamps, and what the flow learns from it. */
#ifndef SEGMENT_TRANSLATE_H
#define SEGMENT_TRANSLATE_H

#include "segment/overlap.h"

/* skb->mark of a copy on its way to the relay's own socket; nobody else sees it */
#define COPY_ACK 0x53504c41
#define COPY_RST 0x53504c52
/* and of one whose acknowledgement goes past that socket */
#define COPY_PAST 0x53504c50

/*
 * How long a flow that is over still translates after its last segment: four repetitions of a FIN
 * that get lost before they come here (0.2, 0.6, 1.4, 3 s). Each repetition waits twice as long as
 * the one before, so a late one prolongs it; TIME_WAIT's length is the most (TCP_TIMEWAIT_LEN).
 */
#define TIME_WAIT_NS (3200ULL * 1000 * 1000)
#define LONGEST_TIME_WAIT_NS (60ULL * 1000 * 1000 * 1000)
#define RETRANSMISSION_GROWTH 3

/*
 * What lies further below timestamp_floor than this is an old duplicate, which the peer has to be
 * able to tell by its stamp: no segment waits longer than this on its way through the relay.
 */
#define FLOOR_REACH_NS (1000ULL * 1000 * 1000)

/*
 * By how much the clock that stands is ahead: a socket that paces stamps an acknowledgement with
 * the time at which it may send next (__tcp_transmit_skb), and with a lower stamp all would be
 * dropped for as long as the clock stands. Two segments at 12 kB/s.
 */
#define LEAD_NS (250ULL * 1000 * 1000)

/*
 * A reset ends the flow only where an endpoint would accept it: exactly at the place that it
 * expects next, or, where its sender has come past the end of its window, since that has shrunk,
 * at this end (tcp_acceptable_seq). Everything else is for the endpoint to judge, which asks back
 * (RFC 5961).
 */
static __always_inline bool is_accepted_reset(const struct segment *s,
					      const struct segment_side *side,
					      const struct segment_side *other)
{
	__u32 next = other->high_ack + other->ack_delta;
	/* The sender is told its window in steps, and forgives what is less than one of its own. */
	__u32 room = other->edge - other->high_ack;
	__u32 told = next + (room & -(1U << (side->own_scale & 15)));
	__u32 forgiven = told + (1U << (side->window_left & 15));

	return s->seq == high_seq(side) || s->seq == next ||
	       (s->seq == told && !after(forgiven, high_seq(side)));
}

/*
 * Who takes a reset at the end of all that was sent has received all of it, and who sends one says
 * what it has received: acknowledgements that were still due (40 ms and more) never come now.
 */
static __always_inline void learn_from_reset(const struct segment *s, struct segment_flow *flow,
					     struct segment_side *side, struct segment_side *other)
{
	__u32 ack = s->ack + side->ack_delta;

	if (is_past(side) && s->seq == high_seq(side))
		advance_acked(side, s->seq, &flow->moved_ns);
	if (is_past(other) && (s->flags & ACK) && !after(ack, high_seq(other)))
		advance_acked(other, ack, &flow->moved_ns);
}

/*
 * The time that all segments are stamped with until the relay's own socket has nothing left to
 * send: that of the first after OVERLAP has begun. What the socket sends and what goes past it
 * take different ways, and a peer takes the one for an old duplicate when a later stamp with a
 * lower number has overtaken it (PAWS). Two equal stamps cannot overtake each other. Should the
 * sockets be woken, user space has it stand again, where it has come to.
 */
static __always_inline __u32 timestamp_floor(struct segment_side *side)
{
	__u32 known = READ_ONCE(side->timestamp_floor);
	__u32 tick_ns = side->flags & SEGMENT_MICROSECONDS ? 1000 : 1000000;
	__u32 now;

	if (known)
		return known;
	now = (__u32)((bpf_ktime_get_ns() + LEAD_NS) / tick_ns) + side->clock;
	now = now ?: 1;
	return __sync_val_compare_and_swap(&side->timestamp_floor, 0, now) ?: now;
}

static __always_inline void note_timestamp(__u32 *latest, __u32 stamp)
{
	if (!READ_ONCE(*latest) && !__sync_val_compare_and_swap(latest, 0, stamp))
		return;
	raise(latest, stamp);
}

/* From then on the sender's own clock goes on from there; the difference is chosen once. */
static __always_inline void translate_timestamp(struct segment *s, struct segment_side *side,
					    const struct segment_side *other, __u32 state)
{
	__u32 tick_ns = side->flags & SEGMENT_MICROSECONDS ? 1000 : 1000000;
	__u64 delta = READ_ONCE(side->timestamp_delta);
	__u64 back = READ_ONCE(other->timestamp_delta);
	__u32 floor = timestamp_floor(side), stamp;

	if (state == SEGMENT_OVERLAP) {
		s->tsval = floor;
		s->tsecr = 0;
		return;
	}
	if (!delta) {
		__u64 choice = SEGMENT_TIMESTAMP_KNOWN | (__u32)(floor - s->tsval);

		delta = __sync_val_compare_and_swap(&side->timestamp_delta, 0, choice) ?: choice;
	}
	stamp = s->tsval + (__u32)delta;
	/* What was sent before the clock went on. */
	if (after(floor, stamp) && floor - stamp < FLOOR_REACH_NS / tick_ns)
		stamp = floor;
	s->tsval = stamp;
	/* An echo of a clock that stands: 0 is an echo of nothing (RFC 7323). */
	s->tsecr = back && s->tsecr ? s->tsecr - (__u32)back : 0;
}

/* A segment came in LINGER, or began it. */
static __always_inline void prolong(struct segment_flow *flow, __u64 since_ns)
{
	__u64 now = bpf_ktime_get_ns(), most = LONGEST_TIME_WAIT_NS;
	__u64 linger = since_ns && now > since_ns ? (now - since_ns) * RETRANSMISSION_GROWTH : 0;

	linger = linger < TIME_WAIT_NS ? TIME_WAIT_NS : linger;
	flow->last_ns = now;
	flow->deadline_ns = now + (linger < most ? linger : most);
}

/*
 * ECN ends here where only one of the connections does it: nobody behind can tell the sender that its
 * segments were marked instead of dropped, and it would never slow down. So the program tells it, as the
 * relay's socket did, until the sender says that it has heard (RFC 3168, 6.1.3).
 */
static __always_inline void end_ecn(struct segment *s, struct segment_side *side,
				    const struct segment_side *other)
{
	if (side->flags & SEGMENT_ECHO_ECN) {
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

/* Turns the segment into what the other peer expects, if that is the way it goes. */
__noinline enum segment_way translate(struct segment *s, struct segment_flow *flow, __u32 from, __u32 state)
{
	struct segment_side *side, *other;
	__u32 end, heard, seq, ack, scaled, own_final;
	bool overlaps = state == SEGMENT_OVERLAP, believed = false;

	if (!s || !flow)
		return WAY_PAST;
	s->copy = 0;
	side = &flow->side[from & 1];
	other = &flow->side[!(from & 1)];
	heard = side->high_ack;
	end = end_of(s);
	seq = s->seq + side->seq_delta;
	ack = s->ack + side->ack_delta;
	scaled = s->window << (side->window_left & 15);

	if (state == SEGMENT_TIME_WAIT)
		prolong(flow, flow->last_ns);
	if ((s->flags & (ACK | RST | SYN)) == ACK)
		believed = learn(s, flow, side, other);
	/* Also of a stream that goes by the sockets. */
	if (believed && (s->flags & FIN))
		mark_end(side, end, SEGMENT_FIN);
	if (overlaps) {
		enum segment_way way;

		if ((s->flags & (ACK | RST | SYN)) == ACK)
			let_past(s, side, other);
		way = choose_way(s, side, other);
		if (way != WAY_PAST) {
			if ((s->flags & RST) && is_accepted_reset(s, side, other))
				learn_from_reset(s, flow, side, other);
			return way;
		}
	}
	/* end of what the relay's own socket delivers to this peer */
	own_final = socket_end(other) + other->seq_delta;

	if (s->flags & RST) {
		/* A peer that has closed answers a repetition so; both streams were complete. */
		if (marks(side) & marks(other) & SEGMENT_FIN_ACKED) {
			/* nothing that anybody waits for */
		} else if (is_accepted_reset(s, side, other)) {
			learn_from_reset(s, flow, side, other);
			/* The other peer's answer to it is none of its own. */
			if (!(marks(other) & SEGMENT_RST))
				add_marks(side, SEGMENT_RST);
			s->copy = COPY_RST;
			if (state == SEGMENT_SPLICED) {
				prolong(flow, 0);
				flow->state = SEGMENT_TIME_WAIT;
			}
		} else {
			count(SEGMENT_RST_REFUSED);
		}
	} else if (s->flags & ACK) {
		if (believed &&
		    (marks(other) & (SEGMENT_FIN | SEGMENT_FIN_ACKED)) == SEGMENT_FIN &&
		    mark_end(other, ack, SEGMENT_FIN_ACKED)) {
			/*
			 * The other end of stream may be acknowledged on another CPU at this moment: a
			 * full barrier each lets one of the two see both.
			 */
			if (state == SEGMENT_SPLICED &&
			    (add_marks(side, 0) & SEGMENT_FIN_ACKED)) {
				prolong(flow, 0);
				flow->state = SEGMENT_TIME_WAIT;
				s->copy = COPY_RST;
			}
		}
		/*
		 * The socket has to hear until all that it has sent is acknowledged, or it repeats it.
		 * Should a copy get lost, the answer to the repetition is bare.
		 */
		if (overlaps && (is_pure_ack(s) || !is_past(other) || !after(heard, own_final)))
			s->copy = COPY_ACK;
	}

	if (overlaps && !is_past(other)) {
		/* The relay's socket receives that stream, and has to say what of it. */
		ack = other->cut;
		scaled = after(other->room_end, ack) ? other->room_end - ack : 0;
		s->strip_sack = 1;
	} else if (overlaps && after(other->cut, ack)) {
		/*
		 * What the relay has acknowledged stays acknowledged. An older acknowledgement would
		 * make the receiver discard the whole segment. The window ends where it ended.
		 */
		__u32 raised = other->cut - ack;

		scaled = scaled > raised ? scaled - raised : 0;
		ack = other->cut;
	}
	if (s->sack_clip) {
		s->sack_floor += side->ack_delta;
	} else if (overlaps) {
		s->sack_clip = 1;
		s->sack_floor = other->cut;
	}
	if (overlaps && !is_past(side)) {
		/* It stands where the relay's socket is, not where its peer is. */
		seq = other->sent;
	} else if (is_pure_ack(s) && after(seq, other->edge)) {
		/*
		 * The relay may have accepted more from this peer than the other one has room for, so
		 * the peer's next number can lie outside of the other's window; there an
		 * acknowledgement would be ignored.
		 */
		seq = other->edge;
	}

	if (s->payload && after(seq + s->payload, other->edge))
		count(SEGMENT_NO_ROOM);
	s->sack_delta += side->ack_delta;
	s->seq = seq;
	s->ack = ack;
	scaled >>= side->window_right & 15;
	s->window = scaled < 0xffff ? scaled : 0xffff;
	if (s->has_timestamp) {
		translate_timestamp(s, side, other, state);
		/* A forger's stamp could lie anywhere; who hits the very end of the stream is believed. */
		if (!overlaps && end == high_seq(side))
			note_timestamp(&flow->latest_timestamp[from & 1], s->tsval);
	}
	if (side->flags & SEGMENT_STRIP_SACK)
		s->strip_sack = 1;
	if (side->flags & SEGMENT_CLEAR_ECN)
		end_ecn(s, side, other);
	s->local = side->flags & SEGMENT_LOCAL;
	s->out_device = side->out_device;
	s->tuple = side->out;
	if (s->payload)
		__sync_fetch_and_add(&side->payload_bytes, s->payload);
	return WAY_PAST;
}

#endif
