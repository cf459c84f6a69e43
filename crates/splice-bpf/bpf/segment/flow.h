/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a flow knows of its two streams, and how that moves forward. */
#ifndef SEGMENT_FLOW_H
#define SEGMENT_FLOW_H

#include "lib/atomics.h"
#include "segment/parse.h"

static __always_inline __u32 high_seq(const struct segment_side *side)
{
	return READ_ONCE(side->high_seq_and_marks);
}

static __always_inline __u32 marks(const struct segment_side *side)
{
	return READ_ONCE(side->high_seq_and_marks) >> 32;
}

/* Returns the marks before; a full barrier. */
static __always_inline __u32 add_marks(struct segment_side *side, __u32 added)
{
	return __sync_fetch_and_or(&side->high_seq_and_marks, (__u64)added << 32) >> 32;
}

static __always_inline void take_marks(struct segment_side *side, __u32 taken)
{
	__sync_fetch_and_and(&side->high_seq_and_marks, ~((__u64)taken << 32));
}

static __always_inline bool is_taken_over(const struct segment_side *side)
{
	return marks(side) & SEGMENT_TAKEN_OVER;
}

/*
 * What the relay's socket knows of this peer's stream says nothing any more of where that is: its numbers would seem to
 * lie ahead once two gigabytes have passed.
 */
static __always_inline bool is_distant(const struct segment_side *side)
{
	return marks(side) & SEGMENT_DISTANT;
}

static __always_inline bool is_pure_ack(const struct segment *s)
{
	return !s->payload && !(s->flags & (SYN | FIN | RST));
}

/* The peer has sent up to there. */
static __always_inline void raise_high_seq(struct segment_side *side, __u32 to)
{
	__u64 old = READ_ONCE(side->high_seq_and_marks);
	int i;

	for (i = 0; i < 16 && after(to, old); i++) {
		__u64 found = __sync_val_compare_and_swap(&side->high_seq_and_marks, old, old >> 32 << 32 | to);

		if (found == old)
			return;
		old = found;
	}
}

/* The highest RCV.NXT (RFC 9293, 3.3.1) that this peer can have, as its own segments would acknowledge it. */
static __always_inline __u32 highest_rcv_nxt(const struct segment_side *side, const struct segment_side *other)
{
	__u32 seq = high_seq(other) + other->seq_delta;

	return after(seq, side->edge) ? side->edge : seq;
}

/* What `accepted_at` and `waiting` say for @now_ns. */
static __always_inline __u32 ticks_of(__u64 now_ns)
{
	return (__u32)(now_ns >> SEGMENT_TICK_SHIFT) ?: 1;
}

/* Keeps the time of the first payload of the server. A global function: the verifier looks at it once. */
__noinline int keep_first(__u32 slot)
{
	struct segment_cold *cold = bpf_map_lookup_elem(&segment_colds, &slot);

	if (cold)
		__sync_val_compare_and_swap(&cold->first_ns, 0, bpf_ktime_get_ns());
	return 0;
}

/* Counts what is translated. @from: the side of its sender. */
static __always_inline void count_payload(const struct segment *s, struct segment_flow *flow, __u32 slot, __u32 from)
{
	struct segment_side *side = &flow->side[from & 1];

	__sync_fetch_and_add(&flow->payload_bytes[from & 1], s->payload);
	if (!(from & 1) || !s->is_acceptable || marks(side) & SEGMENT_TIMED)
		return;
	keep_first(slot);
	add_marks(side, SEGMENT_TIMED);
}

/*
 * The other peer has acknowledged up to `ack` (in this side's sequence space). Many CPUs may raise it
 * at once. Losing the race is harmless: the value is no news, or comes again with the next segment.
 */
static __always_inline void advance_acked(struct segment_side *side, __u32 ack, __u64 *moved_ns, __u64 now_ns)
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
			*moved_ns = now_ns;
			return;
		}
		old = found;
		step = ack - (__u32)old;
	}
}

#endif
