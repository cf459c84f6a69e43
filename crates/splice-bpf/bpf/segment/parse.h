/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reading a segment out of a packet. */
#ifndef SEGMENT_PARSE_H
#define SEGMENT_PARSE_H

#include "lib/tcp.h"
#include "segment/maps.h"

/* ECN in the second byte of an IPv4 header, and the same in that of an IPv6 header */
#define CE 0x03
#define CE_V6 0x30

/* The traffic class in the first word of an IPv6 header, and its DSCP, which is all but ECN (RFC 2474, 8200). */
#define CLASS_V6 0x0ff00000
#define DSCP_V6 0x0fc00000

/* A segment, numbers in host order. */
struct segment {
	struct segment_tuple tuple;
	__u32 seq;
	__u32 ack;
	__u32 tsval;
	__u32 tsecr;
	__u32 window;
	__u32 payload;
	__u32 sack_delta;
	__u32 sack_floor;	/* where sack_clip is set: in the receiver's sequence space */
	__u32 out_device;
	__u16 mss;
	__u16 mss_most;		/* that is announced to the receiver; 0: what the sender says */
	__u16 between;		/* bytes between the header of IP and that of TCP: options, extension headers */
	__be16 check;		/* the checksum in the header */
	__u8 hops;		/* TTL */
	__u8 flags;
	__u8 ipv6;
	__u8 jumbo;		/* a super-packet of more than 64 KiB over IPv6: an option tells its length */
	__u8 header;		/* bytes of TCP header */
	__u8 has_timestamp;
	__u8 plain_timestamp;	/* NOP NOP TS and nothing else */
	__u8 timestamp_at;		/* offsets into the options */
	__u8 mss_at;
	__u8 scale;		/* of the window; counts where has_scale is set */
	__u8 has_scale;
	__u8 has_other;		/* an option that is none of these */
	__u8 is_signed;		/* TCP-MD5, TCP-AO */
	__u8 sack_at;
	__u8 sacks;
	__u8 sack_clip;
	__u8 strip_sack;
	__u8 clear_ecn;
	__u8 congested;		/* marked on its way (ECN) */
	__u8 local;
	__u8 spends_hop;
	__u8 is_verified;	/* its checksum is right */
	__u8 is_acceptable;	/* to its receiver (RFC 9293, 3.10.7.4) */
	__u32 copy;		/* what the relay's own socket has to get of it: COPY_ACK, COPY_RST */
};

/* The hop-by-hop header of such a super-packet (struct hop_jumbo_hdr in net/ipv6.h, BIG TCP). */
struct jumbo_option {
	__u8 next;
	__u8 length;		/* in units of eight bytes, without the first */
	__u8 type;
	__u8 option_length;
	__be32 payload;
};

#define OPTION_JUMBO 0xc2
#define OPTION_JUMBO_BYTES 4
#define LONGEST_PAYLOAD 0xffff	/* that the header of IPv6 can tell */
#define OPTION_PAD 1

