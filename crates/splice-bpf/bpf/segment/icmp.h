/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about segments that were translated (RFC 792, RFC 4443). Routers send them to the relay, which has no
 * socket that has sent these.
 *
 * Whose segments are too long for the other peer's path goes back to the sockets, each of which then sends by its own
 * path: with the error, a peer would send shorter segments to the relay on all its connections. No other error of a pair
 * matters to its peers.
 *
 * Errors about a forwarded connection go on to the peer that has sent the segment, with the addresses, ports and number
 * that it knows; what is quoted beyond that stays as it is, and so does a wrong checksum. Their source becomes the
 * relay's address that this peer talks to: a path need not let the router's address through, and the peer has nothing
 * to do with the server's.
 *
 * What is too long for the relay's own device is in segment/oversized.h.
 */
#ifndef SEGMENT_ICMP_H
#define SEGMENT_ICMP_H

#include "lib/checksum.h"
#include "segment/overlap.h"
#include "segment/untranslatable.h"

#define ICMP_UNREACHABLE 3
#define ICMP_TOO_BIG_CODE 4
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMPV6_UNREACHABLE 1
#define ICMPV6_TOO_BIG 2
#define ICMPV6_PARAMETER_PROBLEM 4

/*
 * Errors that say that nothing will ever get through, by their code, one bit each: those that icmp_err_convert and
 * tab_unreach (net/ipv4/icmp.c, net/ipv6/icmp.c) call fatal. A parameter problem is one, too.
 */
#define ICMP_FATAL_CODES 0xe7ccU
#define ICMPV6_FATAL_CODES 0x72U

/*
 * A server uses a path MTU for all its connections to the relay, so one client's path must not make it smaller than
 * any link of IPv6 (RFC 8200, 5).
 */
#define LEAST_SERVER_MTU 1280

/*
 * For each connection a peer gets so many errors at once, and one more in each interval, so that nobody floods it by way
 * of the relay. The kernel bounds errors in the same way (`icmp_global_allow`, `inet_peer_xrlim_allow`), but not those of path MTUs: here
 * they count as well, since a single one of them has the sender repeat all that was too long. One interval is shorter
 * than a retransmission timer (TCP_RTO_MIN), so none waits for another error than the first.
 */
#define ERRORS_AT_ONCE 16
#define ERROR_INTERVAL_TICKS 16

struct icmp_header {
	__u8 type;
	__u8 code;
	__sum16 check;
	__be32 rest;
};

/* The first bytes of a TCP header: those that an error quotes in any case. */
struct icmp_quote {
	__be16 source;
	__be16 destination;
	__be32 seq;
};

struct icmp_v4 {
	struct iphdr ip;
	struct icmp_header icmp;
	struct iphdr quoted;
	struct icmp_quote tcp;
};

struct icmp_v6 {
	struct ipv6hdr ip;
	struct icmp_header icmp;
	struct ipv6hdr quoted;
	struct icmp_quote tcp;
};

/* The sum over so many bytes, a constant, added to another one. */
#define SUM_OF(from, bytes, sum) bpf_csum_diff(NULL, 0, (__be32 *)(from), bytes, sum)

/* An error, and what becomes of it. */
struct icmp_error {
	/* as the answer to the quoted segment would carry it; then the segment, as its sender has sent it */
	struct segment_tuple segment;
	__u32 seq;		/* of the quoted segment; then as its sender has sent it */
	__u32 out_device;
	__u32 hops;		/* that it may still take */
	__u32 length;		/* of the quoted packet, in bytes */
	__u32 mtu;		/* where it was too big */
	__u8 too_big;
	__u8 is_verified;	/* where it was too big: its checksums are right */
	__u8 refuses;		/* the server cannot be reached */
	__u8 is_fatal;		/* a peer may take it for the end (RFC 1122, 4.2.3.9) */
};

enum icmp_way {
	ICMP_UP,	/* of no segment that was translated */
	ICMP_ON,	/* to the sender of the segment */
	ICMP_HELD,	/* of a pair that goes back to its sockets */
	ICMP_NOWHERE,	/* of no segment that is on its way: a forgery, or late. Or one too many, or too hard */
};

/*
 * Whether a segment of a pair has been translated, or may have been: then its sender is meant, and else the relay's
 * socket, also that of a later connection.
 * @flow, @slot: its flow, and the flow's index. @from: the side of its sender. @seq: its number, as its sender has
 * sent it.
 */
