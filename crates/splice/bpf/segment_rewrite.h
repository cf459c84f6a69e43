/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Writing a segment back into its packet, checksums by difference. */
#ifndef SEGMENT_REWRITE_H
#define SEGMENT_REWRITE_H

#include "segment_parse.h"

/* One's complement sums, as bpf_csum_diff gives them. */
static __always_inline __u32 csum_change(__u32 sum, __u32 from, __u32 to)
{
	__u64 wide = (__u64)sum + (__u32)~from + to;

	wide = (wide & 0xffffffff) + (wide >> 32);
	return (wide & 0xffffffff) + (wide >> 32);
}

static __always_inline __u16 csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Writes timestamps and SACK blocks; the change goes into `sum`. False when it fails. */
static __noinline int rewrite_options(struct __sk_buff *skb, struct segment *s, __u32 *sum)
{
	struct scratch *b = scratch();
	__u32 length, i, at, stamp;
	__s64 change;

	if (!s || !b || !sum)
		return 0;
	length = s->header - sizeof(struct tcphdr);
	OPAQUE(length);
	if (length == 0)
		return 1;
	if (length > OPTION_BYTES)
		return 0;
	__builtin_memset(b, 0, sizeof(*b));
	at = tcp_offset(s) + sizeof(struct tcphdr);
	if (bpf_skb_load_bytes(skb, at, b->old, length))
		return 0;
	__builtin_memcpy(b->new, b->old, OPTION_BYTES);
	stamp = s->stamp_at;
	OPAQUE(stamp);
	if (s->has_stamp && stamp <= OPTION_BYTES - 10) {
		put_be32(&b->new[stamp + 2], s->tsval);
		put_be32(&b->new[stamp + 6], s->tsecr);
	}
	for (i = 0; i < 4; i++) {
		__u32 block = s->sack_at + 2 + 8 * i, from, to;

		OPAQUE(block);
		if (i >= s->sacks || block < 2 || block > OPTION_BYTES - 8)
			break;
		if (s->strip_sack) {
			/* kind and size of the first, and so all of it, become NOP */
			if (i == 0) {
				b->new[block - 2] = 1;
				b->new[block - 1] = 1;
			}
			__builtin_memset(&b->new[block], 1, 8);
			continue;
		}
		from = at_be32(&b->new[block]) + s->sack_delta;
		to = at_be32(&b->new[block + 4]) + s->sack_delta;
		/* What the relay had acknowledged would look like a duplicate's report. */
		if (s->sack_clip && after(s->sack_floor, from))
			from = s->sack_floor;
		if (s->sack_clip && after(s->sack_floor, to))
			to = s->sack_floor;
		put_be32(&b->new[block], from);
		put_be32(&b->new[block + 4], to);
	}
	change = bpf_csum_diff((__be32 *)b->old, OPTION_BYTES, (__be32 *)b->new, OPTION_BYTES, *sum);
	if (change < 0 || bpf_skb_store_bytes(skb, at, b->new, length, 0))
		return 0;
	*sum = change;
	return 1;
}

