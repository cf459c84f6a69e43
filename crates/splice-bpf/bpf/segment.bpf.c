// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * TCP segment translation: what one peer of a spliced pair sends is rewritten into what the
 * other expects, and goes on without a socket in between. The steps and the reasons are in
 * docs/notes/segment-design.md.
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
#include "lib/atomics.h"
#include "segment/maps.h"
#include "segment/parse.h"
#include "segment/overlap.h"
#include "segment/forward.h"
#include "segment/icmp.h"
#include "segment/oversized.h"
#include "segment/rewrite.h"
#include "segment/untranslatable.h"
#include "segment/anew.h"
#include "segment/asked.h"
#include "segment/stray.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline void note_handshake(struct __sk_buff *skb, struct segment *s)
{
	struct segment_seen seen = {
		.device = skb->ifindex,
		.seq = s->seq,
		.ack = s->flags & ACK ? s->ack : 0,
		.hops = s->hops,
	};

	if (!is_verified(skb, s))
		return;
	if (find_options(skb, s))
		seen.mss = s->mss;
	bpf_map_update_elem(&segment_handshakes, &s->tuple, &seen, BPF_ANY);
}

static __always_inline void note(struct __sk_buff *skb, const struct segment *s,
				 const struct segment_place *place, struct segment_side *side)
{
	struct segment_change_over *change_over = change_over_of(place->flow);
	struct segment_change_over_side *seen;
	__u32 end = end_of(s);

	if (!change_over || !s->is_verified || !(s->flags & ACK) || (s->flags & (SYN | RST)))
		return;
	seen = &change_over->side[place->side & 1];
	/* Not the marks: those are cleared when OVERLAP begins, which another CPU may not know yet. */
	if (!READ_ONCE(side->high_seq_and_marks)) {
		side->high_ack = s->ack;
		seen->seen_device = skb->ifindex;
		seen->seen_hops = s->hops;
		__sync_val_compare_and_swap(&side->high_seq_and_marks, 0, (__u64)SEGMENT_NOTED << 32 | end);
	}
	seen->seen_device = skb->ifindex;
	seen->seen_hops = s->hops;
	if (!is_pure_ack(s))
		raise_high_seq(side, end);
}

/* Whether a relay that follows on this host can translate here and now as well. */
static __always_inline bool is_steady(const struct segment *s, const struct segment_flow *flow,
				      const struct segment_place *place)
{
	return load_acquire(&flow->state) == SEGMENT_SPLICED && place->device == LOOPBACK &&
	       !(s->flags & (SYN | FIN | RST)) &&
	       !((marks(&flow->side[0]) | marks(&flow->side[1])) & SEGMENT_FIN);
}

/*
 * Whether what goes up the stack has to come in on lo once more: a relay of another process, whose
 * program comes before this one, has not seen what the segment has become.
 */
static __always_inline bool goes_round(void)
{
	__u32 zero = 0;
	struct segment_gate *gate = bpf_map_lookup_elem(&segment_gates, &zero);

	return gate && READ_ONCE(gate->is_preceded);
}

/* Whether what this side's peer sends does not go on now. */
static __always_inline bool is_closed(const struct segment_side *side)
{
	return marks(side) & SEGMENT_CLOSED;
}

/* A segment that does not go on is as if it got lost after this program. @copy: for the relay's own socket; 0: none. */
static __always_inline int lose(struct __sk_buff *skb, __u32 copy)
{
	if (copy)
		send_copy(skb, copy);
	count(SEGMENT_NO_WAY);
	return DROP;
}

/* What is not translated goes up the stack, which would reset a connection that it does not know. */
static __always_inline int refuse(bool forwarded, __u32 reason)
{
	count(reason);
	return forwarded ? DROP : NEXT;
}

