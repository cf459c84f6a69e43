/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Segments that the program does not translate: in fragments, with IP options, or behind extension headers of IPv6.
 * The stack puts fragments together, and a socket has no use for options. So a pair to which they come goes back to its
 * sockets. A forwarded connection has none.
 */
#ifndef SEGMENT_UNTRANSLATABLE_H
#define SEGMENT_UNTRANSLATABLE_H

#include "segment/forward.h"
#include "segment/rewrite.h"

/* IPv6 headers that can stand before that of TCP (linux/in6.h has them for programs of user space only). */
#define IPPROTO_DESTINATION 60

/* One of each kind, of options for the destination two (RFC 8200, 4.1). */
#define MOST_HEADERS 5

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
		bpf_ringbuf_output(&segment_calls, &slot, sizeof(slot), BPF_RB_FORCE_WAKEUP);
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

/* What becomes of a packet that parse() does not take. enum untranslatable. */
__noinline int judge_untranslatable(struct __sk_buff *skb)
{
	struct segment_tuple tuple = {};
	struct segment_place at = {};
	struct segment_flow *flow;
	struct segment_side *side, *other;
	struct first_words tcp;
	/* Never as a whole in memory: the stack is short of room on Linux 6.1. */
	struct segment s = {};
	__u32 offset, mark = SEGMENT_OPTIONED, state;

	if (is_in_vlan(skb) || skb->pkt_type != PACKET_HOST)
		return UNTRANSLATABLE_UP;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP ||
		    (ip.frag_off & bpf_htons(0x1fff)))
			return UNTRANSLATABLE_UP;
		offset = ip.ihl * 4;
		if (ip.frag_off & bpf_htons(0x2000))
			mark = SEGMENT_FRAGMENTED;
		tuple.source[2] = tuple.destination[2] = bpf_htonl(0xffff);
		tuple.source[3] = ip.saddr;
		tuple.destination[3] = ip.daddr;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;
		struct {
			__u8 next;
			__u8 length;
			__be16 fragment;
		} more;
		__u32 next, i;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return UNTRANSLATABLE_UP;
		offset = sizeof(ip);
		next = ip.nexthdr;
		for (i = 0; i < MOST_HEADERS && next != IPPROTO_TCP; i++) {
			if ((next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_FRAGMENT &&
			     next != IPPROTO_DESTINATION) ||
			    bpf_skb_load_bytes(skb, ETH_HLEN + offset, &more, sizeof(more)))
				return UNTRANSLATABLE_UP;
			if (next == IPPROTO_FRAGMENT) {
				if (more.fragment & bpf_htons(0xfff8))
					return UNTRANSLATABLE_UP;
				mark = SEGMENT_FRAGMENTED;
			}
			offset += next == IPPROTO_FRAGMENT ? 8 : (more.length + 1) * 8;
			next = more.next;
		}
		if (next != IPPROTO_TCP)
			return UNTRANSLATABLE_UP;
		__builtin_memcpy(tuple.source, &ip.saddr, 16);
		__builtin_memcpy(tuple.destination, &ip.daddr, 16);
	} else {
		return UNTRANSLATABLE_UP;
	}
	if (bpf_skb_load_bytes(skb, ETH_HLEN + offset, &tcp, sizeof(tcp)))
		return UNTRANSLATABLE_UP;
	tuple.source_port = tcp.source;
	tuple.destination_port = tcp.destination;
	if (!find(&tuple, &at))
		return UNTRANSLATABLE_UP;
	flow = bpf_map_lookup_elem(&segment_flows, &at.flow);
	if (!flow || flow->serial != at.serial)
		return UNTRANSLATABLE_UP;
	state = load_acquire(&flow->state);
	if (is_forwarded(flow))
		return state == SEGMENT_TIME_WAIT ? UNTRANSLATABLE_UP : UNTRANSLATABLE_LOST;
	if (state == SEGMENT_HELD)
		return UNTRANSLATABLE_HELD;
	s.seq = bpf_ntohl(tcp.seq);
	s.ack = bpf_ntohl(tcp.ack);
	/* The checksum covers all fragments, and changes by difference. */
	if (state == SEGMENT_RETURNED)
		return (tcp.flags & (ACK | RST)) != ACK ||
				       limit_ack_of_returned(skb, ETH_HLEN + offset, s.ack, at.flow, at.side) ?
			       UNTRANSLATABLE_UP :
			       UNTRANSLATABLE_FAILED;
	s.window = bpf_ntohs(tcp.window);
	s.flags = tcp.flags;
	side = &flow->side[at.side & 1];
	other = &flow->side[!(at.side & 1)];
	if ((state != SEGMENT_SPLICED && state != SEGMENT_OVERLAP) || !has_to_go_back(&s, side, other))
		return UNTRANSLATABLE_UP;
	hold(flow, at.flow, side, mark);
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

/* The verdict on a packet that parse() does not take; NEXT for what is none of a flow's. */
static __always_inline int give_back(struct __sk_buff *skb)
{
	if (!may_be_tcp(skb))
		return NEXT;
	switch (judge_untranslatable(skb)) {
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