/* Writes the translated segment into the packet. False when it fails. */
static __always_inline bool rewrite(struct __sk_buff *skb, struct segment *s, bool ipv6)
{
	const __u32 at = ETH_HLEN + (ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	void *data, *end;
	struct tcphdr *tcp;
	__u32 sum = 0, pseudo = 0, word;
	__be32 value;
	/* An urgent byte stays in its place, as it does when the relay's sockets pass it on. */
	__u8 flags = s->flags & ~URG;

	if (!s->plain_stamp && !rewrite_options(skb, s, &sum))
		return false;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	tcp = data + at;
	if ((void *)(tcp + 1) > end)
		return false;
	if (s->plain_stamp) {
		__be32 *option = (void *)(tcp + 1);

		if ((void *)(option + 3) > end)
			return false;
		value = bpf_htonl(s->tsval);
		sum = csum_change(sum, option[1], value);
		option[1] = value;
		value = bpf_htonl(s->tsecr);
		sum = csum_change(sum, option[2], value);
		option[2] = value;
	}
	if (s->clear_ecn)
		flags &= ~(ECE | CWR);
	word = *(__u32 *)tcp;
	tcp->source = s->tuple.source_port;
	tcp->dest = s->tuple.destination_port;
	sum = csum_change(sum, word, *(__u32 *)tcp);
	value = bpf_htonl(s->seq);
	sum = csum_change(sum, tcp->seq, value);
	tcp->seq = value;
	value = bpf_htonl(s->ack);
	sum = csum_change(sum, tcp->ack_seq, value);
	tcp->ack_seq = value;
	word = ((__u32 *)tcp)[3];
	((__u8 *)tcp)[13] = flags;
	tcp->window = bpf_htons(s->window);
	sum = csum_change(sum, word, ((__u32 *)tcp)[3]);

	if (ipv6) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		__u32 *source = (__u32 *)&ip->saddr, *destination = (__u32 *)&ip->daddr;
		int i;

#pragma unroll
		for (i = 0; i < 4; i++) {
			pseudo = csum_change(pseudo, source[i], s->tuple.source[i]);
			pseudo = csum_change(pseudo, destination[i], s->tuple.destination[i]);
			source[i] = s->tuple.source[i];
			destination[i] = s->tuple.destination[i];
		}
		/* The second byte ends with the two ECN bits, shifted by four. */
		if (s->clear_ecn)
			((__u8 *)ip)[1] &= ~0x30;
		if (s->spends_hop)
			ip->hop_limit--;
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		__u32 header = 0;

		pseudo = csum_change(pseudo, ip->saddr, s->tuple.source[3]);
		pseudo = csum_change(pseudo, ip->daddr, s->tuple.destination[3]);
		header = pseudo;
		ip->saddr = s->tuple.source[3];
		ip->daddr = s->tuple.destination[3];
		if (s->clear_ecn) {
			word = *(__u32 *)ip;
			ip->tos &= ~3;
			header = csum_change(header, word, *(__u32 *)ip);
		}
		if (s->spends_hop) {
			word = ((__u32 *)ip)[2] & bpf_htonl(0xffff0000);
			ip->ttl--;
			header = csum_change(header, word,
					     ((__u32 *)ip)[2] & bpf_htonl(0xffff0000));
		}
		ip->check = csum_fold(csum_change(header, 0, (__u16)~ip->check));
	}
	if (bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), 0, sum, 0))
		return false;
	/*
	 * Apart, because a packet whose checksum is still to be computed carries the sum of the
	 * addresses alone.
	 */
	return !bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), 0, pseudo,
				    BPF_F_PSEUDO_HDR | (ipv6 ? BPF_F_IPV6 : 0));
}

/*
 * Makes of a copy what the relay's own socket accepts: an acknowledgement without payload, or a
 * reset, at the place where the socket stands still. The peer has moved on, so the number that
 * it sent lies outside of the socket's window.
 */
static __always_inline int give_to_socket(struct __sk_buff *skb, struct segment *s,
					  const struct segment_side *side,
					  const struct segment_side *other, bool reset)
{
	const __u32 at = tcp_offset(s), own_final = other->cut + other->seq_delta;
	struct scratch *b = scratch();
	void *data, *end;
	struct tcphdr *tcp;
	__u32 header = s->header, sum = 0, i;
	__s64 change;

	skb->mark = 0;
	OPAQUE(header);
	if (!b || header < sizeof(*tcp) || header > 60)
		return DROP;
	if (s->payload && bpf_skb_change_tail(skb, at + header, 0)) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	if (bpf_skb_pull_data(skb, at + header))
		return DROP;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (s->ipv6) {
		struct ipv6hdr *ip = data + ETH_HLEN;

		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end)
			return DROP;
		ip->payload_len = bpf_htons(header);
		for (i = 0; i < 4; i++) {
			sum = csum_change(sum, 0, s->tuple.source[i]);
			sum = csum_change(sum, 0, s->tuple.destination[i]);
		}
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		__u32 word;

		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end)
			return DROP;
		word = *(__u32 *)ip;
		ip->tot_len = bpf_htons(sizeof(*ip) + header);
		ip->check = csum_fold(csum_change(csum_change(0, word, *(__u32 *)ip), 0,
						  (__u16)~ip->check));
		sum = csum_change(sum, 0, s->tuple.source[3]);
		sum = csum_change(sum, 0, s->tuple.destination[3]);
	}
	tcp->seq = bpf_htonl(reset ? side->cut : side->own_seq);
	if (after(s->ack, own_final))
		tcp->ack_seq = bpf_htonl(own_final);
	((__u8 *)tcp)[13] = reset ? RST | ACK : s->flags & ~(FIN | PSH | URG);
	tcp->check = 0;
	sum = csum_change(sum, 0, bpf_htonl(IPPROTO_TCP));
	sum = csum_change(sum, 0, bpf_htonl(header));
	__builtin_memset(b->old, 0, sizeof(b->old));
	if (bpf_skb_load_bytes(skb, at, b->old, header))
		return DROP;
	change = bpf_csum_diff(NULL, 0, (__be32 *)b->old, sizeof(b->old), sum);
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	tcp = data + at;
	if (change < 0 || (void *)(tcp + 1) > end)
		return DROP;
	tcp->check = csum_fold(change);
	count(SEGMENT_OWN_COPIES);
	return NEXT;
}

#endif
