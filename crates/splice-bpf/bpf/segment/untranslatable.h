/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Segments that the program does not translate: in fragments, with IP options, or after extension headers of IPv6.
 * The stack puts fragments together, and a socket has no use for options. So a pair to which they come goes back to its
 * sockets. A forwarded connection has none.
 */
#ifndef SEGMENT_UNTRANSLATABLE_H
#define SEGMENT_UNTRANSLATABLE_H

#include "segment/forward.h"
#include "segment/headers.h"
#include "segment/returned.h"

enum untranslatable {
	UNTRANSLATABLE_UP,	/* of no flow, or nothing that its receiver would take */
	UNTRANSLATABLE_LOST,	/* of a forwarded connection: the stack would answer with a reset */
	UNTRANSLATABLE_HELD,	/* of a pair that goes back to its sockets */
	UNTRANSLATABLE_FAILED,	/* of a pair that has gone back: it could not be written */
};

/* What stands first in the header of TCP; a first fragment of less than that is none of TCP's (RFC 1858). */
struct first_words {
	__be16 source;
	__be16 destination;
	__be32 seq;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
};

/* Has user space look at a pair. */
static __always_inline void call_owner(__u32 slot)
{
	bpf_ringbuf_output(&segment_calls, &slot, sizeof(slot), BPF_RB_FORCE_WAKEUP);
}

/*
 * A reset is not sent again, so it counts also where it does not go on: user space resets the other peer.
 * @s: a reset whose checksum is right. @socket: of the side that it comes from.
 */
static __always_inline void keep_reset(const struct segment *s, struct segment_side *side,
				       const struct segment_change_over_side *socket, __u32 slot)
{
	__u32 held = READ_ONCE(socket->held_end), high = high_seq(side);

	/* Its sender may have sent more, which was held back. */
	if (s->seq != high && !(held && after(held, high) && s->seq == held))
		return;
	if (!(add_marks(side, SEGMENT_RST) & SEGMENT_RST))
		call_owner(slot);
}

/* A segment of a pair that goes back at this moment: it is as if it got lost. Nothing of note is returned. */
__noinline int hold_back(struct __sk_buff *skb, struct segment *s, struct segment_flow *flow, struct segment_place *place)
{
	struct segment_change_over *change_over;
	struct segment_change_over_side *socket;
	struct segment_side *side;
	__u32 held, high;

	if (!s || !flow || !place)
		return 0;
	change_over = change_over_of(place->flow);
	if (!change_over || !is_verified(skb, s))
		return 0;
	side = &flow->side[place->side & 1];
	socket = &change_over->side[place->side & 1];
	if (s->flags & RST) {
		keep_reset(s, side, socket, place->flow);
		return 0;
	}
	held = READ_ONCE(socket->held_end);
	high = high_seq(side);
	if (!held || !after(held, high))
		held = high;
	if (!after(s->seq, held) && after(end_of(s), held))
		WRITE_ONCE(socket->held_end, end_of(s));
	return 0;
}

/*
 * Gives a pair back to its sockets, unless it is over. In OVERLAP these hold bytes of their own, and user space decides
 * when.
 * @side: of the peer whose segments are not translated. @why: the mark.
 */
static __always_inline void hold(struct segment_flow *flow, __u32 slot, struct segment_side *side, __u32 why)
{
	__u32 former = add_marks(side, why), state = load_acquire(&flow->state);

	if (state == SEGMENT_SPLICED)
		state = __sync_val_compare_and_swap(&flow->state, SEGMENT_SPLICED, SEGMENT_HELD);
	else if (state != SEGMENT_OVERLAP || (former & why))
		return;
	if (state == SEGMENT_SPLICED || state == SEGMENT_OVERLAP)
		call_owner(slot);
}

/*
 * Whether a pair that is spliced has to go back for a segment: for one that its receiver takes, or answers, as a
 * keep-alive, a window probe or what it has got before. Who forges one has to know the numbers of both streams, or that
 * of a reset. Its checksum cannot be verified before it is whole.
 */
static __always_inline bool has_to_go_back(const struct segment *s, const struct segment_side *side,
					   const struct segment_side *other)
{
	__u32 next = other->high_ack - side->seq_delta;

	if (s->flags & SYN)
		return false;
	/* RFC 5961, 3.2. The peer that has sent it answers the socket in the same way. */
	if (s->flags & RST)
		return s->seq == next || s->seq == high_seq(side);
	if (!(s->flags & ACK) || !is_ack_acceptable(s, side, other))
		return false;
	return is_in_window(s, side, other) || (!after(s->seq, next) && next - s->seq <= other->largest_window);
}

/*
 * Whether the stack takes a segment that is whole, as far as its header of TCP and its checksum are concerned.
 * @at: where the header is. @s: the segment, but for its checksum and its options.
 */
static __always_inline bool is_whole_taken(struct __sk_buff *skb, struct segment *s, __u32 at)
{
	__be16 check;

	if (bpf_skb_load_bytes(skb, at + offsetof(struct tcphdr, check), &check, sizeof(check)))
		return false;
	s->check = check;
	/* A signature is one that its receiver does not expect, as in segment_ingress(). */
	return is_segment_right(skb, s) && find_options(skb, s) && !s->is_signed;
}

