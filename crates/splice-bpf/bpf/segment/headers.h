/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What can stand between the header of IP and that of TCP: options of IPv4, extension headers of IPv6. They say nothing
 * to the program but where TCP begins, and whether the stack takes such a packet for certain.
 */
#ifndef SEGMENT_HEADERS_H
#define SEGMENT_HEADERS_H

#include "segment/sum.h"

/* IPv6 headers that can stand before that of TCP (linux/in6.h has them for programs of user space only). */
#define IPPROTO_DESTINATION 60

/* One of each kind, of options for the destination two (RFC 8200, 4.1). */
#define MOST_HEADERS 5

/* Where headers of IPv6 stand among others. The stack may take others, but a later version of it need not. */
enum header_rank {
	RANK_NONE,
	RANK_HOPS,		/* the stack takes them nowhere else */
	RANK_ROUTERS,		/* options for each destination of a routing header */
	RANK_ROUTING,
	RANK_FRAGMENT,
	RANK_DESTINATION,	/* options for the last one */
};

/* Routing headers that settings decide about (linux/ipv6.h): of mobile IPv6, RPL and segment routing. */
#define FIRST_ROUTING_OF_SETTINGS 2
#define LAST_ROUTING_OF_SETTINGS 4

/* Options of IPv4 (linux/ip.h), each with its bit for having no other copy. */
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_ROUTE 7		/* records it */
#define OPTION_TIMES 68
#define OPTION_LOOSE_ROUTE 131
#define OPTION_CIPSO 134
#define OPTION_STRICT_ROUTE 137
#define OPTION_ALERT 148

/* Options of IPv6 (linux/in6.h). Of those that it does not know, the stack skips what begins with two zero bits. */
#define OPTION_PAD1 0
#define OPTION_ALERT_V6 5
#define OPTION_CALIPSO 7
#define OPTION_IOAM 49
#define OPTION_NOT_SKIPPED 0xc0

/* More of either the stack takes for a covert channel (ip6_parse_tlv), or may by its settings. */
#define MOST_PADDING 7
#define MOST_OPTIONS_V6 1

/* How far the headers of a packet are read. */
struct headers {
	__u32 at;		/* the next one, which is that of TCP in the end */
	__u32 end;		/* of the packet, as its first header tells it */
	__u8 next;		/* its kind */
	__u8 rank;		/* of the last one, enum header_rank */
	__u8 is_fragment;	/* the packet is the first fragment of several */
	__u8 is_doubtful;	/* the stack discards it, or its settings decide */
};

/* A walk over the options in one header, which is in the scratch. */
struct option_walk {
	__u32 at;
	__u32 end;
	__u8 padding;
	__u8 options;		/* of IPv6: how many there were, without padding */
	__u8 has_route;
	__u8 has_times;
	__u8 is_doubtful;
};

/* An option that routers write into, at the place that its third byte tells. @first: the first such place, from 1 on. */
static __always_inline bool has_place(const __u8 *option, __u32 size, __u32 first, __u32 entry)
{
	__u32 place = option[2];

	return place >= first && (place > size || place + entry - 1 <= size);
}

/* Goes past an option of IPv4, as ip_options_compile() judges it. Whether more may follow. */
__noinline int pass_option_v4(struct option_walk *walk)
{
	struct scratch *b = scratch();
	const __u8 *option;
	__u32 at, size;
	bool ok = true;

	if (!walk || !b)
		return false;
	at = walk->at;
	OPAQUE(at);
	/* Four bytes of each are read. */
	if (at >= walk->end || at > sizeof(b->old) - 4)
		return false;
	option = &b->old[at];
	if (option[0] == OPTION_END)
		return false;
	if (option[0] == OPTION_NOP) {
		walk->at = at + 1;
		return true;
	}
	size = option[1];
	walk->at = at + size;
	if (size < 2 || walk->at > walk->end) {
		walk->is_doubtful = 1;
		return false;
	}
	switch (option[0]) {
	case OPTION_ROUTE:
		ok = size >= 3 && !walk->has_route && has_place(option, size, 4, 4);
		walk->has_route = 1;
		break;
	case OPTION_TIMES:
		/* With an address for each, unless the flags are zero. Where none fits any more they are counted. */
		ok = size >= 4 && !walk->has_times && has_place(option, size, 5, option[3] & 15 ? 8 : 4) &&
		     (option[2] <= size || option[3] >> 4 < 15);
		walk->has_times = 1;
		break;
	case OPTION_ALERT:
		ok = size >= 4;
		break;
	case OPTION_LOOSE_ROUTE:
	case OPTION_STRICT_ROUTE:
	case OPTION_CIPSO:
		ok = false;
		break;
	}
	if (!ok)
		walk->is_doubtful = 1;
	return ok;
}

