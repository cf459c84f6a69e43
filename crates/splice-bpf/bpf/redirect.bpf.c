// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Sends what arrives on a source to its target, without user space.
 *
 * Attached as a verdict to the map of sources, with no parser: it runs once per skb, under the
 * source's socket lock. What it redirects is acknowledged to the sender at once and charged to
 * nobody until the kernel's worker gives it to the target. So it counts what is under way, and has
 * gate close the direction when the target has got its share.
 *
 * It never says SK_PASS. Bytes that are passed wait on the source's psock, and where that has a
 * backlog of the other direction, the kernel's worker charges them without the socket's lock
 * (sk_psock_backlog, sk_psock_skb_ingress); where it has none, they are charged without having
 * been scheduled (sk_psock_skb_ingress_self), and a send under memory pressure computes a negative
 * size from that (tcp_wmem_schedule) and fails with EFAULT.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "redirect_maps.h"
#include "backlog.h"
#include "maps.h"

/* The most that is granted at once: the sooner the next look, the closer to the bound. */
#define MOST_CREDIT (128 << 10)

/* Looks at the target, and draws the conclusions from what is on its way there. */
static __always_inline void look(__u64 cookie, struct direction_entry *direction)
{
	struct bpf_sock *target = bpf_map_lookup_elem(&targets, &cookie);
	__u32 opened = direction->opened;
	struct tcp_sock *tcp;
	__s64 size = 0, used = 0, room;

	direction->credit = 0;
	if (!target)
		return;
	tcp = bpf_skc_to_tcp_sock(target);
	if (tcp) {
		__u32 pending = unwritten(direction->target_seq, direction->redirected, tcp->write_seq);

		size = tcp->inet_conn.icsk_inet.sk.sk_sndbuf;
		used = on_the_way(tcp, pending);
	}
	bpf_sk_release(target);
	if (!tcp)
		return;

	room = size - (size >> SPARE_SHIFT) - used;
	if (room > 0) {
		direction->credit = room < MOST_CREDIT ? room : MOST_CREDIT;
		return;
	}
	direction->full = opened;
	/* Gate could not close so far: the sender has to retransmit what comes now. */
	if (used > size + (size >> REFUSE_SHIFT))
		direction->over = opened;
}

/* The most that one call of bpf_skb_adjust_room takes away (sk_skb_adjust_room). */
#define MOST_CUT 0xfff
/*
 * Segments grow together in a queue to MAX_SKB_FRAGS fragments of 32 KiB (tcp_try_coalesce), 17 of
 * them as kernels are built. What is longer ends the pair.
 */
#define MOST_CUTS 160

/*
 * Takes bytes away from the front of an skb. 0 when that has worked.
 *
 * A global function, which the verifier looks at by itself: it would follow the rest of the program anew for
 * every number of turns of the loop.
 */
__noinline int cut_front(struct __sk_buff *skb, __u32 bytes)
{
	/* A number of turns, since a remainder that shrinks is a new state to the verifier at each turn. */
	__u32 cuts = bytes / MOST_CUT, rest = bytes % MOST_CUT;

	if (cuts > MOST_CUTS)
		return -1;
	for (__u32 i = 0; i < MOST_CUTS && i < cuts; i++) {
		if (bpf_skb_adjust_room(skb, -MOST_CUT, 0, 0))
			return -1;
	}
	return rest && bpf_skb_adjust_room(skb, -(__s32)rest, 0, 0) ? -1 : 0;
}

/*
 * Takes bytes away that have come before. A segment that was sent again with other borders is
 * queued whole, and its reader skips what it knows (tcp_recvmsg_locked); tcp_read_skb hands the
 * whole skb to the verdict. So it does with an skb that was read in part before the opening.
 */
static __always_inline int trim(struct __sk_buff *skb, struct direction_entry *direction)
{
	__u32 seq = 0, known;

	bpf_core_read(&seq, sizeof(seq),
		      &((struct tcp_skb_cb *)((struct sk_buff *)skb)->cb)->seq);
	known = direction->base_seq + (__u32)direction->redirected - seq;
	if (known == 0)
		return 0;
	return cut_front(skb, known);
}

/* Nobody can say what belongs where from here on: user space resets both ends. */
static __always_inline int give_up(struct direction_entry *direction, __u32 index)
{
	direction->missed++;
	call(index);
	return SK_DROP;
}

SEC("sk_skb/verdict")
int redirect(struct __sk_buff *skb)
{
	__u64 cookie = bpf_get_socket_cookie(skb);
	__u32 *index = bpf_map_lookup_elem(&indices, &cookie);
	struct direction_entry *direction;
	__u32 opened;
	__s64 cost;

	direction = index ? bpf_map_lookup_elem(&directions, index) : NULL;
	/* Only a pair that is over can have made it. */
	if (!direction)
		return SK_DROP;

	/*
	 * A FIN without payload. Redirected it would break the target (the worker takes the zero
	 * for EPIPE). Dropping it loses nothing: the socket has noted the end already.
	 */
	if (skb->len == 0)
		return SK_DROP;

	if (direction->missed || trim(skb, direction))
		return give_up(direction, *index);
	if (direction->redirected + skb->len > direction->limit)
		return give_up(direction, *index);

	opened = direction->opened;
	direction->last_ns = bpf_ktime_get_coarse_ns();
	if (!direction->first_ns)
		direction->first_ns = bpf_ktime_get_ns();
	cost = skb->len + BOUND_SKB_COST;
	if (direction->credit < cost)
		look(cookie, direction);
	direction->credit -= cost;
	/* Only user space can stop at a byte. What gate has let in already fits in between. */
	if (direction->limit - direction->redirected < LIMIT_MARGIN)
		direction->full = direction->over = opened;

	redirect_begins(&direction->redirected, skb->len);
	if (bpf_sk_redirect_hash(skb, &targets, &cookie, 0) != SK_PASS) {
		/* The helper's own answer to a miss is SK_DROP: acknowledged and lost. */
		redirect_is_refused(&direction->redirected, skb->len);
		return give_up(direction, *index);
	}
	return SK_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