static __always_inline bool was_translated(const struct segment_flow *flow, __u32 slot, __u32 from, __u32 seq)
{
	__u32 state = load_acquire(&flow->state);
	struct segment_change_over *change_over;

	if (state == SEGMENT_SPLICED)
		return true;
	if (state != SEGMENT_OVERLAP || bpf_ktime_get_ns() > flow->deadline_ns || !is_taken_over(&flow->side[from & 1]))
		return false;
	change_over = change_over_of(slot);
	return change_over && (is_distant(&flow->side[from & 1]) ||
			       !after(socket_end(&change_over->side[from & 1]), seq));
}

/*
 * Whether a peer may get an error more; then it counts. Two CPUs may count one instead of two.
 * @slot, @to: index of its flow, and its side.
 */
static __always_inline bool may_send_error(__u32 slot, __u32 to)
{
	const __u32 most = ERRORS_AT_ONCE * ERROR_INTERVAL_TICKS;
	struct segment_cold *cold = bpf_map_lookup_elem(&segment_colds, &slot);
	__u32 now = ticks_of(bpf_ktime_get_ns()), ahead;
	__u32 *until;

	if (!cold)
		return false;
	until = &cold->until[to & 1];
	ahead = READ_ONCE(*until) - now;
	/* It is over, or of a former flow. */
	if (ahead > most)
		ahead = 0;
	if (ahead > most - ERROR_INTERVAL_TICKS)
		return false;
	WRITE_ONCE(*until, now + ahead + ERROR_INTERVAL_TICKS);
	return true;
}

/*
 * Where an error belongs. A forger has to know what is on its way (RFC 5927, 4.1).
 * @e: the error. enum icmp_way.
 */
__noinline int judge_error(struct icmp_error *e)
{
	struct segment_place at = {};
	struct segment_flow *flow;
	struct segment_side *sender, *other;
	__u32 state, oldest, from, seq;
	bool is_known;

	if (!e)
		return ICMP_UP;
	if (!find(&e->segment, &at))
		return ICMP_UP;
	flow = bpf_map_lookup_elem(&segment_flows, &at.flow);
	if (!flow || flow->serial != at.serial)
		return ICMP_UP;
	from = !(at.side & 1);
	sender = &flow->side[from & 1];
	other = &flow->side[at.side & 1];
	state = load_acquire(&flow->state);
	seq = e->seq - sender->seq_delta;
	/* A SYN counts as acknowledged from the beginning. */
	oldest = (__u32)READ_ONCE(sender->acked) - (state == SEGMENT_OPENING);
	is_known = !after(oldest, seq) && !after(seq, high_seq(sender)) && (!e->too_big || e->mtu < e->length);
	if (!is_forwarded(flow)) {
		if (!was_translated(flow, at.flow, from, seq))
			return ICMP_UP;
		if (!is_known || !e->too_big || !e->is_verified)
			return ICMP_NOWHERE;
		hold(flow, at.flow, sender, SEGMENT_NARROW);
		return ICMP_HELD;
	}
	/* None that may end a connection which is open (RFC 5927, 5.2). */
	if ((e->is_fatal && state != SEGMENT_OPENING) || (e->too_big && from && e->mtu < LEAST_SERVER_MTU))
		return ICMP_NOWHERE;
	if ((state != SEGMENT_OPENING && state != SEGMENT_SPLICED) || !(marks(sender) & SEGMENT_NOTED) || !is_known ||
	    e->hops <= 1 || !may_send_error(at.flow, from))
		return ICMP_NOWHERE;
	/* The client gets it. Should it try again nevertheless, its SYN opens the connection anew. */
	if (state == SEGMENT_OPENING && e->refuses && (at.side & 1)) {
		add_marks(other, SEGMENT_RST);
		prolong(flow, 0);
		leave_opening(flow, SEGMENT_TIME_WAIT);
	}
	e->seq = seq;
	reverse(&other->out, &e->segment);
	e->out_device = other->out_device;
	return ICMP_ON;
}

