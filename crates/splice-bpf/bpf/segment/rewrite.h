/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Writing a segment back into its packet, checksums by difference. */
#ifndef SEGMENT_REWRITE_H
#define SEGMENT_REWRITE_H

#include "lib/checksum.h"
#include "segment/overlap.h"
#include "segment/sum.h"

struct sack_move {
	__u32 at;	/* of the option, in the scratch's new bytes */
	__u32 blocks;
	__u32 delta;
	__u32 low;
	__u32 high;
};

/*
 * Moves SACK blocks, and clips them to [low, high]. A sender discards a block that it has not sent
 * all of (tcp_is_sackblock_valid), and with it what it says of the rest, so what is left of none
 * goes, and the others close up.
 */
__noinline int move_sacks(struct sack_move *m)
{
	struct scratch *b = scratch();
	__u32 i, kept = 0, slot, from, to;
	__u64 at;

	if (!m || !b)
		return 0;
	at = m->at;
	for (i = 0; i < 4 && i < m->blocks; i++) {
		slot = at + 2 + 8 * i;
		OPAQUE(slot);
		if (slot > sizeof(b->new) - 8)
			return 0;
		from = at_be32(&b->new[slot]) + m->delta;
		to = at_be32(&b->new[slot + 4]) + m->delta;
		if (after(m->low, from))
			from = m->low;
		if (after(to, m->high))
			to = m->high;
		__builtin_memset(&b->new[slot], 1, 8);
		if (!after(to, from))
			continue;
		slot = at + 2 + 8 * kept;
		OPAQUE(slot);
		if (slot > sizeof(b->new) - 8)
			return 0;
		put_be32(&b->new[slot], from);
		put_be32(&b->new[slot + 4], to);
		kept++;
	}
	OPAQUE(at);
	if (at > sizeof(b->new) - 2)
		return 0;
	if (kept) {
		b->new[at + 1] = 2 + 8 * kept;
	} else {
		b->new[at] = 1;
		b->new[at + 1] = 1;
	}
	return 1;
}

/* Writes timestamps, SACK blocks and the MSS; the change goes into `sum`. False when it fails. */
__noinline int rewrite_options(struct __sk_buff *skb, struct segment *s, __u32 *sum)
{
	struct scratch *b = scratch();
	__u32 length, at, timestamp, at_mss;
	__s64 change;

	if (!s || !b || !sum)
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
	__builtin_memset(b, 0, sizeof(*b));
	at = tcp_offset(s) + sizeof(struct tcphdr);
	if (bpf_skb_load_bytes(skb, at, b->old, length))
		return 0;
	__builtin_memcpy(b->new, b->old, OPTION_BYTES);
	timestamp = s->timestamp_at;
	OPAQUE(timestamp);
	if (s->has_timestamp && timestamp <= OPTION_BYTES - 10) {
		put_be32(&b->new[timestamp + 2], s->tsval);
		put_be32(&b->new[timestamp + 6], s->tsecr);
	}
	at_mss = s->mss_at;
	OPAQUE(at_mss);
	if (s->mss_most && s->mss > s->mss_most && at_mss <= OPTION_BYTES - 4) {
		b->new[at_mss + 2] = s->mss_most >> 8;
		b->new[at_mss + 3] = s->mss_most;
	}
	if (s->sacks) {
		/* What the relay had acknowledged would look like a duplicate's report. */
		struct sack_move move = {
			.at = s->sack_at,
			.blocks = s->sacks,
			.delta = s->sack_delta,
			.low = s->sack_clip ? s->sack_floor : s->ack - SEGMENT_WINDOW_LIMIT,
			.high = s->ack + SEGMENT_WINDOW_LIMIT,
		};

		if (s->strip_sack)
			move.high = move.low;
		move_sacks(&move);
	}
	change = bpf_csum_diff((__be32 *)b->old, OPTION_BYTES, (__be32 *)b->new, OPTION_BYTES, *sum);
	if (change < 0 || bpf_skb_store_bytes(skb, at, b->new, length, 0))
		return 0;
	*sum = change;
	return 1;
}

