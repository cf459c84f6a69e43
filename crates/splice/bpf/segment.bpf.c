// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * TCP segment translation: what one peer of a spliced pair sends is rewritten into what the
 * other expects, and goes on without a socket in between. The steps and the reasons are in
 * docs/segment.md.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include "segment_maps.h"
#include "segment_parse.h"
#include "segment_rewrite.h"
#include "segment_sockets.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* skb->mark of a copy on its way to the relay's own socket; nobody else sees it */
#define COPY_ACK 0x53504c41
#define COPY_RST 0x53504c52

/* How long a flow that is over still translates: four repetitions of a FIN (0.2, 0.6, 1.4, 3 s) */
#define LINGER_NS (3200ULL * 1000 * 1000)

/*
 * What lies further below stamp_floor than this is an old duplicate, which the peer has to be
 * able to tell by its stamp: no segment waits longer than this on its way through the relay.
 */
#define FLOOR_REACH_NS (1000ULL * 1000 * 1000)

static __always_inline void note_handshake(struct __sk_buff *skb, struct segment *s)
{
	struct segment_seen seen = {
		.device = skb->ifindex,
		.seq = s->seq,
		.ack = s->flags & ACK ? s->ack : 0,
	};

	if (find_options(skb, s))
		seen.mss = s->mss;
	bpf_map_update_elem(&segment_handshakes, &s->tuple, &seen, BPF_ANY);
}

static __always_inline void note(struct __sk_buff *skb, const struct segment *s,
				 struct segment_side *side)
{
	__u32 end = end_of(s), edge = s->ack + (s->window << (side->window_left & 15));
	bool first = !(side->marks & SEGMENT_NOTED);

	if (!(s->flags & ACK) || (s->flags & (SYN | RST)))
		return;
	side->seen_device = skb->ifindex;
	if (first || after(end, side->high_seq))
		side->high_seq = end;
	if (first || after(s->ack, side->high_ack))
		side->high_ack = s->ack;
	if (first || after(edge, side->edge))
		side->edge = edge;
	if (s->flags & FIN) {
		side->fin_end = end;
		side->marks |= SEGMENT_FIN;
	}
	side->marks |= SEGMENT_NOTED;
}

/*
 * Segments of one peer come in on several CPUs. A mark that fell back would never be passed again:
 * what is acknowledged beyond it counts as untrue.
 */
static __always_inline void raise(__u32 *mark, __u32 to)
{
	__u32 old = *(volatile __u32 *)mark;
	int i;

	for (i = 0; i < 16 && after(to, old); i++) {
		__u32 found = __sync_val_compare_and_swap(mark, old, to);

		if (found == old)
			return;
		old = found;
	}
}

/*
 * The other peer has acknowledged up to `ack` (in this side's numbering). Many CPUs may say so
 * at once; who loses the race says nothing new, or says it again with the next segment.
 */