/* Passes an error on to the sender of the segment that it is about. The verdict; NEXT for every other packet. */
__noinline int pass_error_v4(struct __sk_buff *skb)
{
	struct icmp_v4 *p = (void *)scratch();
	struct icmp_error e = {};
	__u32 sum = 0, word;
	int way;

	if (!p || bpf_skb_load_bytes(skb, ETH_HLEN, p, sizeof(*p)) || p->ip.ihl != 5 ||
	    (p->ip.frag_off & bpf_htons(0x3fff)) || p->ip.protocol != IPPROTO_ICMP ||
	    (p->icmp.type != ICMP_UNREACHABLE && p->icmp.type != ICMP_TIME_EXCEEDED &&
	     p->icmp.type != ICMP_PARAMETER_PROBLEM) ||
	    p->quoted.ihl != 5 || p->quoted.protocol != IPPROTO_TCP || (p->quoted.frag_off & bpf_htons(0x1fff)) ||
	    p->quoted.saddr != p->ip.daddr)
		return NEXT;
	e.segment.source[2] = e.segment.destination[2] = bpf_htonl(0xffff);
	e.segment.source[3] = p->quoted.daddr;
	e.segment.destination[3] = p->quoted.saddr;
	e.segment.source_port = p->tcp.destination;
	e.segment.destination_port = p->tcp.source;
	e.seq = bpf_ntohl(p->tcp.seq);
	e.hops = p->ip.ttl;
	e.too_big = p->icmp.type == ICMP_UNREACHABLE && p->icmp.code == ICMP_TOO_BIG_CODE;
	e.is_verified = e.too_big && is_header_right(skb) &&
			is_message_right(skb, ETH_HLEN + sizeof(p->ip), ETH_HLEN + bpf_ntohs(p->ip.tot_len), 0);
	e.mtu = bpf_ntohl(p->icmp.rest) & 0xffff;
	e.length = bpf_ntohs(p->quoted.tot_len);
	e.refuses = p->icmp.type == ICMP_UNREACHABLE && !e.too_big;
	e.is_fatal = p->icmp.type == ICMP_PARAMETER_PROBLEM ||
		     (e.refuses && (ICMP_FATAL_CODES >> (p->icmp.code & 15) & 1));
	way = judge_error(&e);
	if (way == ICMP_UP)
		return NEXT;
	if (way != ICMP_ON) {
		count(way == ICMP_HELD ? SEGMENT_HELD_BACK : SEGMENT_ICMP_REFUSED);
		return DROP;
	}
	/*
	 * The quoted checksum of TCP stays: it covers what is not quoted, and a timestamp that was translated. The sum
	 * over an IP header is that of its checksum alone.
	 */
	sum = csum_change(csum_change(0, p->quoted.saddr, e.segment.source[3]), p->quoted.daddr,
			  e.segment.destination[3]);
	p->quoted.saddr = e.segment.source[3];
	p->quoted.daddr = e.segment.destination[3];
	word = p->quoted.check;
	p->quoted.check = csum_fold(csum_change(sum, 0, (__u16)~p->quoted.check));
	sum = csum_change(sum, word, p->quoted.check);
	word = *(__u32 *)&p->tcp;
	p->tcp.source = e.segment.source_port;
	p->tcp.destination = e.segment.destination_port;
	sum = csum_change(sum, word, *(__u32 *)&p->tcp);
	sum = csum_change(sum, p->tcp.seq, bpf_htonl(e.seq));
	p->tcp.seq = bpf_htonl(e.seq);
	p->icmp.check = csum_fold(csum_change(sum, 0, (__u16)~p->icmp.check));
	word = ((__u32 *)&p->ip)[2] & bpf_htonl(0xffff0000);
	p->ip.ttl--;
	sum = csum_change(0, word, ((__u32 *)&p->ip)[2] & bpf_htonl(0xffff0000));
	sum = csum_change(csum_change(sum, p->ip.saddr, e.segment.destination[3]), p->ip.daddr, e.segment.source[3]);
	p->ip.saddr = e.segment.destination[3];
	p->ip.daddr = e.segment.source[3];
	p->ip.check = csum_fold(csum_change(sum, 0, (__u16)~p->ip.check));
	/* A priority is for this link. */
	if (bpf_skb_store_bytes(skb, ETH_HLEN, p, sizeof(*p), BPF_F_RECOMPUTE_CSUM) ||
	    (skb->vlan_present && bpf_skb_vlan_pop(skb))) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	count(SEGMENT_ICMP_PASSED);
	return bpf_redirect_neigh(e.out_device, NULL, 0, 0);
}

/* Both addresses of an IPv6 header; the ports and the number of TCP follow them at once. */
#define ADDRESSES (2 * sizeof(struct in6_addr))