static __always_inline bool rewrite(struct __sk_buff *skb, struct segment *s, bool ipv6)
{
	__u32 at = ETH_HLEN + (ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	void *data, *end;
	struct tcphdr *tcp;
	__u32 sum = 0, pseudo = 0, header, word;
	__be32 value;
	/* An urgent byte stays in its place, as it does when the relay's sockets pass it on. */
	__u8 flags = s->flags & ~URG;

	if (ipv6 && s->jumbo)
		at += sizeof(struct jumbo_option);
	if (!s->plain_timestamp && !rewrite_options(skb, s, &sum))
		return false;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	tcp = data + at;
	if ((void *)(tcp + 1) > end)
		return false;
	if (s->plain_timestamp) {
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
		header = pseudo;
		word = *(__u32 *)ip;
		if (s->clear_ecn || (word & bpf_htonl(DSCP_V6))) {
			*(__u32 *)ip = word & ~bpf_htonl(s->clear_ecn ? CLASS_V6 : DSCP_V6);
			header = csum_change(header, word, *(__u32 *)ip);
		}
		if (s->spends_hop) {
			word = ((__u32 *)ip)[1];
			ip->hop_limit--;
			header = csum_change(header, word, ((__u32 *)ip)[1]);
		}
	} else {
		struct iphdr *ip = data + ETH_HLEN;

		pseudo = csum_change(pseudo, ip->saddr, s->tuple.source[3]);
		pseudo = csum_change(pseudo, ip->daddr, s->tuple.destination[3]);
		header = pseudo;
		ip->saddr = s->tuple.source[3];
		ip->daddr = s->tuple.destination[3];
		if (s->clear_ecn || (ip->tos & ~CE)) {
			word = *(__u32 *)ip;
			ip->tos &= s->clear_ecn ? 0 : CE;
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
	if (bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), 0, pseudo, BPF_F_PSEUDO_HDR))
		return false;
	/*
	 * Where a device has summed up the whole packet (CHECKSUM_COMPLETE), that took the pseudo-header's
	 * change from its sum, as if a header checksum made up for the addresses. IPv6 has none, so all
	 * that has changed in its header goes to the sum; BPF_F_IPV6 would do it for the addresses, since
	 * 6.16. A packet without such a sum refuses it.
	 */
	if (ipv6)
		bpf_csum_update(skb, header);
	return true;
}

/* Write the translated segment into the packet. False when it fails. */
__noinline int rewrite_ipv4(struct __sk_buff *skb, struct segment *s)
{
	return s && rewrite(skb, s, false);
}

__noinline int rewrite_ipv6(struct __sk_buff *skb, struct segment *s)
{
	return s && rewrite(skb, s, true);
}

/* Writes one of the numbers of TCP, at @field of its header at @at. False when it fails. */
static __always_inline bool write_number(struct __sk_buff *skb, __u32 at, __u32 field, __u32 from, __u32 to)
{
	__be32 old = bpf_htonl(from), new = bpf_htonl(to);

	return !bpf_skb_store_bytes(skb, at + field, &new, sizeof(new), 0) &&
	       !bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), old, new, sizeof(new));
}

/*
 * Has a segment acknowledge no more than @limit.
 * @at: where the header of TCP is. @ack: what it acknowledges. False when it fails.
 */
static __always_inline bool lower_ack(struct __sk_buff *skb, __u32 at, __u32 ack, __u32 limit)
{
	return !after(ack, limit) || write_number(skb, at, offsetof(struct tcphdr, ack_seq), ack, limit);
}

/*
 * The socket may have sent less than its peer has got meanwhile, and would discard the segment.
 * @s: the segment. @flow, @place: its flow, and where it belongs there. False when it fails.
 */
