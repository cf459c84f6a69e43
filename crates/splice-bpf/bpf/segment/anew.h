/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A SYN on the addresses and ports of a pair. Whoever sends one has forgotten the connection, or has nothing to do with
 * it. So the other peer never gets it: it might have forgotten its connection, too, and begin another one.
 *
 * Where the pair lives, the sender gets a challenge ACK, as from a socket (RFC 5961, 4): if it has forgotten it,
 * it answers with a reset, which ends the pair, and begins anew at once. Where the pair is over, the SYN is for the stack.
 */
#ifndef SEGMENT_ANEW_H
#define SEGMENT_ANEW_H

#include "segment/rewrite.h"

/* No peer is challenged more often, as by a socket (`tcp_invalid_ratelimit`: 500 ms); in ticks. */
#define CHALLENGE_INTERVAL_TICKS 477

#define CHALLENGE_HOPS 64	/* the TTL of what this host sends (IPDEFTTL) */

/* Beside the verdicts. */
enum anew {
	ANEW_NOT = -3,	/* a segment like any other */
	ANEW_UP = -2,	/* it is for the stack, as the first of a connection */
};

/*
 * Has the packet come in a second time. Over lo it has to leave once more, which keeps its route:
 * without one a segment from an address of this host is a martian.
 */
static __always_inline void send_copy(struct __sk_buff *skb, __u32 kind)
{
	__u32 mark = skb->mark;

	skb->mark = kind;
	bpf_clone_redirect(skb, skb->ifindex, skb->ifindex == LOOPBACK ? 0 : BPF_F_INGRESS);
	skb->mark = mark;
}

/*
 * Whether a peer may be challenged; then that counts. No errors are counted for a pair.
 * @slot, @to: index of its flow, and its side.
 */
static __always_inline bool may_challenge(__u32 slot, __u32 to)
{
	struct segment_cold *cold = bpf_map_lookup_elem(&segment_colds, &slot);
	__u32 now = ticks_of(bpf_ktime_get_ns()), left;

	if (!cold)
		return false;
	left = READ_ONCE(cold->until[to & 1]) - now;
	/* Else it is over, or of a former flow. */
	if (left && left <= CHALLENGE_INTERVAL_TICKS)
		return false;
	WRITE_ONCE(cold->until[to & 1], now + CHALLENGE_INTERVAL_TICKS);
	return true;
}

/* Turns the packet round: it goes back to where it has come from. False when it fails. */
static __always_inline bool turn_round(struct __sk_buff *skb, const struct segment *s)
{
	const __u32 at = ETH_HLEN;
	__u8 hops = CHALLENGE_HOPS;

	if (s->ipv6)
		return !bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, saddr), s->tuple.destination, 16, 0) &&
		       !bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, daddr), s->tuple.source, 16, 0) &&
		       !bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, hop_limit), &hops, sizeof(hops), 0);
	return !bpf_skb_store_bytes(skb, at + offsetof(struct iphdr, saddr), &s->tuple.destination[3], 4, 0) &&
	       !bpf_skb_store_bytes(skb, at + offsetof(struct iphdr, daddr), &s->tuple.source[3], 4, 0) &&
	       !bpf_l3_csum_replace(skb, at + offsetof(struct iphdr, check), bpf_htons(s->hops << 8), bpf_htons(hops << 8), 2) &&
	       !bpf_skb_store_bytes(skb, at + offsetof(struct iphdr, ttl), &hops, sizeof(hops), 0);
}

/*
 * Makes of a SYN a challenge ACK, which shows its sender where its stream stands.
 * @side, @other: of the sender, and the other one. The verdict.
 */
static __always_inline int challenge(struct __sk_buff *skb, struct segment *s, const struct segment_side *side,
				     const struct segment_side *other)
{
	__u32 ack = other->high_ack + other->ack_delta, edge = other->edge + other->ack_delta;
	__u32 room = after(edge, ack) ? (edge - ack) >> (side->own_scale & 15) : 0;
	struct scratch *b = scratch();
	__be16 window = bpf_htons(room < 0xffff ? room : 0xffff);

	/* None of its options is one of an acknowledgement. */
	s->payload += s->header - sizeof(struct tcphdr);
	s->header = sizeof(struct tcphdr);
	if (!b || !strip(skb, s))
		return DROP;
	__builtin_memcpy(&b->new[0], &s->tuple.destination_port, 2);
	__builtin_memcpy(&b->new[2], &s->tuple.source_port, 2);
	put_be32(&b->new[4], highest_rcv_nxt(side, other));
	put_be32(&b->new[8], ack);
	b->new[12] = sizeof(struct tcphdr) / 4 << 4;
	b->new[13] = ACK;
	__builtin_memcpy(&b->new[14], &window, 2);
	b->new[18] = b->new[19] = 0;
	if (!seal(skb, s) || !turn_round(skb, s)) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	count(SEGMENT_CHALLENGED);
	if (!(other->flags & SEGMENT_LOCAL))
		return bpf_redirect_neigh(other->out_device, NULL, 0, 0);
	return skb->ifindex == LOOPBACK ? NEXT : bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
}

/*
 * What becomes of a SYN whose checksum is right.
 * @s, @flow, @place: the segment, its flow, and where it belongs there. The verdict, or enum anew.
 */
__noinline int begin_anew(struct __sk_buff *skb, struct segment *s, struct segment_flow *flow,
			  struct segment_place *place)
{
	struct segment_side *side, *other;
	bool is_first;
	__u32 state;

	if (!s || !flow || !place)
		return ANEW_NOT;
	side = &flow->side[place->side & 1];
	other = &flow->side[!(place->side & 1)];
	state = load_acquire(&flow->state);
	is_first = (s->flags & (SYN | ACK | RST)) == SYN;
	if (state == SEGMENT_SPLICED && is_first) {
		if ((marks(side) | marks(other)) & SEGMENT_CLOSED) {
			count(SEGMENT_NO_WAY);
			return DROP;
		}
		/* Else it has reset the connection, where its receiver may have accepted that. */
		if (!(marks(side) & SEGMENT_DOUBTED))
			return may_challenge(place->flow, place->side) ? challenge(skb, s, side, other) : DROP;
		add_marks(side, SEGMENT_RST);
		prolong(flow, 0);
		end_spliced(flow);
	} else if (state != SEGMENT_TIME_WAIT) {
		return ANEW_NOT;
	}
	count(SEGMENT_REUSED);
	/* The stack asks no socket for a new connection while it has one of the same addresses and ports. */
	if (is_first && is_taken(skb, &s->tuple, false)) {
		send_copy(skb, COPY_RST);
		WRITE_ONCE(flow->state, SEGMENT_FREE);
		/* After the copy. */
		return bpf_redirect(skb->ifindex, skb->ifindex == LOOPBACK ? 0 : BPF_F_INGRESS);
	}
	WRITE_ONCE(flow->state, SEGMENT_FREE);
	return ANEW_UP;
}

#endif
