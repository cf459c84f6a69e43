/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Timestamps (RFC 7323): where the clock stands that a peer sees, and how it goes on. */
#ifndef SEGMENT_TIMESTAMP_H
#define SEGMENT_TIMESTAMP_H

#include "segment/flow.h"

/*
 * What lies further below timestamp_floor than this is an old duplicate, which the peer has to be
 * able to tell by its timestamp: no segment waits longer than this on its way through the relay.
 */
#define TRANSIT_LIMIT_NS (1000ULL * 1000 * 1000)

/*
 * By how much the clock that stands is ahead. A socket that paces writes into an acknowledgement the time at
 * which it may send next (__tcp_transmit_skb). With a lower timestamp all segments would be dropped for as long
 * as the clock stands. Two segments at 12 kB/s.
 */
#define LEAD_NS (250ULL * 1000 * 1000)

/*
 * The timestamp of all segments until the relay's own socket has nothing left to send: the time of the first one
 * in OVERLAP. What the socket sends and what is translated take different ways. A peer drops a segment as an old
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
 * Where the sender's own clock goes on from where the clock stood.
 * @side: whose segment it is. @delta: its timestamp_delta. @tsval: of the segment. What the receiver gets.
 */
static __always_inline __u32 shift_timestamp(const struct segment_side *side, __u64 delta, __u32 tsval)
{
	__u32 tick_ns = side->flags & SEGMENT_MICROSECONDS ? 1000 : 1000000;
	__u32 floor = READ_ONCE(side->timestamp_floor);

	tsval += (__u32)delta;
	/* What was sent before the clock went on. */
	return after(floor, tsval) && floor - tsval < TRANSIT_LIMIT_NS / tick_ns ? floor : tsval;
}

/* A receiver forgives one tick (TCP_PAWS_WINDOW in net/tcp.h). */
#define PAWS_TICKS 1

/*
 * After so long without a newer one a receiver takes any timestamp, in seconds (TCP_PAWS_WRAP in net/tcp.h; 24 days
 * before Linux 6.7).
 */
#define PAWS_SECONDS 2147

static __always_inline __u32 now_seconds(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000000;
}

/* Whether a timestamp is older than what the receiver compares with. @sent: as its sender has sent it. */
static __always_inline bool is_older(const struct segment_side *side, __u32 sent)
{
	__u32 recent = READ_ONCE(side->recent_timestamp);
	__u64 delta = READ_ONCE(side->timestamp_delta);

	if (!recent)
		return false;
	if (delta) {
		sent = shift_timestamp(side, delta, sent);
		recent += (__u32)delta;
	}
	return after(recent, sent + PAWS_TICKS);
}

/*
 * Whether the receiver takes a segment for an old duplicate (PAWS; RFC 7323, 5.3).
 * @s: the segment, as it was sent. @side: of its sender.
 */
static __always_inline bool is_stale(const struct segment *s, const struct segment_side *side)
{
	return s->has_timestamp && is_older(side, s->tsval) &&
	       now_seconds() - READ_ONCE(side->recent_seconds) < PAWS_SECONDS;
}

/* The receiver compares with this timestamp from now on. @sent: as its sender has sent it. */
static __always_inline void follow_timestamp(struct segment_side *side, __u32 sent)
{
	__u32 recent = READ_ONCE(side->recent_timestamp);

	if (recent == sent)
		return;
	/* First, since another CPU that finds the new one must not take it for one of long ago. */
	WRITE_ONCE(side->recent_seconds, now_seconds());
	/* After a long silence it may be anywhere. */
	if (is_older(side, sent))
		__sync_val_compare_and_swap(&side->recent_timestamp, recent, sent);
	else
		note_timestamp(&side->recent_timestamp, sent);
}

/*
 * What the receiver of a side's segments compares with, as it has got it; 0: not known. An older acknowledgement is not
 * answered (tcp_disordered_ack_check).
 */
static __always_inline __u32 recent_timestamp(const struct segment_side *side)
{
	__u32 recent = READ_ONCE(side->recent_timestamp);
	__u64 delta = READ_ONCE(side->timestamp_delta);

	return recent && delta ? shift_timestamp(side, delta, recent) : 0;
}

/* As much below all that a receiver has got as to be below it for certain. */
#define STALE_TICKS (1U << 30)

/*
 * While the clock stands all have the timestamp that the receiver has had already, and an old duplicate has one that
 * shows it as such. @s: the segment, as it was sent. @side, @slot, @from: as for timestamp_floor(). The timestamp.
 */
static __always_inline __u32 standing_timestamp(const struct segment *s, struct segment_side *side, __u32 slot,
						__u32 from)
{
	__u32 floor = timestamp_floor(side, slot, from);

	return is_stale(s, side) ? floor - STALE_TICKS : floor;
}

/*
 * What a receiver gets for the timestamp 0. It takes any timestamp after it, since some stacks begin with it
 * (tcp_paws_check). Shifted it would be a time like others, maybe far ahead of all that follow.
 * @side: of its sender. @delta: its timestamp_delta.
 */
static __always_inline __u32 shift_zero(const struct segment_side *side, __u64 delta)
{
	return shift_timestamp(side, delta, is_older(side, 0) ? 0 : READ_ONCE(side->recent_timestamp));
}

/*
 * Once the socket is done, the sender's own clock goes on from where the clock stood; the difference is chosen
 * once, by a segment that is acceptable. Until then it stands.
 * @s: the segment, its numbers translated. @flow: its flow. @slot, @from: as for timestamp_floor().
 */
static __always_inline void translate_timestamp(struct segment *s, struct segment_flow *flow,
						__u32 slot, __u32 from)
{
	struct segment_side *side = &flow->side[from & 1], *other = &flow->side[!(from & 1)];
	__u64 delta = READ_ONCE(side->timestamp_delta);
	__u64 back = READ_ONCE(other->timestamp_delta);
	__u32 sent = s->tsval, echo = s->tsecr, latest;

	if (!delta && s->is_acceptable && sent) {
		__u64 choice = SEGMENT_TIMESTAMP_KNOWN | (__u32)(timestamp_floor(side, slot, from) - sent);

		delta = __sync_val_compare_and_swap(&side->timestamp_delta, 0, choice) ?: choice;
	}
	if (!delta)
		s->tsval = standing_timestamp(s, side, slot, from);
	else
		s->tsval = sent ? shift_timestamp(side, delta, sent) : shift_zero(side, delta);
	/* An echo of a clock that stands: 0 is an echo of nothing (RFC 7323). */
	s->tsecr = back && echo ? echo - (__u32)back : 0;
	if (!s->is_acceptable)
		return;
	/* The receiver compares with the timestamp of what begins where it has acknowledged all, and that it echoes. */
	if (sent && !after(s->seq, other->high_ack))
		follow_timestamp(side, sent);
	/* An echo of what it cannot have got says nothing. */
	latest = READ_ONCE(other->latest_timestamp);
	if (s->tsecr && latest && !after(echo, latest))
		follow_timestamp(other, s->tsecr);
}

#endif
