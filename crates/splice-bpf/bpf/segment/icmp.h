/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about segments that were translated (RFC 792, RFC 4443). Routers send them to the relay, which has no
 * socket that has sent these. They go on to the peer that has sent the segment, and quote it as that peer has sent it.
 * Their source becomes the relay's address that this peer talks to: a path need not let the router's address through,
 * and the peer has nothing to do with the server's.
 *
 * What is too long for the relay's own device gets such an error from here: bpf_redirect_neigh sends without a look at
 * the MTU.
 */
#ifndef SEGMENT_ICMP_H
#define SEGMENT_ICMP_H

#include "lib/checksum.h"
#include "segment/forward.h"

#define ICMP_UNREACHABLE 3
#define ICMP_PROTOCOL_CODE 2
#define ICMP_PORT_CODE 3
#define ICMP_TOO_BIG_CODE 4
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMPV6_UNREACHABLE 1
#define ICMPV6_PORT_CODE 4
#define ICMPV6_TOO_BIG 2
#define ICMPV6_PARAMETER_PROBLEM 4

/* No sender goes below this path MTU (`ip_rt_min_pmtu`), so shorter segments need not be compared with one. */
#define LEAST_PATH_MTU 552

/* The TTL of what this host sends (IPDEFTTL) */
#define OWN_HOPS 64

/*
 * A peer gets so many errors at once, and one more in each interval, so that nobody floods it by way of the relay. The
 * kernel bounds errors in the same way (`icmp_global_allow`, `inet_peer_xrlim_allow`), but not those of path MTUs: here
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

/* What an error that is made here quotes. */
struct icmp_made_tcp {
	struct icmp_quote quote;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__sum16 check;
	__be16 balance;
};

struct icmp_made_v4 {
	struct iphdr ip;
	struct icmp_header icmp;
	struct iphdr quoted;
	struct icmp_made_tcp tcp;
};

struct icmp_made_v6 {
	struct ipv6hdr ip;
	struct icmp_header icmp;
	struct ipv6hdr quoted;
	struct icmp_made_tcp tcp;
};

_Static_assert(sizeof(struct icmp_made_v6) <= sizeof(struct scratch), "the stack has no room for it");

/* The sum over so many bytes, a constant, added to another one. */
#define SUM_OF(from, bytes, sum) bpf_csum_diff(NULL, 0, (__be32 *)(from), bytes, sum)

/* An error, and what becomes of it. */
struct icmp_error {
	/* as the answer to the quoted segment would carry it; then the segment, as its sender has sent it */
	struct segment_tuple segment;
	__u32 seq;		/* of the quoted segment; then as its sender has sent it */
	__u32 out_device;
	__u32 refuses;		/* the server cannot be reached */
	__u32 is_hard;		/* RFC 1122, 4.2.3.9: ends a connection */
};

enum icmp_way {
	ICMP_UP,	/* of no segment that was translated */
	ICMP_ON,	/* to the sender of the segment */
	ICMP_NOWHERE,	/* of no segment that is on its way: a forgery, or late. Or one too many, or too hard */
};

/*
 * Whether a segment of a pair went by the sockets, in OVERLAP.
 * @slot, @from: index of its flow, and the side of its sender. @seq: its number, as its sender has sent it.
 */
static __always_inline bool is_before_border(__u32 slot, __u32 from, __u32 seq)
{
	struct segment_change_over *change_over = change_over_of(slot);

	return !change_over || after(change_over->side[from & 1].border, seq);
}

/*
 * Whether a peer may get an error more; then it counts. Two CPUs may count one instead of two.
 * @slot, @to: index of its flow, and its side.
 */