/* Goes past an option of IPv6, as ip6_parse_tlv() judges it. Whether more may follow. */
__noinline int pass_option_v6(struct option_walk *walk)
{
	struct scratch *b = scratch();
	__u32 at, size, i, bad = 0;
	const __u8 *option;

	if (!walk || !b)
		return false;
	at = walk->at;
	OPAQUE(at);
	/* As much of each is read as there may be padding. */
	if (at >= walk->end || at > sizeof(b->old) - MOST_PADDING)
		return false;
	option = &b->old[at];
	size = option[0] == OPTION_PAD1 ? 1 : option[1] + 2;
	walk->at = at + size;
	if (option[0] == OPTION_PAD1 || option[0] == OPTION_PAD) {
		size = size > MOST_PADDING ? MOST_PADDING + 1 : size;
		walk->padding += size;
		for (i = 2; i < MOST_PADDING && i < size; i++)
			bad |= option[i];
	} else {
		walk->padding = 0;
		walk->options++;
		bad = (option[0] & OPTION_NOT_SKIPPED) || option[0] == OPTION_ALERT_V6 ||
		      option[0] == OPTION_CALIPSO || option[0] == OPTION_IOAM;
	}
	if (!bad && walk->at <= walk->end && walk->padding <= MOST_PADDING && walk->options <= MOST_OPTIONS_V6)
		return true;
	walk->is_doubtful = 1;
	return false;
}

static long walk_option_v4(__u32 index, struct option_walk *walk)
{
	__u64 more = pass_option_v4(walk);

	(void)index;
	/* The verifier does not know that it is 0 or 1. */
	OPAQUE(more);
	return more ? 0 : 1;
}

static long walk_option_v6(__u32 index, struct option_walk *walk)
{
	__u64 more = pass_option_v6(walk);

	(void)index;
	/* The verifier does not know that it is 0 or 1. */
	OPAQUE(more);
	return more ? 0 : 1;
}

/* Whether a header of IPv4 with options is as the stack takes it. @bytes: of the header. */
__noinline int is_header_taken(struct __sk_buff *skb, __u32 bytes)
{
	struct option_walk walk = { .at = sizeof(struct iphdr), .end = bytes };
	struct scratch *b = scratch();
	__u64 length = bytes;
	__s64 sum;

	if (!b)
		return false;
	OPAQUE(length);
	if (!IS_WITHIN(length, sizeof(struct iphdr), 60))
		return false;
	__builtin_memset(b->old, 0, sizeof(b->old));
	if (bpf_skb_load_bytes(skb, ETH_HLEN, b->old, length))
		return false;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)b->old, sizeof(b->old), 0);
	if (sum < 0 || csum_fold(sum))
		return false;
	bpf_loop(OPTION_BYTES, walk_option_v4, &walk, 0);
	return !walk.is_doubtful;
}