/* As open_forward(). Options are found first: that takes stack, of which open_forward() has none to spare. */
static __always_inline int try_to_open(struct __sk_buff *skb, struct segment *s, struct segment_place *at)
{
	if (!forwards() || !is_verified(skb, s) || !find_options(skb, s))
		return BEGINNING_NONE;
	return open_forward(skb, s, at);
}

/*
 * A SYN that opens nothing here. The socket that listens would answer one that another CPU translates with a number of
 * its own.
 */
static __always_inline int decline(struct __sk_buff *skb, struct segment *s, int begun)
{
	if (begun == BEGINNING_TWICE)
		return DROP;
	note_handshake(skb, s);
	return NEXT;
}

SEC("tc")
int segment_ingress(struct __sk_buff *skb)
{
	struct segment s = {};
	struct segment_place at = {}, *place = &at;
	struct segment_flow *flow;
	__u32 state, copy, mark = skb->mark, hop;
	bool by_lo = skb->ifindex != LOOPBACK, ok, forwarded;
	int begun, verdict;

	if (!parse(skb, &s)) {
		verdict = give_back(skb, &s);
		return verdict == NEXT ? pass_error(skb) : verdict;
	}
	/* Every segment of the host is looked up: without forwarding, that is one look-up, and no call. */
	if (!find_by_tuple(&s.tuple, &at) && !(forwards() && find(&s.tuple, &at))) {
		if (!(s.flags & SYN))
			return NEXT;
		begun = try_to_open(skb, &s, &at);
		if (begun != BEGINNING_DONE)
			return decline(skb, &s, begun);
		count(SEGMENT_FORWARD_OPENED);
	}
	flow = bpf_map_lookup_elem(&segment_flows, &at.flow);
	if (!flow || flow->serial != at.serial)
		return NEXT;
	/* What was sent to another host, or to all: the stack takes none of it for TCP. */
	if (skb->pkt_type != PACKET_HOST)
		return NEXT;
	state = load_acquire(&flow->state);
	if (mark == COPY_ACK || mark == COPY_RST || mark == COPY_TO_PEER)
		skb->mark = 0;
	/* A copy is for a socket that has taken its connection up since. */
	if (state == SEGMENT_HELD || (mark && !skb->mark && state == SEGMENT_RETURNED)) {
		if (mark == skb->mark)
			hold_back(skb, &s, flow, &at);
		count(SEGMENT_HELD_BACK);
		return DROP;
	}
	if (mark == COPY_ACK || mark == COPY_RST)
		return give_to_socket(skb, &s, flow, &at, mark == COPY_RST);
	if (state == SEGMENT_FREE || state == SEGMENT_CLAIMED) {
		if (s.flags & SYN)
			note_handshake(skb, &s);
		return NEXT;
	}
	forwarded = is_forwarded(flow);
	if (state != SEGMENT_RETURNED && at.device != skb->ifindex &&
	    !(forwarded && is_forwarding_device(skb->ifindex)))
		return refuse(forwarded, SEGMENT_OTHER_DEVICE);
	s.is_verified = is_verified(skb, &s);
	if (!s.is_verified)
		count(SEGMENT_DAMAGED);
	/* For a socket of this host that has got the same port since. */
	if (forwarded && state == SEGMENT_TIME_WAIT && is_foreign_answer(&s, flow, at.side & 1))
		return NEXT;
	if (state == SEGMENT_WATCH) {
		note(skb, &s, &at, &flow->side[at.side & 1]);
		/* Unless OVERLAP has begun meanwhile, and user space may not have known of it. */
		state = load_acquire(&flow->state);
		if (state != SEGMENT_OVERLAP)
			return NEXT;
	}
	if (state == SEGMENT_OPENING && s.is_verified && !(at.side & 1) && begins_again(&s, flow))
		state = SEGMENT_TIME_WAIT;
	if (state == SEGMENT_TIME_WAIT && (s.flags & (SYN | ACK)) == SYN && forwarded && s.is_verified) {
		/* The slot stays as it is until its owner has counted the connection. */
		if (at.side & 1)
			return decline(skb, &s, BEGINNING_NONE);
		forget_former(&s.tuple, at.flow, at.serial);
		begun = try_to_open(skb, &s, &at);
		if (begun != BEGINNING_DONE)
			return decline(skb, &s, begun);
		flow = bpf_map_lookup_elem(&segment_flows, &at.flow);
		if (!flow)
			return NEXT;
		state = SEGMENT_OPENING;
		count(SEGMENT_FORWARD_REOPENED);
	}
	if (state == SEGMENT_RETURNED) {
		if (s.flags & RST)
			ok = acknowledge_for(skb, &s, flow, &at);
		else
			ok = !(s.flags & ACK) || limit_ack_of_returned(skb, flow, &at, tcp_offset(&s), s.ack);
		if (ok)
			return NEXT;
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	if (state != SEGMENT_SPLICED && bpf_ktime_get_ns() > flow->deadline_ns)
		return refuse(state == SEGMENT_OPENING, SEGMENT_EXPIRED);
	if ((s.flags & SYN) && s.is_verified && !forwarded) {
		verdict = begin_anew(skb, &s, flow, &at);
		if (verdict == ANEW_UP)
			return decline(skb, &s, BEGINNING_NONE);
		if (verdict != ANEW_NOT)
			return verdict;
	}
	if (!s.plain_timestamp && !find_options(skb, &s))
		return refuse(forwarded, SEGMENT_MALFORMED);
	/* A receiver without the key discards it (tcp_inbound_hash). */
	if (s.is_signed)
		s.is_verified = false;

	if (mark == COPY_TO_PEER) {
		if (!keep_ack(skb, &s)) {
			count(SEGMENT_UNWRITABLE);
			return DROP;
		}
		s.is_acceptable = true;
	}
	if (state == SEGMENT_OVERLAP) {
		enum segment_way way = translate_overlap(&s, flow, at.flow, at.side);

		if (way == WAY_NOWHERE) {
			count(SEGMENT_GONE);
			return DROP;
		}
		if (way == WAY_SOCKET_ACK)
			return give_to_socket(skb, &s, flow, &at, false);
		if (way == WAY_BOTH) {
			send_copy(skb, COPY_TO_PEER);
			if (!limit_ack(skb, &s, flow, &at)) {
				count(SEGMENT_UNWRITABLE);
				return DROP;
			}
		}
		if (way != WAY_TRANSLATED) {
			count(SEGMENT_BY_SOCKET);
			return NEXT;
		}
	} else {
		if (state == SEGMENT_OPENING &&
		    translate_opening(&s, flow, at.flow, at.side & 1) == OPENING_DONE)
			state = SEGMENT_SPLICED;
		if (state != SEGMENT_OPENING)
			translate_steady(&s, flow, at.flow, at.side, state);
		if (forwarded) {
			/* There is no socket that could get a copy. */
			s.copy = 0;
			if (s.flags & SYN)
				fit_mss(skb, &s);
		}
	}
	copy = s.copy;
	if (is_closed(&flow->side[at.side & 1]))
		return lose(skb, copy && mark != COPY_TO_PEER ? copy : 0);
	for (hop = 1; hop <= MAX_HOPS && s.local; hop++) {
		place = bpf_map_lookup_elem(&segment_tuples, &s.tuple);
		if (!place)
			break;
		flow = bpf_map_lookup_elem(&segment_flows, &place->flow);
		if (!flow || flow->serial != place->serial || flow->state == SEGMENT_FREE)
			break;
		if (hop == MAX_HOPS || !is_steady(&s, flow, place)) {
			/* It goes round by lo and comes in as a first hop. */
			by_lo = true;
			break;
		}
		if (is_closed(&flow->side[place->side & 1]))
			return lose(skb, copy && mark != COPY_TO_PEER ? copy : 0);
		translate_steady(&s, flow, place->flow, place->side, SEGMENT_SPLICED);
	}

	if (copy && mark != COPY_TO_PEER)
		send_copy(skb, copy);
	by_lo = by_lo || (s.local && goes_round());
	/* Hops bound the way round lo, should connections form a ring. */
	s.spends_hop = !s.local || (by_lo && skb->ifindex == LOOPBACK);
	if (s.spends_hop && s.hops <= 1) {
		count(SEGMENT_HOPS_EXCEEDED);
		return DROP;
	}
	/* What was learned from it is as if the device had lost it. */
	if (is_long(skb)) {
		verdict = refuse_size(skb, &s, at.flow, at.side, s.out_device);
		if (verdict != NEXT)
			return verdict;
	}
	/* A priority is for this link. */
	ok = !skb->vlan_present || !bpf_skb_vlan_pop(skb);
	ok = ok && (s.ipv6 ? rewrite_ipv6(skb, &s) : rewrite_ipv4(skb, &s));
	if (!ok) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	/* The relay's socket would send it as one of its own, without what its sender or a program before has set. */
	skb->mark = 0;
	skb->priority = 0;
	count(SEGMENT_TRANSLATED);
	if (forwarded)
		return send_on(&s, at.side);
	if (!s.local)
		return bpf_redirect_neigh(s.out_device, NULL, 0, 0);
	if (by_lo)
		return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
	return NEXT;
}

/*
 * Whether a segment of a socket has to stand at its peer's RCV.NXT: what was translated has taken the peer further than
 * the socket has sent. What stands before all that it has sent is a question (keep-alive, zero window), and has to look
 * like one. A reset is accepted only at RCV.NXT (RFC 5961, 3.2).
 */
static __always_inline bool needs_rcv_nxt(const struct segment *s, const struct segment_side *other,
					   const struct segment_change_over_side *socket)
{
	return is_taken_over(other) && ((s->flags & RST) || (is_pure_ack(s) && !after(socket->sent, s->seq)));
}

/*
 * What the relay's own sockets send in OVERLAP, and their questions when they sleep. To a peer whose stream still goes by
 * the socket no window is announced beyond `announced_edge`. One whose stream is taken over has moved on: an
 * acknowledgement that is too old makes it discard the segment, payload included, and the window is
 * now the other peer's.
 */
SEC("tc")
int segment_egress(struct __sk_buff *skb)
{
	struct segment s = {};
	struct segment_tuple key;
	struct segment_place *place;
	struct segment_flow *flow;
	struct segment_change_over *change_over;
	struct segment_change_over_side *socket;
	struct segment_side *side, *other;
	struct segment_gate *gate;
	bool asks;
	__u32 zero = 0, seq, ack, edge, room, sum = 0, at, state;
	struct {
		__be32 seq;
		__be32 ack;
		__u8 offset;
		__u8 flags;
		__be16 window;
	} old, new;

	/*
	 * User space sets OVERLAP and then looks which window the socket has announced. Either it knows of this
	 * segment, or this finds OVERLAP.
	 */
	fence();
	gate = bpf_map_lookup_elem(&segment_gates, &zero);
	if (!gate || !READ_ONCE(gate->awake))
		return NEXT;
	/* What was translated came in on a device. */
	if (skb->ingress_ifindex || !parse(skb, &s) || !(s.flags & ACK) || (s.flags & SYN))
		return NEXT;
	reverse(&s.tuple, &key);
	place = bpf_map_lookup_elem(&segment_tuples, &key);
	if (!place)
		return NEXT;
	flow = bpf_map_lookup_elem(&segment_flows, &place->flow);
	if (!flow || flow->serial != place->serial)
		return NEXT;
	/* User space asks by a raw socket there. */
	if (is_forwarded(flow))
		return NEXT;
	side = &flow->side[place->side & 1];
	other = &flow->side[!(place->side & 1)];
	state = load_acquire(&flow->state);
	if (state == SEGMENT_RETURNED) {
		change_over = change_over_of(place->flow);
		if (!change_over)
			return NEXT;
		socket = &change_over->side[place->side & 1];
		/*
		 * A peer drops what it has received already, without a look at its acknowledgement (RFC 9293, 3.10.7.4). It may
		 * take nothing more, and so never get the socket to where it is. A reset that it has not reached it answers (RFC 5961, 3.2).
		 */
		seq = highest_rcv_nxt(side, other);
		if (needs_rcv_nxt(&s, other, socket) && after(seq, s.seq)) {
			if (!write_number(skb, tcp_offset(&s), offsetof(struct tcphdr, seq), s.seq, seq)) {
				count(SEGMENT_UNWRITABLE);
				return DROP;
			}
			/* The last that it sends. An acknowledgement takes it no further. */
			if (s.flags & RST)
				s.seq = seq;
		}
		raise(&socket->sent, end_of(&s));
		return NEXT;
	}
	/* What the socket has got since, it loses when it takes its connection up: its peer must send that again. */
	asks = state == SEGMENT_SPLICED && !(s.flags & RST);
	if ((asks && !(marks(side) & SEGMENT_ASKED)) || (state == SEGMENT_HELD && !(s.flags & RST))) {
		count(SEGMENT_SILENCED);
		return DROP;
	}
	if (!asks && (state != SEGMENT_OVERLAP || bpf_ktime_get_ns() > flow->deadline_ns))
		return NEXT;

	change_over = change_over_of(place->flow);
	if (!change_over)
		return NEXT;
	socket = &change_over->side[place->side & 1];
	raise(&socket->acknowledged_by_socket, s.ack);
	raise(&socket->sent, end_of(&s));
	if (is_taken_over(side)) {
		/* What the other peer says, in the sequence space of this connection */
		ack = other->high_ack + other->ack_delta;
		edge = other->edge + other->ack_delta;
		if (!asks && !is_distant(side) && after(s.ack, ack))
			ack = s.ack;
		s.strip_sack = 1;
	} else {
		ack = s.ack;
		edge = side->announced_edge;
	}
	room = after(edge, ack) ? (edge - ack) >> (side->own_scale & 15) : 0;
	/* Before the other peer is ahead of it, the socket's own window may be the smaller one. */
	if (ack == s.ack && s.window < room)
		room = s.window;
	if (room > 0xffff)
		room = 0xffff;
	if (!is_taken_over(side))
		socket->current_edge = ack + (room << (side->own_scale & 15));
	if (!s.plain_timestamp && !find_options(skb, &s))
		return NEXT;
	s.tsval = asks ? recent_timestamp(other) : 0;
	s.tsval = s.tsval ?: timestamp_floor(other, place->flow, !(place->side & 1));
	if (!rewrite_options(skb, &s, &sum)) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}

	at = tcp_offset(&s) + offsetof(struct tcphdr, seq);
	if (bpf_skb_load_bytes(skb, at, &old, sizeof(old)))
		return NEXT;
	new = old;
	if (asks) {
		/* What has been received already is answered (RFC 9293, 3.10.7.4). */
		new.seq = bpf_htonl(side->high_ack - 1);
		sum = csum_change(sum, old.seq, new.seq);
	} else if (needs_rcv_nxt(&s, other, socket)) {
		new.seq = bpf_htonl(highest_rcv_nxt(side, other));
		sum = csum_change(sum, old.seq, new.seq);
	}
	new.ack = bpf_htonl(ack);
	new.window = bpf_htons(room);
	sum = csum_change(sum, old.ack, new.ack);
	sum = csum_change(sum, ((__u32 *)&old)[2], ((__u32 *)&new)[2]);
	if (bpf_skb_store_bytes(skb, at, &new, sizeof(new), 0) ||
	    bpf_l4_csum_replace(skb, tcp_offset(&s) + offsetof(struct tcphdr, check), 0, sum, 0)) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	return NEXT;
}