static __always_inline bool may_tell(__u32 slot, __u32 to)
{
	const __u32 most = ERRORS_AT_ONCE * ERROR_INTERVAL_TICKS;
	struct segment_errors *errors = bpf_map_lookup_elem(&segment_errors, &slot);
	__u32 now = ticks_of(bpf_ktime_get_ns()), ahead;
	__u32 *until;

	if (!errors)
		return false;
	until = &errors->until[to & 1];
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
	__u32 state, oldest;
	bool is_known;

	if (!e)
		return ICMP_UP;
	if (!find(&e->segment, &at))
		return ICMP_UP;
	flow = bpf_map_lookup_elem(&segment_flows, &at.flow);
	if (!flow || flow->serial != at.serial)
		return ICMP_UP;
	sender = &flow->side[!(at.side & 1)];
	other = &flow->side[at.side & 1];
	state = load_acquire(&flow->state);
	e->seq -= sender->seq_delta;
	is_known = marks(sender) & SEGMENT_NOTED;
	if (!is_forwarded(flow)) {
		/* The relay's own socket has sent it, or may have. */
		if (!is_past(sender) ||
		    (state == SEGMENT_OVERLAP && is_before_border(at.flow, !(at.side & 1), e->seq)))
			return ICMP_UP;
		if (state == SEGMENT_OVERLAP)
			state = SEGMENT_SPLICED;
		is_known = true;
	}
	/* Not one that is open (RFC 5927, 5.2). The relay's socket would not take it for an end; the peer might. */
	if (state != SEGMENT_OPENING && e->is_hard)
		return ICMP_NOWHERE;
	/* A SYN counts as acknowledged from the beginning. */
	oldest = (__u32)READ_ONCE(sender->acked) - (state == SEGMENT_OPENING);
	if ((state != SEGMENT_OPENING && state != SEGMENT_SPLICED) || !is_known ||
	    after(oldest, e->seq) || after(e->seq, high_seq(sender)) || !may_tell(at.flow, !(at.side & 1)))
		return ICMP_NOWHERE;
	/* The client hears of it. Should it try again nevertheless, its SYN opens the connection anew. */
	if (state == SEGMENT_OPENING && e->refuses && (at.side & 1)) {
		add_marks(other, SEGMENT_RST);
		prolong(flow, 0);
		leave_opening(flow, SEGMENT_TIME_WAIT);
	}
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
	e.refuses = p->icmp.type == ICMP_UNREACHABLE && p->icmp.code != ICMP_TOO_BIG_CODE;
	e.is_hard = e.refuses && (p->icmp.code == ICMP_PROTOCOL_CODE || p->icmp.code == ICMP_PORT_CODE);
	way = judge_error(&e);
	if (way == ICMP_UP)
		return NEXT;
	if (way == ICMP_NOWHERE || p->ip.ttl <= 1) {
		count(SEGMENT_ICMP_REFUSED);
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
	if (bpf_skb_store_bytes(skb, ETH_HLEN, p, sizeof(*p), BPF_F_RECOMPUTE_CSUM)) {
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
	e.refuses = p->icmp.type == ICMPV6_UNREACHABLE;
	e.is_hard = e.refuses && p->icmp.code == ICMPV6_PORT_CODE;
	way = judge_error(&e);
	if (way == ICMP_UP)
		return NEXT;
	if (way == ICMP_NOWHERE || p->ip.hop_limit <= 1) {
		count(SEGMENT_ICMP_REFUSED);
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
	if (bpf_skb_store_bytes(skb, ETH_HLEN, p, sizeof(*p), BPF_F_RECOMPUTE_CSUM)) {
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

	if (skb->vlan_present || skb->pkt_type != PACKET_HOST)
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

/*
 * Where the segment's checksum is still to be computed (CHECKSUM_PARTIAL), the device that the error leaves on may
 * write it into the quoted header. So the quoted TCP header has the sum 0, before that and after it.
 */
static __always_inline void quote(struct icmp_made_tcp *tcp)
{
	tcp->offset = sizeof(*tcp) / 4 << 4;
	tcp->flags = ACK;
	tcp->balance = csum_fold(SUM_OF(tcp, sizeof(*tcp), 0));
}

/* Makes an error about a segment. @mtu: what would not be too long. Its bytes; 0 if it fails. */
static __always_inline __u32 make_error_v4(struct __sk_buff *skb, struct icmp_made_v4 *p, __u32 mtu)
{
	const __u32 quoted = sizeof(p->icmp) + sizeof(p->quoted) + sizeof(p->tcp);

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &p->quoted, sizeof(p->quoted) + sizeof(p->tcp.quote)))
		return 0;
	quote(&p->tcp);
	p->icmp.type = ICMP_UNREACHABLE;
	p->icmp.code = ICMP_TOO_BIG_CODE;
	p->icmp.rest = bpf_htonl(mtu);
	p->icmp.check = csum_fold(SUM_OF(&p->icmp, quoted, 0));
	p->ip.version = 4;
	p->ip.ihl = sizeof(p->ip) / 4;
	p->ip.tot_len = bpf_htons(sizeof(*p));
	p->ip.ttl = OWN_HOPS;
	p->ip.protocol = IPPROTO_ICMP;
	p->ip.saddr = p->quoted.daddr;
	p->ip.daddr = p->quoted.saddr;
	p->ip.check = csum_fold(SUM_OF(&p->ip, sizeof(p->ip), 0));
	return sizeof(*p);
}

/* The same for IPv6. */
static __always_inline __u32 make_error_v6(struct __sk_buff *skb, struct icmp_made_v6 *p, __u32 mtu)
{
	const __u32 quoted = sizeof(p->icmp) + sizeof(p->quoted) + sizeof(p->tcp);
	__u32 sum;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &p->quoted, sizeof(p->quoted) + sizeof(p->tcp.quote)))
		return 0;
	quote(&p->tcp);
	p->ip.version = 6;
	p->ip.payload_len = bpf_htons(quoted);
	p->ip.nexthdr = IPPROTO_ICMPV6;
	p->ip.hop_limit = OWN_HOPS;
	p->ip.saddr = p->quoted.daddr;
	p->ip.daddr = p->quoted.saddr;
	p->icmp.type = ICMPV6_TOO_BIG;
	p->icmp.rest = bpf_htonl(mtu);
	sum = SUM_OF(&p->ip.saddr, ADDRESSES, 0);
	sum = csum_change(csum_change(sum, 0, bpf_htonl(quoted)), 0, bpf_htonl(IPPROTO_ICMPV6));
	p->icmp.check = csum_fold(SUM_OF(&p->icmp, quoted, sum));
	return sizeof(*p);
}

/* Whether a segment may be too long for a device: only then refuse_size() has to be asked. */
static __always_inline bool is_long(const struct __sk_buff *skb)
{
	return skb->len > ETH_HLEN + LEAST_PATH_MTU;
}

/*
 * Sends a segment that is too long for a device back, as the error that quotes it.
 * @s: the segment, not written yet. @slot, @from: index of its flow, and the side of its sender. @device: the device.
 * The verdict; NEXT if it is not too long.
 */
__noinline int refuse_size(struct __sk_buff *skb, struct segment *s, __u32 slot, __u32 from, __u32 device)
{
	struct scratch *b = scratch();
	__u32 headers, made, mtu = 0;
	bool ok;

	if (bpf_check_mtu(skb, device, &mtu, 0, BPF_MTU_CHK_SEGS) <= 0)
		return NEXT;
	/* One that has an option in between is dropped only: its sender repeats it in shorter ones. */
	if (!s || !b || s->jumbo || !may_tell(slot, from))
		return DROP;
	__builtin_memset(b, 0, sizeof(*b));
	headers = s->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	made = s->ipv6 ? make_error_v6(skb, (void *)b, mtu) : make_error_v4(skb, (void *)b, mtu);
	ok = made && !bpf_skb_change_tail(skb, ETH_HLEN + headers + sizeof(struct icmp_made_tcp), 0) &&
	     !bpf_skb_adjust_room(skb, headers + sizeof(struct icmp_header), BPF_ADJ_ROOM_MAC, 0);
	if (ok && s->ipv6)
		ok = !bpf_skb_store_bytes(skb, ETH_HLEN, b, sizeof(struct icmp_made_v6), BPF_F_RECOMPUTE_CSUM);
	else if (ok)
		ok = !bpf_skb_store_bytes(skb, ETH_HLEN, b, sizeof(struct icmp_made_v4), BPF_F_RECOMPUTE_CSUM);
	if (!ok) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	count(SEGMENT_TOO_BIG);
	return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
}

#endif