/* Reads the header of IPv4. False for what cannot be a segment, or its first fragment. */
static __always_inline bool read_ipv4(struct __sk_buff *skb, struct segment *s, struct headers *h)
{
	__u32 total, length;
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP ||
	    (ip.frag_off & bpf_htons(0x1fff)))
		return false;
	length = ip.ihl * 4;
	total = bpf_ntohs(ip.tot_len);
	if (!total && skb->gso_size)
		total = skb->len - ETH_HLEN;
	h->at = ETH_HLEN + length;
	h->end = ETH_HLEN + total;
	h->next = IPPROTO_TCP;
	h->is_fragment = !!(ip.frag_off & bpf_htons(0x2000));
	/* parse() takes each that is whole and has no options, unless it makes no sense. */
	if (ip.version != 4 || length < sizeof(ip) || (length == sizeof(ip) && !h->is_fragment))
		return false;
	h->is_doubtful = !is_header_taken(skb, length);
	s->ipv6 = 0;
	s->between = length - sizeof(ip);
	s->tuple.source[2] = s->tuple.destination[2] = bpf_htonl(0xffff);
	s->tuple.source[3] = ip.saddr;
	s->tuple.destination[3] = ip.daddr;
	return true;
}

/* Goes past a header of IPv6. False for what cannot be a segment, or its first fragment. */
__noinline int pass_header(struct __sk_buff *skb, struct headers *h)
{
	struct option_walk walk = { .at = 2 };
	struct scratch *b = scratch();
	__u64 length;
	__u8 rank, kind;

	if (!h || !b || bpf_skb_load_bytes(skb, h->at, b->old, 8))
		return false;
	kind = h->next;
	if (kind == IPPROTO_HOPOPTS)
		rank = RANK_HOPS;
	else if (kind == IPPROTO_DESTINATION)
		rank = h->rank < RANK_ROUTING ? RANK_ROUTERS : RANK_DESTINATION;
	else if (kind == IPPROTO_ROUTING)
		rank = RANK_ROUTING;
	else if (kind == IPPROTO_FRAGMENT)
		rank = RANK_FRAGMENT;
	else
		return false;
	if (rank <= h->rank)
		h->is_doubtful = 1;
	h->rank = rank;
	h->next = b->old[0];
	length = (b->old[1] + 1) * 8;
	if (kind == IPPROTO_FRAGMENT) {
		__be16 fragment = *(__be16 *)&b->old[2];

		if (fragment & bpf_htons(0xfff8))
			return false;
		length = 8;
		if (fragment & bpf_htons(1)) {
			h->is_fragment = 1;
			/* None but the last is of any length (ip6_frag_queue). */
			if ((h->end - h->at) % 8)
				h->is_doubtful = 1;
		}
	} else if (kind == IPPROTO_ROUTING) {
		/* Its type, and how many stations are left (ipv6_rthdr_rcv). */
		if (b->old[3] || (b->old[2] >= FIRST_ROUTING_OF_SETTINGS && b->old[2] <= LAST_ROUTING_OF_SETTINGS))
			h->is_doubtful = 1;
	} else {
		OPAQUE(length);
		if (!IS_WITHIN(length, 8, sizeof(b->old)) || bpf_skb_load_bytes(skb, h->at, b->old, length)) {
			h->is_doubtful = 1;
		} else {
			walk.end = length;
			bpf_loop(sizeof(b->old), walk_option_v6, &walk, 0);
			h->is_doubtful |= walk.is_doubtful;
		}
	}
	h->at += length;
	return true;
}

/* The same as read_ipv4() for IPv6, to the header of TCP. */
static __always_inline bool read_ipv6(struct __sk_buff *skb, struct segment *s, struct headers *h)
{
	__u32 total, i;
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 6 || ip.nexthdr == IPPROTO_TCP)
		return false;
	total = bpf_ntohs(ip.payload_len);
	if (!total && skb->gso_size)
		total = skb->len - ETH_HLEN - sizeof(ip);
	h->at = ETH_HLEN + sizeof(ip);
	h->end = h->at + total;
	h->next = ip.nexthdr;
	for (i = 0; i < MOST_HEADERS && h->next != IPPROTO_TCP; i++)
		if (!pass_header(skb, h))
			return false;
	if (h->next != IPPROTO_TCP)
		return false;
	s->ipv6 = 1;
	s->between = h->at - ETH_HLEN - sizeof(ip);
	__builtin_memcpy(s->tuple.source, &ip.saddr, 16);
	__builtin_memcpy(s->tuple.destination, &ip.daddr, 16);
	return true;
}

#endif
