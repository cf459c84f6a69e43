/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Timestamps (RFC 7323): where the clock stands that a peer is told, and how it goes on. */
#ifndef SEGMENT_TIMESTAMP_H
#define SEGMENT_TIMESTAMP_H

#include "segment/flow.h"

/*
 * What lies further below timestamp_floor than this is an old duplicate, which the peer has to be
 * able to tell by its timestamp: no segment waits longer than this on its way through the relay.
 */
#define FLOOR_REACH_NS (1000ULL * 1000 * 1000)

/*
 * By how much the clock that stands is ahead. A socket that paces writes into an acknowledgement the time at
 * which it may send next (__tcp_transmit_skb). With a lower timestamp all segments would be dropped for as long
 * as the clock stands. Two segments at 12 kB/s.
 */
#define LEAD_NS (250ULL * 1000 * 1000)

/*
 * The timestamp of all segments until the relay's own socket has nothing left to send: the time of the first one
 * in OVERLAP. What the socket sends and what goes past it take different ways. A peer drops a segment as an old
 * duplicate (PAWS) when one with a later timestamp has overtaken it; equal timestamps cannot do that. When the
 * sockets are woken again, user space lets the clock stand where it has come to.
 *
 * @side: whose segments are stamped. @slot, @from: index of its flow, and which side it is. The time.
 */
static __always_inline __u32 timestamp_floor(struct segment_side *side, __u32 slot, __u32 from)
{
	struct segment_change_over *change_over;
	__u32 known = READ_ONCE(side->timestamp_floor);
	__u32 tick_ns = side->flags & SEGMENT_MICROSECONDS ? 1000 : 1000000;
	__u32 now;

	if (known)
		return known;
	change_over = change_over_of(slot);
	if (!change_over)
		return 1;
	now = (__u32)((bpf_ktime_get_ns() + LEAD_NS) / tick_ns) +
	      change_over->side[from & 1].clock;
	now = now ?: 1;
	return __sync_val_compare_and_swap(&side->timestamp_floor, 0, now) ?: now;
}

/* @latest: the latest timestamp of a side; 0: none is known. @tsval: one that may be later. */
static __always_inline void note_timestamp(__u32 *latest, __u32 tsval)
{
	if (!READ_ONCE(*latest) && !__sync_val_compare_and_swap(latest, 0, tsval))
		return;
	raise(latest, tsval);
}

/*
 * Once the socket is done, the sender's own clock goes on from where the clock stood; the difference is chosen
 * once. @s: the segment. @side, @other: of its sender, and the other one. @slot, @from: as for timestamp_floor().
 */
static __always_inline void translate_timestamp(struct segment *s, struct segment_side *side,
						const struct segment_side *other, __u32 slot,
						__u32 from)
{
	__u32 tick_ns = side->flags & SEGMENT_MICROSECONDS ? 1000 : 1000000;
	__u64 delta = READ_ONCE(side->timestamp_delta);
	__u64 back = READ_ONCE(other->timestamp_delta);
	__u32 floor = timestamp_floor(side, slot, from), tsval;

	if (!delta) {
		__u64 choice = SEGMENT_TIMESTAMP_KNOWN | (__u32)(floor - s->tsval);

		delta = __sync_val_compare_and_swap(&side->timestamp_delta, 0, choice) ?: choice;
	}
	tsval = s->tsval + (__u32)delta;
	/* What was sent before the clock went on. */
	if (after(floor, tsval) && floor - tsval < FLOOR_REACH_NS / tick_ns)
		tsval = floor;
	s->tsval = tsval;
	/* An echo of a clock that stands: 0 is an echo of nothing (RFC 7323). */
	s->tsecr = back && s->tsecr ? s->tsecr - (__u32)back : 0;
}

#endif
