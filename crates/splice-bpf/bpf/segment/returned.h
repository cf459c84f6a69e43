/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RETURNED: what comes to sockets that have taken their connections up again. Such a socket sends once more what was
 * translated and what it does not know to be acknowledged. Until then it may lag behind its peer.
 */
#ifndef SEGMENT_RETURNED_H
#define SEGMENT_RETURNED_H

#include "segment/rewrite.h"
#include "segment/sockets.h"

/* In the header of TCP, as one number: data offset, flags and window. */
#define OFFSET_FLAGS_WINDOW 12

/*
 * A socket that lags behind its peer would discard what acknowledges more than it has sent, with all its payload.
 * @at: where the header of TCP is. @ack: what the segment acknowledges. False when it fails. A function of its own for
 * the stack of its caller: Linux 6.1 has 512 bytes for all of them.
 */
__noinline int limit_ack_of_returned(struct __sk_buff *skb, struct segment_flow *flow, struct segment_place *place, __u32 at,
				     __u32 ack)
{
	struct segment_change_over *change_over;
	struct segment_side *side, *other;
	__u32 sent;

	if (!flow || !place)
		return 0;
	change_over = change_over_of(place->flow);
	if (!change_over)
		return 0;
	side = &flow->side[place->side & 1];
	other = &flow->side[!(place->side & 1)];
	sent = READ_ONCE(change_over->side[place->side & 1].sent);
	/* The peer has received it without the socket, and acknowledges it no more once it is gone (acknowledge_for). */
	if (after(ack, sent) && !after(ack + side->ack_delta, high_seq(other)))
		raise(&side->high_ack, ack);
	return lower_ack(skb, at, ack, sent);
}

/* Whether a socket has received the end of its peer's stream. */
static __always_inline bool has_end(struct __sk_buff *skb, const struct segment_tuple *tuple)
{
	struct bpf_sock_tuple key = {};
	__u32 size = socket_key(&key, tuple), state;
	struct bpf_sock *found;

	found = bpf_skc_lookup_tcp(skb, &key, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return false;
	state = found->state;
	bpf_sk_release(found);
	return state == BPF_TCP_CLOSE_WAIT || state == BPF_TCP_LAST_ACK || state == BPF_TCP_CLOSING;
}

/*
 * A peer that has received the whole other stream without the socket is gone once the socket has acknowledged the end of its own
 * stream. It answers what the socket sends once more with a reset, which would end the pair before the other peer has got
 * everything. The socket gets instead the acknowledgement that it lacks.
 * @s: a reset. False when it fails.
 */
__noinline int acknowledge_for(struct __sk_buff *skb, struct segment *s, struct segment_flow *flow,
			       struct segment_place *place)
{
	const __u32 all_room = 0xffff;
	struct segment_change_over *change_over;
	struct segment_side *side;
	__u32 sent, at, old;
	__be32 word;
	bool ended;

	if (!s || !flow || !place)
		return 0;
	change_over = change_over_of(place->flow);
	if (!change_over)
		return 0;
	side = &flow->side[place->side & 1];
	sent = READ_ONCE(change_over->side[place->side & 1].sent);
	/* Who resets a connection that is still there acknowledges something (RFC 9293, 3.10.7.1). */
	if ((s->flags & ACK) || !s->is_verified || after(sent, side->high_ack))
		return 1;
	/* A socket that took its connection up after that end has never seen it. */
	ended = (marks(side) & SEGMENT_FIN) && s->seq == READ_ONCE(side->fin_end);
	if (!ended && !has_end(skb, &s->tuple))
		return 1;
	at = tcp_offset(s);
	if (bpf_skb_load_bytes(skb, at + OFFSET_FLAGS_WINDOW, &word, sizeof(word)))
		return 0;
	old = bpf_ntohl(word);
	count(SEGMENT_GONE);
	return write_number(skb, at, OFFSET_FLAGS_WINDOW, old, (old & 0xf0000000) | (ACK << 16) | all_room) &&
	       write_number(skb, at, offsetof(struct tcphdr, ack_seq), s->ack, sent);
}

#endif