static __always_inline bool is_same(const struct in6_addr *a, const struct in6_addr *b)
{
	const __be32 *x = a->in6_u.u6_addr32, *y = b->in6_u.u6_addr32;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

/* The sum of the pseudo-header of ICMP (RFC 4443, 2.3). */
static __always_inline __u32 pseudo_sum_v6(struct ipv6hdr *ip)
{
	__u32 sum = SUM_OF(&ip->saddr, ADDRESSES, 0);

	return csum_change(csum_change(sum, 0, bpf_htonl(bpf_ntohs(ip->payload_len))), 0, bpf_htonl(IPPROTO_ICMPV6));
}

/* The same for IPv6. */
__noinline int pass_error_v6(struct __sk_buff *skb)
{
	struct icmp_v6 *p = (void *)scratch();
	struct icmp_error e = {};
	__u32 before, now;
	int way;

	if (!p || bpf_skb_load_bytes(skb, ETH_HLEN, p, sizeof(*p)) || p->ip.nexthdr != IPPROTO_ICMPV6 ||
	    !p->icmp.type || p->icmp.type > ICMPV6_PARAMETER_PROBLEM || p->quoted.nexthdr != IPPROTO_TCP)
		return NEXT;
	if (!is_same(&p->quoted.saddr, &p->ip.daddr))
		return NEXT;
	__builtin_memcpy(e.segment.source, &p->quoted.daddr, 16);
	__builtin_memcpy(e.segment.destination, &p->quoted.saddr, 16);
	e.segment.source_port = p->tcp.destination;
	e.segment.destination_port = p->tcp.source;
	e.seq = bpf_ntohl(p->tcp.seq);
	e.hops = p->ip.hop_limit;
	e.too_big = p->icmp.type == ICMPV6_TOO_BIG;
	e.is_verified = e.too_big && is_message_right(skb, ETH_HLEN + sizeof(p->ip),
						      ETH_HLEN + sizeof(p->ip) + bpf_ntohs(p->ip.payload_len),
						      pseudo_sum_v6(&p->ip));
	e.mtu = bpf_ntohl(p->icmp.rest);
	e.length = sizeof(p->quoted) + bpf_ntohs(p->quoted.payload_len);
	e.refuses = p->icmp.type == ICMPV6_UNREACHABLE;
	e.is_fatal = p->icmp.type == ICMPV6_PARAMETER_PROBLEM ||
		     (e.refuses && (ICMPV6_FATAL_CODES >> (p->icmp.code & 15) & 1));
	way = judge_error(&e);
	if (way == ICMP_UP)
		return NEXT;
	if (way != ICMP_ON) {
		count(way == ICMP_HELD ? SEGMENT_HELD_BACK : SEGMENT_ICMP_REFUSED);
		return DROP;
	}
	/* Over the pseudo-header as well. */
	before = SUM_OF(&p->ip.saddr, ADDRESSES, SUM_OF(&p->quoted.saddr, ADDRESSES + sizeof(p->tcp), 0));
	__builtin_memcpy(&p->ip.saddr, e.segment.destination, 16);
	__builtin_memcpy(&p->ip.daddr, e.segment.source, 16);
	__builtin_memcpy(&p->quoted.saddr, e.segment.source, 16);
	__builtin_memcpy(&p->quoted.daddr, e.segment.destination, 16);
	p->tcp.source = e.segment.source_port;
	p->tcp.destination = e.segment.destination_port;
	p->tcp.seq = bpf_htonl(e.seq);
	now = SUM_OF(&p->ip.saddr, ADDRESSES, SUM_OF(&p->quoted.saddr, ADDRESSES + sizeof(p->tcp), 0));
	p->icmp.check = csum_fold(csum_change((__u16)~p->icmp.check, before, now));
	p->ip.hop_limit--;
	/* A priority is for this link. */
	if (bpf_skb_store_bytes(skb, ETH_HLEN, p, sizeof(*p), BPF_F_RECOMPUTE_CSUM) ||
	    (skb->vlan_present && bpf_skb_vlan_pop(skb))) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	count(SEGMENT_ICMP_PASSED);
	return bpf_redirect_neigh(e.out_device, NULL, 0, 0);
}

/* The same for either. */
static __always_inline int pass_error(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (is_in_vlan(skb) || skb->pkt_type != PACKET_HOST)
		return NEXT;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + ETH_HLEN;

		return (void *)(ip + 1) <= end && ip->protocol == IPPROTO_ICMP ? pass_error_v4(skb) : NEXT;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + ETH_HLEN;

		return (void *)(ip + 1) <= end && ip->nexthdr == IPPROTO_ICMPV6 ? pass_error_v6(skb) : NEXT;
	}
	return NEXT;
}

#endif