/* What becomes of a packet that parse() does not take. @s: to be filled in. enum untranslatable. */
__noinline int judge_untranslatable(struct __sk_buff *skb, struct segment *s)
{
	struct headers h = {};
	struct segment_place at = {};
	struct segment_flow *flow;
	struct segment_change_over *change_over;
	struct segment_side *side, *other;
	struct first_words tcp;
	__u32 state, least = sizeof(struct tcphdr), header;

	if (!s || is_in_vlan(skb) || skb->pkt_type != PACKET_HOST)
		return UNTRANSLATABLE_UP;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (!read_ipv4(skb, s, &h))
			return UNTRANSLATABLE_UP;
		/* Linux puts these together, too, but not those of IPv6 (ipv6frag_thdr_truncated). */
		if (h.is_fragment)
			least = sizeof(tcp);
	} else if (skb->protocol != bpf_htons(ETH_P_IPV6) || !read_ipv6(skb, s, &h)) {
		return UNTRANSLATABLE_UP;
	}
	if (h.end > skb->len || h.at + least > h.end || bpf_skb_load_bytes(skb, h.at, &tcp, sizeof(tcp)))
		return UNTRANSLATABLE_UP;
	header = tcp.offset / 16 * 4;
	if (header < sizeof(struct tcphdr) || (!h.is_fragment && h.at + header > h.end))
		return UNTRANSLATABLE_UP;
	s->tuple.source_port = tcp.source;
	s->tuple.destination_port = tcp.destination;
	if (!find(&s->tuple, &at))
		return UNTRANSLATABLE_UP;
	flow = bpf_map_lookup_elem(&segment_flows, &at.flow);
	if (!flow || flow->serial != at.serial)
		return UNTRANSLATABLE_UP;
	state = load_acquire(&flow->state);
	if (is_forwarded(flow))
		return state == SEGMENT_TIME_WAIT ? UNTRANSLATABLE_UP : UNTRANSLATABLE_LOST;
	if (state == SEGMENT_HELD)
		return UNTRANSLATABLE_HELD;
	s->seq = bpf_ntohl(tcp.seq);
	s->ack = bpf_ntohl(tcp.ack);
	/* The checksum covers all fragments, and changes by difference. */
	if (state == SEGMENT_RETURNED)
		return (tcp.flags & (ACK | RST)) != ACK ||
				       limit_ack_of_returned(skb, flow, &at, h.at, s->ack) ?
			       UNTRANSLATABLE_UP :
			       UNTRANSLATABLE_FAILED;
	s->window = bpf_ntohs(tcp.window);
	s->flags = tcp.flags;
	s->header = header;
	s->payload = h.is_fragment ? 0 : h.end - h.at - header;
	side = &flow->side[at.side & 1];
	other = &flow->side[!(at.side & 1)];
	if ((state != SEGMENT_SPLICED && state != SEGMENT_OVERLAP) || !has_to_go_back(s, side, other))
		return UNTRANSLATABLE_UP;
	/* The stack decides, by settings that are not known here. What it takes comes up to the socket (judge_stray). */
	if (h.is_doubtful || (!h.is_fragment && !is_whole_taken(skb, s, h.at))) {
		count(SEGMENT_MALFORMED);
		return UNTRANSLATABLE_UP;
	}
	hold(flow, at.flow, side, h.is_fragment ? SEGMENT_FRAGMENTED : SEGMENT_OPTIONED);
	if ((s->flags & RST) && !h.is_fragment && (change_over = change_over_of(at.flow)))
		keep_reset(s, side, &change_over->side[at.side & 1], at.flow);
	return state == SEGMENT_SPLICED ? UNTRANSLATABLE_HELD : UNTRANSLATABLE_UP;
}

/* Most of what parse() does not take is not of TCP at all. */
static __always_inline bool may_be_tcp(const struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + ETH_HLEN;

		return (void *)(ip + 1) > end || ip->protocol == IPPROTO_TCP;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + ETH_HLEN;

		return (void *)(ip + 1) > end || (ip->nexthdr != IPPROTO_UDP && ip->nexthdr != IPPROTO_ICMPV6);
	}
	return false;
}

/* The verdict on a packet that parse() does not take; NEXT for what is none of a flow's. @s: to be filled in. */
static __always_inline int give_back(struct __sk_buff *skb, struct segment *s)
{
	if (!may_be_tcp(skb))
		return NEXT;
	switch (judge_untranslatable(skb, s)) {
	case UNTRANSLATABLE_LOST:
		count(SEGMENT_FORWARD_LOST);
		return DROP;
	case UNTRANSLATABLE_HELD:
		count(SEGMENT_HELD_BACK);
		return DROP;
	case UNTRANSLATABLE_FAILED:
		count(SEGMENT_UNWRITABLE);
		return DROP;
	default:
		return NEXT;
	}
}

#endif