static __always_inline __u32 tcp_offset(const struct segment *s)
{
	return ETH_HLEN + (s->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + s->between;
}

/* A walk over the options. */
struct walk {
	struct scratch *buffer;
	__u32 at;
	__u32 length;
	__u32 tsval;
	__u32 tsecr;
	__u16 mss;
	__u8 timestamp_at;
	__u8 sack_at;
	__u8 mss_at;
	__u8 has_timestamp;
	__u8 sacks;
	__u8 scale;
	__u8 has_scale;
	__u8 has_other;
	__u8 is_signed;
};

static long walk_option(__u32 index, struct walk *walk)
{
	struct scratch *b = walk->buffer;
	__u32 at = walk->at;
	__u8 kind, size;

	(void)index;
	OPAQUE(at);
	if (at >= walk->length || at >= OPTION_BYTES)
		return 1;
	kind = b->old[at];
	if (kind == 0)
		return 1;
	if (kind == 1) {
		walk->at = at + 1;
		return 0;
	}
	size = b->old[at + 1];
	walk->at = at + size;
	/* A receiver reads no further, but takes the segment (tcp_parse_options). */
	if (size < 2 || walk->at > walk->length) {
		walk->has_other = 1;
		return 1;
	}
	if (kind == 8 && size == 10) {
		walk->has_timestamp = 1;
		walk->timestamp_at = at;
		walk->tsval = at_be32(&b->old[at + 2]);
		walk->tsecr = at_be32(&b->old[at + 6]);
	} else if (kind == 2 && size == 4) {
		walk->mss = b->old[at + 2] << 8 | b->old[at + 3];
		walk->mss_at = at;
	} else if (kind == 3 && size == 3) {
		walk->scale = b->old[at + 2];
		walk->has_scale = 1;
	} else if (kind == 5 && size >= 10 && size <= 34 && (size & 7) == 2) {
		walk->sack_at = at;
		walk->sacks = size >> 3;
	} else if (kind != 4) {
		walk->has_other = 1;
		/* RFC 2385, RFC 5925 */
		if (kind == 19 || kind == 29)
			walk->is_signed = 1;
	}
	return 0;
}

/*
 * Finds timestamps, SACK blocks, the MSS and the window scale among options that are not just NOP NOP TS, as far as they
 * make sense. False when they cannot be read.
 */
__noinline int find_options(struct __sk_buff *skb, struct segment *s)
{
	struct walk walk = { .buffer = scratch() };
	__u32 length;

	if (!s || !walk.buffer)
		return 0;
	/* Compared before the subtraction: of a difference that may be negative 7.2's verifier learns no lower bound. */
	length = s->header;
	OPAQUE(length);
	if (length < sizeof(struct tcphdr) + 4)
		return 1;
	OPAQUE(length);
	length -= sizeof(struct tcphdr);
	OPAQUE(length);
	if (length > OPTION_BYTES)
		return 0;
	if (bpf_skb_load_bytes(skb, tcp_offset(s) + sizeof(struct tcphdr), walk.buffer->old, length))
		return 0;
	walk.length = length;
	bpf_loop(OPTION_BYTES, walk_option, &walk, 0);
	s->has_timestamp = walk.has_timestamp;
	s->timestamp_at = walk.timestamp_at;
	s->tsval = walk.tsval;
	s->tsecr = walk.tsecr;
	s->sack_at = walk.sack_at;
	s->sacks = walk.sacks;
	s->mss = walk.mss;
	s->mss_at = walk.mss_at;
	s->scale = walk.scale;
	s->has_scale = walk.has_scale;
	s->has_other = walk.has_other;
	s->is_signed = walk.is_signed;
	return 1;
}

#define VLAN_ID 0x0fff		/* if_vlan.h; the rest of the tag is a priority */

/* Whether the frame belongs to a VLAN. A tag without one only has a priority (IEEE 802.1Q, 9.6). */
static __always_inline bool is_in_vlan(const struct __sk_buff *skb)
{
	return skb->vlan_present && (skb->vlan_tci & VLAN_ID);
}

/*
 * Reads the headers into `s`, which holds zeroes. False for what is not ours to understand: it goes on
 * untouched. A global function: the verifier need not follow its callers for each kind of packet.
 */
__noinline int parse(struct __sk_buff *skb, struct segment *s)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *tcp;
	__u32 total;

	if (!s || is_in_vlan(skb))
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + ETH_HLEN;

		/* Local headers may lie outside the linear part after GRO. */
		if ((void *)ip + sizeof(*ip) + sizeof(*tcp) > end) {
			if (bpf_skb_pull_data(skb, ETH_HLEN + sizeof(*ip) + sizeof(*tcp)))
				return false;
			data = (void *)(long)skb->data;
			end = (void *)(long)skb->data_end;
			ip = data + ETH_HLEN;
			if ((void *)ip + sizeof(*ip) + sizeof(*tcp) > end)
				return false;
		}
		/* With options the header length differs; fragments have no ports. */
		if (ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_TCP ||
		    (ip->frag_off & bpf_htons(0x3fff)))
			return false;
		s->tuple.source[2] = s->tuple.destination[2] = bpf_htonl(0xffff);
		s->hops = ip->ttl;
		s->congested = (ip->tos & CE) == CE;
		s->tuple.source[3] = ip->saddr;
		s->tuple.destination[3] = ip->daddr;
		tcp = (void *)(ip + 1);
		total = bpf_ntohs(ip->tot_len);
		/* A super-packet of more than 64 KiB says 0 (BIG TCP). */
		if (!total && skb->gso_size)
			total = skb->len - ETH_HLEN;
		if (total > skb->len - ETH_HLEN || total < sizeof(*ip))
			return false;
		total -= sizeof(*ip);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + ETH_HLEN;

		if ((void *)ip + sizeof(*ip) + sizeof(*tcp) > end) {
			if (bpf_skb_pull_data(skb, ETH_HLEN + sizeof(*ip) + sizeof(*tcp)))
				return false;
			data = (void *)(long)skb->data;
			end = (void *)(long)skb->data_end;
			ip = data + ETH_HLEN;
			if ((void *)ip + sizeof(*ip) + sizeof(*tcp) > end)
				return false;
		}
		if (ip->version != 6)
			return false;
		s->ipv6 = 1;
		tcp = (void *)(ip + 1);
		total = bpf_ntohs(ip->payload_len);
		if (ip->nexthdr == IPPROTO_HOPOPTS && !total) {
			struct jumbo_option *option = (void *)(ip + 1);

			if (bpf_skb_pull_data(skb, ETH_HLEN + sizeof(*ip) + sizeof(*option) +
						   sizeof(*tcp)))
				return false;
			data = (void *)(long)skb->data;
			end = (void *)(long)skb->data_end;
			ip = data + ETH_HLEN;
			option = (void *)(ip + 1);
			tcp = (void *)(option + 1);
			if ((void *)(tcp + 1) > end || option->next != IPPROTO_TCP || option->length ||
			    option->type != OPTION_JUMBO || option->option_length != OPTION_JUMBO_BYTES)
				return false;
			s->jumbo = 1;
			s->between = sizeof(*option);
			total = bpf_ntohl(option->payload);
			if (total > skb->len - ETH_HLEN - sizeof(*ip) || total <= LONGEST_PAYLOAD)
				return false;
			total -= sizeof(*option);
		} else {
			if (!total && skb->gso_size)
				total = skb->len - ETH_HLEN - sizeof(*ip);
			if (ip->nexthdr != IPPROTO_TCP ||
			    total > skb->len - ETH_HLEN - sizeof(*ip))
				return false;
		}
		s->hops = ip->hop_limit;
		s->congested = (((__u8 *)ip)[1] & CE_V6) == CE_V6;
		__builtin_memcpy(s->tuple.source, &ip->saddr, 16);
		__builtin_memcpy(s->tuple.destination, &ip->daddr, 16);
	} else {
		return false;
	}
	s->tuple.source_port = tcp->source;
	s->tuple.destination_port = tcp->dest;
	s->header = tcp->doff * 4;
	if (s->header < sizeof(*tcp) || s->header > total)
		return false;
	s->payload = total - s->header;
	s->seq = bpf_ntohl(tcp->seq);
	s->ack = bpf_ntohl(tcp->ack_seq);
	s->window = bpf_ntohs(tcp->window);
	s->check = tcp->check;
	s->flags = ((__u8 *)tcp)[13];
	if (s->header == sizeof(*tcp) + 12 && (void *)(tcp + 1) + 12 <= end) {
		__be32 *option = (void *)(tcp + 1);

		if (option[0] == bpf_htonl(0x0101080a)) {
			s->has_timestamp = s->plain_timestamp = 1;
			s->timestamp_at = 2;
			s->tsval = bpf_ntohl(option[1]);
			s->tsecr = bpf_ntohl(option[2]);
		}
	}
	return true;
}

static __always_inline __u32 end_of(const struct segment *s)
{
	return s->seq + s->payload + !!(s->flags & FIN) + !!(s->flags & SYN);
}

#endif
