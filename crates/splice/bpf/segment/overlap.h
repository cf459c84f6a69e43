/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * OVERLAP: which way a segment goes while one stream may still go by the relay's sockets and the
 * other past them. A segment has two halves: what its peer sends, and what it acknowledges of the
 * other peer's stream. Each belongs where that stream goes.
 */
#ifndef SEGMENT_OVERLAP_H
#define SEGMENT_OVERLAP_H

#include "lib/atomics.h"
#include "segment/parse.h"

enum segment_way {
	WAY_PAST,		/* translated */
	WAY_SOCKET,		/* to the relay's own socket, as it is */
	WAY_SOCKET_ACK,		/* the same, and only what it acknowledges counts there */
	WAY_BOTH,		/* what it carries to the socket, what it acknowledges past it */
	WAY_NOWHERE,		/* nobody waits for it */
};

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

/* The end of what has come from this peer by the sockets, or will. */
static __always_inline __u32 socket_end(const struct segment_side *side)
{
	return after(side->cut, side->border) ? side->cut : side->border;
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
 * The other peer has acknowledged up to `ack` (in this side's numbering). Many CPUs may say so
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
 * With this acknowledgement the stream of `other` may go past the sockets: nothing of it is under
 * way, and its sender has been promised no more than there is room for. What another CPU has in
 * hand at this moment has raised high_seq before it looks which way to go. So either it finds the
 * stream past the sockets, or this finds that there is more; else the next would overtake it.
 */
static __always_inline void let_past(const struct segment *s, const struct segment_side *side,
				     struct segment_side *other)
{
	__u32 ack = s->ack + side->ack_delta;
	__u32 edge = ack + (s->window << (side->window_left & 15));
	__u64 reach = READ_ONCE(other->reach), past = (__u64)SEGMENT_PAST << 32;

	if (reach & past || ack != (__u32)reach || after(other->promised, edge))
		return;
	raise(&other->border, ack);
	__sync_val_compare_and_swap(&other->reach, reach, reach | past);
}

/*
 * Of a peer whose own end the relay's socket has acknowledged, and which has acknowledged the end of the
 * other stream, nobody is left: it answers what still comes past the sockets with a reset. Its own stream
 * may yet have to be given on by hand.
 */
static __always_inline bool is_gone(const struct segment_side *side,
				    const struct segment_side *other)
{
	return !is_past(side) && (marks(side) & SEGMENT_FIN) &&
	       (marks(other) & SEGMENT_FIN_ACKED) && !after(high_seq(side), side->cut);
}

static __always_inline enum segment_way choose_way(const struct segment *s,
						   const struct segment_side *side,
						   const struct segment_side *other)
{
	if ((s->flags & RST) && is_gone(side, other))
		return WAY_NOWHERE;
	if (!is_past(side)) {
		if (!is_past(other) || (s->flags & (SYN | RST)))
			return WAY_SOCKET;
		return is_pure_ack(s) ? WAY_PAST : WAY_BOTH;
	}
	/* But what comes before all that was sent asks the other peer for an answer. */
	if (!is_past(other) && is_pure_ack(s) && !after(high_seq(side), s->seq))
		return WAY_SOCKET_ACK;
	return WAY_PAST;
}

#endif