static __always_inline bool limit_ack(struct __sk_buff *skb, const struct segment *s,
				      const struct segment_flow *flow, const struct segment_place *place)
{
	const __u32 other = !(place->side & 1);
	struct segment_change_over *change_over = change_over_of(place->flow);
	const struct segment_side *acked = &flow->side[other];
	__u32 limit;

	if (!change_over)
		return false;
	limit = socket_end(&change_over->side[other]) + acked->seq_delta;
	if (is_distant(acked))
		return write_number(skb, tcp_offset(s), offsetof(struct tcphdr, ack_seq), s->ack, limit);
	return lower_ack(skb, tcp_offset(s), s->ack, limit);
}

/*
 * Tells by how much the sum of a packet changes when its payload is taken off. False when it fails.
 *
 * Where a device has verified the checksum (CHECKSUM_UNNECESSARY) what the payload adds is what the rest
 * lacks, so it need not be read. Neither need that of a super-packet: its checksum is still to be
 * computed, so the payload is not in it, or a device has made it (LRO), has verified its segments, and
 * left it the checksum of the first.
 */
__noinline int payload_change(struct __sk_buff *skb, struct segment *s, __u32 *change)
{
	struct sum_walk walk = { .skb = skb };
	__u32 zero = 0, header, start;

	if (!s || !change)
		return 0;
	header = s->header;
	start = tcp_offset(s) + header;
	walk.at = start;
	walk.end = start + s->payload;
	walk.chunk = bpf_map_lookup_elem(&segment_chunks, &zero);
	if (!walk.chunk)
		return 0;
	if (skb->gso_size || bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0) {
		walk.at = tcp_offset(s);
		walk.end = start;
		walk.sum = pseudo_sum(s, header + s->payload);
	}
	bpf_loop((walk.end - walk.at + CHUNK_BYTES - 1) / CHUNK_BYTES, sum_chunk, &walk, 0);
	*change = walk.end == start ? walk.sum : ~walk.sum;
	return walk.at == walk.end;
}

/*
 * Takes the payload from a packet, and its share from the checksum. That is not computed anew, since
 * nobody may have looked at it yet: what was wrong has to stay so. False when it fails.
 */
static __always_inline bool drop_payload(struct __sk_buff *skb, struct segment *s)
{
	const __u32 start = tcp_offset(s) + s->header;
	const __u32 check = tcp_offset(s) + offsetof(struct tcphdr, check);
	__u32 change = 0;

	/* A device's sum of the whole packet (CHECKSUM_COMPLETE) goes with its end (__skb_trim_rcsum). */
	return payload_change(skb, s, &change) && !bpf_skb_change_tail(skb, start, 0) &&
	       !bpf_l4_csum_replace(skb, check, 0, change, 0) &&
	       !bpf_l4_csum_replace(skb, check, bpf_htonl(s->header + s->payload),
				    bpf_htonl(s->header), BPF_F_PSEUDO_HDR | sizeof(__be32));
}

/*
 * Takes the payload and the end of stream from a segment; its header is then in the scratch, as it is in
 * the packet and as it will be, for `seal` to write. False when it fails.
 */
__noinline int strip(struct __sk_buff *skb, struct segment *s)
{
	struct scratch *b = scratch();
	void *data, *end;
	__u64 header;
	__u32 at;

	if (!s)
		return 0;
	at = tcp_offset(s);
	header = s->header;
	if (!b || !IS_WITHIN(header, sizeof(struct tcphdr), 60))
		return 0;
	if (s->payload && !drop_payload(skb, s))
		return 0;
	if (bpf_skb_pull_data(skb, at + header))
		return 0;
	if (s->ipv6) {
		__be16 length = bpf_htons(header + (s->jumbo ? sizeof(struct jumbo_option) : 0));
		const __u8 pad[6] = { OPTION_PAD, sizeof(__be32) };

		if (s->jumbo &&
		    bpf_skb_store_bytes(skb, ETH_HLEN + sizeof(struct ipv6hdr) +
					     offsetof(struct jumbo_option, type),
					pad, sizeof(pad), BPF_F_RECOMPUTE_CSUM))
			return 0;
		if (bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, payload_len),
					&length, sizeof(length), BPF_F_RECOMPUTE_CSUM))
			return 0;
	} else {
		struct iphdr *ip;
		__u32 word;

		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		ip = data + ETH_HLEN;
		if ((void *)(ip + 1) > end)
			return 0;
		word = *(__u32 *)ip;
		ip->tot_len = bpf_htons(sizeof(*ip) + header);
		ip->check = csum_fold(csum_change(csum_change(0, word, *(__u32 *)ip), 0,
						  (__u16)~ip->check));
	}
	__builtin_memset(b, 0, sizeof(*b));
	if (bpf_skb_load_bytes(skb, at, b->old, header))
		return 0;
	__builtin_memcpy(b->new, b->old, sizeof(b->new));
	s->payload = 0;
	s->flags &= ~(FIN | PSH | URG);
	b->new[13] = s->flags;
	return 1;
}