static __always_inline void advance_acked(struct segment_side *side, __u32 ack, __u64 *moved_ns)
{
	__u64 old = *(volatile __u64 *)&side->acked;
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
 * A reset ends the flow only where an endpoint would accept it: exactly at the place that it
 * expects next. Everything else is for the endpoint to judge, which asks back (RFC 5961).
 */
static __always_inline bool is_accepted_reset(const struct segment *s,
					      const struct segment_side *side,
					      const struct segment_side *other)
{
	return s->seq == side->high_seq || s->seq == other->high_ack + other->ack_delta ||
	       s->seq + side->seq_delta == other->edge;
}

/*
 * The difference between two clocks is chosen once, so that the first stamp lies one tick below
 * what the relay's own socket would send now.
 */
static __always_inline __u64 stamp_delta(struct segment_side *side, __u32 tsval, __u32 now)
{
	__u64 known = *(volatile __u64 *)&side->stamp_delta;
	__u64 choice, found;

	if (known)
		return known;
	choice = SEGMENT_STAMP_KNOWN | (__u32)(now - 1 - tsval);
	found = __sync_val_compare_and_swap(&side->stamp_delta, 0, choice);
	return found ?: choice;
}

static __always_inline void translate_stamp(struct segment *s, struct segment_side *side,
					    const struct segment_side *other, __u32 state)
{
	__u32 tick_ns = side->flags & SEGMENT_MICROSECONDS ? 1000 : 1000000;
	__u64 delta = *(volatile __u64 *)&side->stamp_delta;
	__u64 back = *(volatile __u64 *)&other->stamp_delta;
	__u32 stamp;

	if (!delta || state == SEGMENT_OVERLAP) {
		__u32 now = bpf_ktime_get_ns() / tick_ns + side->clock;

		delta = stamp_delta(side, s->tsval, now);
		/*
		 * The relay's own socket still sends, too, stamping with the time of now. With any
		 * other stamp one of the two looks like an old duplicate.
		 */
		stamp = state == SEGMENT_OVERLAP ? now : s->tsval + (__u32)delta;
	} else {
		stamp = s->tsval + (__u32)delta;
	}
	/* What waited on its way while the socket went on stamping. */
	if (after(side->stamp_floor, stamp) && side->stamp_floor - stamp < FLOOR_REACH_NS / tick_ns)
		stamp = side->stamp_floor;
	s->tsval = stamp;
	/* An echo of a clock that is not known yet: 0 is an echo of nothing (RFC 7323). */
	s->tsecr = back ? s->tsecr - (__u32)back : 0;
}

/*
 * Turns the segment into what the other peer expects. Returns 0, or COPY_ACK or COPY_RST when
 * the relay's own socket has to hear of it, too.
 */
static __always_inline __u32 translate(struct segment *s, struct segment_flow *flow,
				       struct segment_side *side, struct segment_side *other,
				       __u32 state)
{
	__u32 end = end_of(s), copy = 0, heard = side->high_ack;
	__u32 seq = s->seq + side->seq_delta, ack = s->ack + side->ack_delta;
	__u32 scaled = s->window << (side->window_left & 15);
	/* end of what the relay's own socket has to deliver to this peer */
	__u32 own_final = other->cut + other->seq_delta;
	bool bare = !s->payload && !(s->flags & (SYN | FIN | RST));

	if (s->flags & RST) {
		if (is_accepted_reset(s, side, other)) {
			__sync_fetch_and_or(&side->marks, SEGMENT_RST);
			copy = COPY_RST;
			if (state == SEGMENT_SPLICED) {
				flow->deadline_ns = bpf_ktime_get_ns() + LINGER_NS;
				flow->state = SEGMENT_LINGER;
			}
		} else {
			count(SEGMENT_RST_REFUSED);
		}
	} else if (s->flags & ACK) {
		/* Only what can be true may move the marks: a forger has to hit the window. */
		if (!after(ack, other->high_seq)) {
			__u32 edge = s->ack + scaled;

			raise(&side->high_ack, s->ack);
			raise(&side->edge, edge);
			advance_acked(other, ack, &flow->moved_ns);
			if ((other->marks & (SEGMENT_FIN | SEGMENT_FIN_ACKED)) == SEGMENT_FIN &&
			    !after(other->fin_end, ack)) {
				/*
				 * The other end of stream may be acknowledged on another CPU at this
				 * moment: a full barrier each lets one of the two see both.
				 */
				__sync_fetch_and_or(&other->marks, SEGMENT_FIN_ACKED);
				if (state == SEGMENT_SPLICED &&
				    (__sync_fetch_and_or(&side->marks, 0) & SEGMENT_FIN_ACKED)) {
					flow->deadline_ns = bpf_ktime_get_ns() + LINGER_NS;
					flow->state = SEGMENT_LINGER;
					copy = COPY_RST;
				}
			}
		}
		/*
		 * Within the window that the other peer, or before it the relay, has announced; an end
		 * of stream may lie one beyond. While the relay still announces, nobody knows.
		 */
		if (after(end, side->high_seq) &&
		    (state == SEGMENT_OVERLAP || !after(end, side->promised + 1) ||
		     !after(end + side->seq_delta, other->edge + 1)))
			raise(&side->high_seq, end);
		if ((s->flags & FIN) && end == side->high_seq) {
			side->fin_end = end;
			__sync_fetch_and_or(&side->marks, SEGMENT_FIN);
		}
		/*
		 * The socket has to hear until all that it has sent is acknowledged, or it repeats it.
		 * Should a copy get lost, the answer to the repetition is bare.
		 */
		if (state == SEGMENT_OVERLAP && (bare || !after(heard, own_final)))
			copy = COPY_ACK;
	}

	if (state == SEGMENT_OVERLAP && after(other->cut, ack)) {
		/*
		 * What the relay has acknowledged stays acknowledged. An older acknowledgement would
		 * make the receiver discard the whole segment. The window ends where it ended.
		 */
		__u32 raised = other->cut - ack;

		scaled = scaled > raised ? scaled - raised : 0;
		ack = other->cut;
		s->sack_clip = 1;
	}
	/*
	 * The relay may have accepted more from this peer than the other one has room for, so the
	 * peer's next number can lie outside of the other's window; there an acknowledgement
	 * would be ignored.
	 */
	if (bare && after(seq, other->edge))
		seq = other->edge;

	s->sack_delta += side->ack_delta;
	s->sack_floor = s->sack_clip ? ack : 0;
	s->seq = seq;
	s->ack = ack;
	scaled >>= side->window_right & 15;
	s->window = scaled < 0xffff ? scaled : 0xffff;
	if (s->has_stamp)
		translate_stamp(s, side, other, state);
	if (side->flags & SEGMENT_STRIP_SACK)
		s->strip_sack = 1;
	if (side->flags & SEGMENT_CLEAR_ECN)
		s->clear_ecn = 1;
	s->local = side->flags & SEGMENT_LOCAL;
	s->out_device = side->out_device;
	s->tuple = side->out;
	__sync_fetch_and_add(&side->segments, 1);
	if (s->payload)
		__sync_fetch_and_add(&side->payload_bytes, s->payload);
	return copy;
}

/* Whether a relay that follows on this host can translate here and now as well. */
static __always_inline bool is_steady(const struct segment *s, const struct segment_flow *flow,
				      const struct segment_place *place)
{
	return flow->state == SEGMENT_SPLICED && place->device == LOOPBACK &&
	       !(s->flags & (SYN | FIN | RST)) &&
	       !((flow->side[0].marks | flow->side[1].marks) & SEGMENT_FIN);
}

/*
 * Whether what goes up the stack has to come in on lo once more: a relay of another process, whose
 * program stands before this one, has not seen what the segment has become.
 */
static __always_inline bool goes_round(void)
{
	__u32 zero = 0;
	struct segment_gate *gate = bpf_map_lookup_elem(&segment_gates, &zero);

	return gate && *(volatile __u32 *)&gate->behind;
}

SEC("tc")
int segment_ingress(struct __sk_buff *skb)
{
	struct segment s = {};
	struct segment_place *place;
	struct segment_flow *flow;
	struct segment_side *side, *other;
	__u32 state, copy, mark = skb->mark, hop;
	bool by_lo = skb->ifindex != LOOPBACK, ok;
	__u8 ttl_left = 2;

	if (!parse(skb, &s))
		return NEXT;
	place = bpf_map_lookup_elem(&segment_tuples, &s.tuple);
	if (!place) {
		if (s.flags & SYN)
			note_handshake(skb, &s);
		return NEXT;
	}
	flow = bpf_map_lookup_elem(&segment_flows, &place->flow);
	if (!flow || flow->serial != place->serial)
		return NEXT;
	side = &flow->side[place->side & 1];
	other = &flow->side[!(place->side & 1)];
	state = *(volatile __u32 *)&flow->state;
	if (mark == COPY_ACK || mark == COPY_RST)
		return give_to_socket(skb, &s, side, other, mark == COPY_RST);
	if (state == SEGMENT_FREE) {
		if (s.flags & SYN)
			note_handshake(skb, &s);
		return NEXT;
	}
	if (state == SEGMENT_WATCH) {
		note(skb, &s, side);
		return NEXT;
	}
	if (place->device != skb->ifindex) {
		count(SEGMENT_OTHER_DEVICE);
		return NEXT;
	}
	if (state != SEGMENT_SPLICED && bpf_ktime_get_ns() > flow->deadline_ns) {
		count(SEGMENT_EXPIRED);
		return NEXT;
	}
	if (state == SEGMENT_LINGER && (s.flags & SYN)) {
		flow->state = SEGMENT_FREE;
		note_handshake(skb, &s);
		count(SEGMENT_REUSED);
		return NEXT;
	}
	if (!s.plain_stamp && !find_options(skb, &s)) {
		count(SEGMENT_MALFORMED);
		return NEXT;
	}

	copy = translate(&s, flow, side, other, state);
	for (hop = 1; hop < MAX_HOPS && s.local; hop++) {
		place = bpf_map_lookup_elem(&segment_tuples, &s.tuple);
		if (!place)
			break;
		flow = bpf_map_lookup_elem(&segment_flows, &place->flow);
		if (!flow || flow->serial != place->serial || flow->state == SEGMENT_FREE)
			break;
		if (!is_steady(&s, flow, place)) {
			/* It goes round by lo and comes in as a first hop. */
			by_lo = true;
			break;
		}
		translate(&s, flow, &flow->side[place->side & 1],
			  &flow->side[!(place->side & 1)], SEGMENT_SPLICED);
	}

	if (copy) {
		/*
		 * Over lo it has to leave once more, which keeps its route: without one a segment from
		 * an address of this host is a martian.
		 */
		skb->mark = copy;
		bpf_clone_redirect(skb, skb->ifindex,
				   skb->ifindex == LOOPBACK ? 0 : BPF_F_INGRESS);
		skb->mark = mark;
	}
	by_lo = by_lo || (s.local && goes_round());
	/* Hops bound the way round lo, should connections form a ring. */
	s.spends_hop = !s.local || (by_lo && skb->ifindex == LOOPBACK);
	if (s.spends_hop) {
		void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
		__u32 at = s.ipv6 ? ETH_HLEN + offsetof(struct ipv6hdr, hop_limit) :
				    ETH_HLEN + offsetof(struct iphdr, ttl);

		if (data + at + 1 > end)
			return DROP;
		ttl_left = *(__u8 *)(data + at);
	}
	if (ttl_left <= 1) {
		count(SEGMENT_HOPS_EXCEEDED);
		return DROP;
	}
	ok = s.ipv6 ? rewrite(skb, &s, true) : rewrite(skb, &s, false);
	if (!ok) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	count(SEGMENT_TRANSLATED);
	if (!s.local)
		return bpf_redirect_neigh(s.out_device, NULL, 0, 0);
	if (by_lo)
		return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
	return NEXT;
}

/*
 * What the relay's own sockets send in OVERLAP. They acknowledge what they have received and
 * announce their own window, but the peer has moved on: an acknowledgement that is too old makes
 * it discard the segment, payload included, and the window is now the other peer's.
 */
SEC("tc")
int segment_egress(struct __sk_buff *skb)
{
	struct segment s = {};
	struct segment_tuple key;
	struct segment_place *place;
	struct segment_flow *flow;
	struct segment_side *other;
	struct segment_gate *gate;
	__u32 zero = 0, ack, edge, room, sum = 0, at;
	struct {
		__be32 ack;
		__u8 offset;
		__u8 flags;
		__be16 window;
	} old, new;

	gate = bpf_map_lookup_elem(&segment_gates, &zero);
	if (!gate || !*(volatile __u32 *)&gate->overlaps)
		return NEXT;
	if (!parse(skb, &s) || !(s.flags & ACK) || (s.flags & (SYN | RST)))
		return NEXT;
	__builtin_memcpy(key.source, s.tuple.destination, 16);
	__builtin_memcpy(key.destination, s.tuple.source, 16);
	key.source_port = s.tuple.destination_port;
	key.destination_port = s.tuple.source_port;
	place = bpf_map_lookup_elem(&segment_tuples, &key);
	if (!place)
		return NEXT;
	flow = bpf_map_lookup_elem(&segment_flows, &place->flow);
	if (!flow || flow->serial != place->serial || flow->state != SEGMENT_OVERLAP)
		return NEXT;
	other = &flow->side[!(place->side & 1)];

	/* What the other peer says, in the numbering of this connection */
	ack = other->high_ack + other->ack_delta;
	edge = other->edge + other->ack_delta;
	if (after(s.ack, ack))
		ack = s.ack;
	room = after(edge, ack) ? (edge - ack) >> (flow->side[place->side & 1].own_scale & 15) : 0;
	/* Before the other peer is ahead of it, the socket's own window may be the smaller one. */
	if (ack == s.ack && s.window < room)
		room = s.window;
	if (room > 0xffff)
		room = 0xffff;
	if (ack == s.ack && room == s.window)
		return NEXT;

	at = tcp_offset(&s) + offsetof(struct tcphdr, ack_seq);
	if (bpf_skb_load_bytes(skb, at, &old, sizeof(old)))
		return NEXT;
	new = old;
	new.ack = bpf_htonl(ack);
	new.window = bpf_htons(room);
	sum = csum_change(sum, old.ack, new.ack);
	sum = csum_change(sum, ((__u32 *)&old)[1], ((__u32 *)&new)[1]);
	if (bpf_skb_store_bytes(skb, at, &new, sizeof(new), 0) ||
	    bpf_l4_csum_replace(skb, tcp_offset(&s) + offsetof(struct tcphdr, check), 0, sum, 0)) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	return NEXT;
}

/*
 * Run by user space on a packet that is a struct segment_inspection: tells what the kernel knows
 * of two sockets, without a lock and in one call. write_seq and copied_seq move only by the
 * relay's own hand.
 */
SEC("tc")
int segment_inspect(struct __sk_buff *skb)
{
	struct segment_inspection *in;
	struct segment_seen *seen;
	struct segment_tuple tuple;
	struct segment_socket out;
	int i;

	for (i = 0; i < 2; i++) {
		in = (void *)(long)skb->data;
		if ((void *)(in + 1) > (void *)(long)skb->data_end)
			return DROP;
		tuple = in->tuple[i];
		__builtin_memset(&out, 0, sizeof(out));
		inspect(skb, &tuple, &out);
		seen = bpf_map_lookup_elem(&segment_handshakes, &tuple);
		in->socket[i] = out;
		if (seen)
			in->seen[i] = *seen;
	}
	return NEXT;
}

/*
 * Run by user space when a flow is over: connection tracking has not seen its end, and would keep
 * the two connections for five days.
 */
SEC("tc")
int segment_forget(struct __sk_buff *skb)
{
	struct segment_inspection *in;
	struct segment_tuple tuple;
	__u32 forgotten = 0;
	int i;

	for (i = 0; i < 2; i++) {
		in = (void *)(long)skb->data;
		if ((void *)(in + 1) > (void *)(long)skb->data_end)
			return DROP;
		tuple = in->tuple[i];
		forgotten += forget(skb, &tuple);
	}
	in = (void *)(long)skb->data;
	if ((void *)(in + 1) > (void *)(long)skb->data_end)
		return DROP;
	in->forgotten = forgotten;
	return NEXT;
}
