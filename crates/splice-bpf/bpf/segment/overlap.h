/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * OVERLAP: which way a segment goes while one stream may still go by the relay's sockets and the
 * other is taken over. A segment has two halves: what its peer sends, and what it acknowledges of the
 * other peer's stream. Each belongs where that stream goes.
 */
#ifndef SEGMENT_OVERLAP_H
#define SEGMENT_OVERLAP_H

#include "segment/steady.h"

enum segment_way {
	WAY_TRANSLATED,		/* to the other peer */
	WAY_SOCKET,		/* to the relay's own socket, as it is */
	WAY_SOCKET_ACK,		/* the same, and only what it acknowledges counts there */
	WAY_BOTH,		/* what it carries goes to the socket, what it acknowledges is translated */
	WAY_NOWHERE,		/* nobody waits for it */
};

/* The end of what has come from this peer by the sockets, or will. */
static __always_inline __u32 socket_end(const struct segment_change_over_side *socket)
{
	return after(socket->acknowledged_by_socket, socket->takeover_seq) ? socket->acknowledged_by_socket :
									     socket->takeover_seq;
}

/*
 * With this acknowledgement the program may take the stream of `other` over: nothing of it is in flight, and
 * no window beyond the receiver's has been announced to its sender. What another CPU has in hand at this moment has
 * raised high_seq before it looks which way to go. So either it finds the stream taken over, or this finds that there
 * is more; else the next would overtake it.
 */
static __always_inline void take_over(const struct segment *s, const struct segment_side *side,
				     struct segment_side *other,
				     struct segment_change_over_side *other_socket)
{
	__u32 ack = s->ack + side->ack_delta;
	__u32 edge = ack + (s->window << (side->window_left & 15));
	__u64 word = READ_ONCE(other->high_seq_and_marks), taken_over = (__u64)SEGMENT_TAKEN_OVER << 32;

	if (word & taken_over || ack != (__u32)word || after(other->announced_edge, edge))
		return;
	raise(&other_socket->takeover_seq, ack);
	__sync_val_compare_and_swap(&other->high_seq_and_marks, word, word | taken_over);
}

/*
 * Of a peer whose own end the relay's socket has acknowledged, and which has acknowledged the end of the
 * other stream, nobody is left: it answers what is still translated for it with a reset. Its own stream
 * may still have to be forwarded by user space.
 */
static __always_inline bool is_gone(const struct segment_side *side, const struct segment_side *other,
				    const struct segment_change_over_side *socket)
{
	return !is_taken_over(side) && (marks(side) & SEGMENT_FIN) &&
	       (marks(other) & SEGMENT_FIN_ACKED) && !after(READ_ONCE(side->fin_end), socket->acknowledged_by_socket);
}

static __always_inline enum segment_way choose_way(const struct segment *s,
						   const struct segment_side *side,
						   const struct segment_side *other,
						   const struct segment_change_over_side *socket)
{
	if ((s->flags & RST) && is_gone(side, other, socket))
		return WAY_NOWHERE;
	if (!is_taken_over(side)) {
		/* The socket judges what its peer's is to get, and answers. */
		if (!is_taken_over(other) || !s->is_acceptable)
			return WAY_SOCKET;
		return is_pure_ack(s) ? WAY_TRANSLATED : WAY_BOTH;
	}
	/* But what comes before all that was sent asks the other peer for an answer. */
	if (s->is_acceptable && !is_taken_over(other) && is_pure_ack(s) && !after(high_seq(side), s->seq))
		return WAY_SOCKET_ACK;
	return WAY_TRANSLATED;
}

/*
 * Turns a segment into what the other peer expects, if that is the way it goes.
 * @s: the segment. @flow, @slot: its flow in OVERLAP, and the flow's index. @from: the side of its sender. Which
 * way it goes; what goes to the socket is left as it is.
 */
__noinline enum segment_way translate_overlap(struct segment *s, struct segment_flow *flow, __u32 slot,
					      __u32 from)
{
	struct segment_change_over_side *socket, *other_socket;
	struct segment_change_over *change_over = change_over_of(slot);
	struct segment_side *side, *other;
	__u32 acked_before, seq, ack, window;
	enum segment_way way;

	if (!s || !flow || !change_over)
		return WAY_SOCKET;
	s->copy = 0;
	side = &flow->side[from & 1];
	other = &flow->side[!(from & 1)];
	socket = &change_over->side[from & 1];
	other_socket = &change_over->side[!(from & 1)];
	acked_before = side->high_ack;
	seq = s->seq + side->seq_delta;
	ack = s->ack + side->ack_delta;
	window = s->window << (side->window_left & 15);

	/* What comes the second time was accepted with its payload. */
	s->is_acceptable = s->is_acceptable || accept_segment(s, flow, side, other);
	if (s->is_acceptable)
		take_over(s, side, other, other_socket);
	way = choose_way(s, side, other, socket);
	if (way != WAY_TRANSLATED) {
		if ((s->flags & RST) && is_accepted_reset(s, side))
			learn_from_reset(s, flow, side, other);
		return way;
	}
	if (s->flags & RST) {
		take_reset(s, flow, side, other, SEGMENT_OVERLAP);
	} else if (s->is_acceptable) {
		/* end of what the relay's own socket delivers to this peer */
		__u32 own_final = socket_end(other_socket) + other->seq_delta;

		acknowledge_end(other, ack);
		/*
		 * The socket needs acknowledgements until all that it has sent is acknowledged, or it sends it again.
		 * Should a copy get lost, the answer to the retransmission is a pure ACK.
		 */
		if (is_pure_ack(s) || !is_taken_over(other) || (!is_distant(other) && !after(acked_before, own_final)))
			s->copy = COPY_ACK;
	}

	if (!s->is_acceptable) {
		/* With an acknowledgement made up here, its receiver would take it. */
		s->strip_sack = 1;
	} else if (!is_taken_over(other)) {
		/* The relay's socket receives that stream, and has to say what of it. */
		ack = other_socket->acknowledged_by_socket;
		window = after(other_socket->current_edge, ack) ? other_socket->current_edge - ack : 0;
		s->strip_sack = 1;
	} else if (!is_distant(other) && after(other_socket->acknowledged_by_socket, ack)) {
		/*
		 * What the relay has acknowledged stays acknowledged. An older acknowledgement would
		 * make the receiver discard the whole segment. The window ends where it ended.
		 */
		__u32 raised = other_socket->acknowledged_by_socket - ack;

		window = window > raised ? window - raised : 0;
		ack = other_socket->acknowledged_by_socket;
	}
	if (s->sack_clip) {
		s->sack_floor += side->ack_delta;
	} else if (!is_distant(other)) {
		s->sack_clip = 1;
		s->sack_floor = other_socket->acknowledged_by_socket;
	}
	/* It stands where the relay's socket is, not where its peer is. */
	seq = is_taken_over(side) ? within_window(s, seq, other) : other_socket->sent;
	if (s->payload)
		count_payload(s, flow, slot, from);
	place(s, side, other, seq, ack, window);
	if (s->has_timestamp) {
		s->tsval = standing_timestamp(s, side, slot, from);
		s->tsecr = 0;
	}
	return WAY_TRANSLATED;
}

#endif