/* Writes the header of a segment without payload, its checksum by difference. False when it fails. */
static __always_inline bool seal(struct __sk_buff *skb, const struct segment *s)
{
	const __u32 at = tcp_offset(s);
	struct scratch *b = scratch();
	__u64 header = s->header;
	__s64 change;

	if (!b || !IS_WITHIN(header, sizeof(struct tcphdr), 60))
		return false;
	change = bpf_csum_diff((__be32 *)b->old, sizeof(b->old), (__be32 *)b->new, sizeof(b->new), 0);
	return change >= 0 && !bpf_skb_store_bytes(skb, at, b->new, header, 0) &&
	       !bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), 0, change, 0);
}

/* Leaves of a segment what it acknowledges. False when it fails. */
__noinline int keep_ack(struct __sk_buff *skb, struct segment *s)
{
	return s && strip(skb, s) && seal(skb, s);
}

/*
 * Makes of a segment what the relay's own socket accepts: an acknowledgement without payload, or a
 * reset. Where the peer's stream is taken over, the number that it has sent lies outside of
 * the socket's window, so it gets that at which the socket stands still.
 */
__noinline int give_to_socket(struct __sk_buff *skb, struct segment *s, struct segment_flow *flow,
			      struct segment_place *place, bool reset)
{
	struct segment_change_over *change_over;
	struct segment_side *side, *other;
	struct scratch *b = scratch();
	__u32 own_final, i;

	if (!s || !flow || !place || !b)
		return DROP;
	change_over = change_over_of(place->flow);
	if (!change_over)
		return DROP;
	side = &flow->side[place->side & 1];
	other = &flow->side[!(place->side & 1)];
	/* of what the socket sends, or far away */
	own_final = s->ack + SEGMENT_WINDOW_LIMIT;
	if (is_taken_over(other))
		own_final = socket_end(&change_over->side[!(place->side & 1)]) + other->seq_delta;
	if (!s->plain_timestamp && !find_options(skb, s))
		return DROP;
	if (!strip(skb, s)) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	if (is_taken_over(side) || reset)
		put_be32(&b->new[4], socket_end(&change_over->side[place->side & 1]));
	/* All that a socket which sleeps has sent is acknowledged, however long ago. */
	if (load_acquire(&flow->state) == SEGMENT_SPLICED || is_distant(other) || after(s->ack, own_final))
		put_be32(&b->new[8], own_final);
	if (reset)
		b->new[13] = RST | ACK;
	/* The echo of a clock that stood tells nothing of a round trip. */
	i = s->timestamp_at;
	OPAQUE(i);
	if (s->has_timestamp && i <= OPTION_BYTES - 10)
		put_be32(&b->new[sizeof(struct tcphdr) + i + 6], 0);
	if (s->sacks) {
		struct sack_move move = {
			.at = sizeof(struct tcphdr) + s->sack_at,
			.blocks = s->sacks,
			.low = own_final - SEGMENT_WINDOW_LIMIT,
			.high = own_final,
		};

		move_sacks(&move);
	}
	if (!seal(skb, s)) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	count(SEGMENT_OWN_COPIES);
	return NEXT;
}

#endif
