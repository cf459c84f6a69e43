/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Segments of a spliced pair that come up to a socket which sleeps: by a device that their connection did not use
 * before, to which the program may not be attached, or in a VLAN. The stack has let them through, so the pair goes
 * back to its sockets, which do not mind where a segment comes in.
 */
#ifndef SEGMENT_STRAY_H
#define SEGMENT_STRAY_H

#include "segment/untranslatable.h"

/*
 * Fills in the addresses of a packet whose header of TCP is the first thing in @skb (tcp_filter). Whether it could be
 * read.
 */
static __always_inline bool addresses_of(struct __sk_buff *skb, struct segment_tuple *tuple)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__be32 pair[2];

		if (bpf_skb_load_bytes_relative(skb, offsetof(struct iphdr, saddr), pair, sizeof(pair), BPF_HDR_START_NET))
			return false;
		tuple->source[2] = tuple->destination[2] = bpf_htonl(0xffff);
		tuple->source[3] = pair[0];
		tuple->destination[3] = pair[1];
		return true;
	}
	return skb->protocol == bpf_htons(ETH_P_IPV6) &&
	       !bpf_skb_load_bytes_relative(skb, offsetof(struct ipv6hdr, saddr), tuple->source, 16, BPF_HDR_START_NET) &&
	       !bpf_skb_load_bytes_relative(skb, offsetof(struct ipv6hdr, daddr), tuple->destination, 16, BPF_HDR_START_NET);
}

/* Whether it came in an Ethernet frame, as the program expects at ingress. */
static __always_inline bool is_in_frame(struct __sk_buff *skb)
{
	__be16 protocol = 0;

	return !bpf_skb_load_bytes_relative(skb, offsetof(struct ethhdr, h_proto), &protocol, sizeof(protocol),
					    BPF_HDR_START_MAC) &&
	       protocol == skb->protocol;
}

/*
 * Whether IP options or extension headers stand before TCP. That of a super-packet, which tells no length in its first
 * header, does not count.
 */
static __always_inline bool has_headers_between(struct __sk_buff *skb)
{
	struct {
		__be16 length;
		__u8 next;
		__u8 hops;
	} v6;
	__u8 v4;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return !bpf_skb_load_bytes_relative(skb, 0, &v4, sizeof(v4), BPF_HDR_START_NET) &&
		       v4 % 16 * 4 > sizeof(struct iphdr);
	return !bpf_skb_load_bytes_relative(skb, offsetof(struct ipv6hdr, payload_len), &v6, sizeof(v6),
					    BPF_HDR_START_NET) &&
	       v6.length && v6.next != IPPROTO_TCP;
}

/*
 * Gives a pair back if this segment, which has come up to one of its sockets, has not come by its connection's device, or
 * has options that judge_untranslatable() has left to the stack.
 */
static __always_inline void judge_stray(struct __sk_buff *skb, const struct first_words *tcp)
{
	struct segment_tuple tuple = {};
	struct segment_place at = {};
	struct segment_flow *flow;
	struct segment_change_over *change_over;
	struct segment_side *side, *other;
	struct segment s = {};
	bool is_stray;

	if (!addresses_of(skb, &tuple))
		return;
	tuple.source_port = tcp->source;
	tuple.destination_port = tcp->destination;
	if (!find_by_tuple(&tuple, &at))
		return;
	is_stray = at.device != skb->ifindex;
	/* Any other one on its own device is late: it has passed the program before the pair was spliced. */
	if (!is_stray && !has_headers_between(skb))
		return;
	flow = bpf_map_lookup_elem(&segment_flows, &at.flow);
	if (!flow || flow->serial != at.serial || is_forwarded(flow) || load_acquire(&flow->state) != SEGMENT_SPLICED)
		return;
	s.seq = bpf_ntohl(tcp->seq);
	s.ack = bpf_ntohl(tcp->ack);
	s.window = bpf_ntohs(tcp->window);
	s.flags = tcp->flags;
	side = &flow->side[at.side & 1];
	other = &flow->side[!(at.side & 1)];
	change_over = change_over_of(at.flow);
	if (!change_over || !has_to_go_back(&s, side, other))
		return;
	/*
	 * User space attaches the program there: no socket may get an acknowledgement of more than it has sent
	 * (limit_ack_of_returned).
	 */
	if (is_stray)
		change_over->side[at.side & 1].seen_device = is_in_frame(skb) ? skb->ifindex : 0;
	hold(flow, at.flow, side, is_stray ? SEGMENT_STRAYED : SEGMENT_OPTIONED);
}

/*
 * The filter of a socket that sleeps: it receives resets only. In repair mode alone it would still
 * acknowledge and queue what arrives. One program for all, since each of their own would have to
 * be compiled, at 14 microseconds.
 */
SEC("socket")
int segment_asleep(struct __sk_buff *skb)
{
	struct first_words tcp;

	if (bpf_skb_load_bytes(skb, 0, &tcp, sizeof(tcp)))
		return 0;
	judge_stray(skb, &tcp);
	return tcp.flags & RST ? (int)skb->len : 0;
}

#endif
