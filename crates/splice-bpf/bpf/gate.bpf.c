// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Stands in front of a source: a socket filter, which TCP asks before a segment counts as come
 * (tcp_filter). What it refuses was never acknowledged, so the sender retransmits it.
 *
 * It opens a direction for which user space has asked: it puts the source into its map and lets the
 * segment at hand in after that, which brings about the verdict of what waits there, too. A process
 * could (a look at the queue does), but it holds the socket meanwhile: what comes then counts against
 * the window until all of it is through (__release_sock), and a sender that has more than the window
 * is left with none, which nobody opens before it asks after 200 ms.
 *
 * It closes a direction whose target has its share: it takes the source out of its map, so that
 * the segment at hand and what follows wait in the source's queue, and its window closes. The kernel
 * drops what has its verdict in that moment (sk_psock_stop_verdict takes the program away before it
 * puts the old callback back). So gate closes only when everything that it ever let in is through,
 * and for the moment that it takes lets nothing in. Where something is under way, it refuses what is
 * new once the bound on it would be broken.
 *
 * What lies beyond the window is refused, too. TCP would drop it, and noting it as let in would
 * make everything up to there look like a retransmission.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/atomics.h"
#include "kernel_fields.h"
#include "redirect_maps.h"

#define ACCEPT 0xffffffff
#define REFUSE 0

/* The beginning of a TCP header after the ports. */
struct numbers {
	__be32 seq;
	__be32 ack;
	__u8 header_words;	/* in the upper half */
	__u8 flags;
} __attribute__((packed));

/* Several CPUs can have segments of one source; more than this many at once do not. */
#define ATTEMPTS 4

/*
 * Whether a segment begins beyond the window. No lock is held here, so the window is read first: TCP
 * writes it after rcv_nxt (tcp_select_window). Then this edge is at TCP's own, rcv_wup + rcv_wnd,
 * or up to a window beyond it, never before it.
 */
static __always_inline int is_beyond(struct tcp_sock *tcp, __u32 seq)
{
	__u32 window = READ_ONCE(tcp->rcv_wnd);

	fence();
	return (__s32)(seq - (READ_ONCE(tcp->rcv_nxt) + window)) > 0;
}

/*
 * Whether all that was let in has had its verdict. The verdict counts an skb as taken when the program
 * has run (tcp_eat_skb).
 */
static __always_inline int is_through(struct tcp_sock *tcp, __u32 let_in)
{
	__u32 taken = READ_ONCE(tcp->copied_seq);
	__u32 come = READ_ONCE(tcp->rcv_nxt);

	return taken == come && (__s32)(let_in - come) <= 0;
}

static __always_inline void close(struct direction_entry *direction, __u64 cookie, __u32 index,
				  struct tcp_sock *tcp)
{
	__u64 noted = READ_ONCE(direction->let_in);

	if (noted & HELD || !is_through(tcp, noted))
		return;
	/* Nothing was let in since, and nothing is from here on. */
	if (__sync_val_compare_and_swap(&direction->let_in, noted, noted | HELD) != noted)
		return;
	bpf_map_delete_elem(&sources, &cookie);
	direction->closed = direction->opened;
	fence();
	__sync_fetch_and_and(&direction->let_in, ~HELD);
	call(index);
}

static __always_inline void open(struct direction_entry *direction, __u64 cookie, __u32 index,
				 struct bpf_sock *source)
{
	__u32 asked = READ_ONCE(direction->asked);
	long error;

	if (!asked || __sync_val_compare_and_swap(&direction->asked, asked, 0) != asked)
		return;
	error = bpf_map_update_elem(&sources, &cookie, source, BPF_ANY);
	if (!error)
		return;
	direction->error = -error;
	fence();
	direction->closed = direction->opened;
	call(index);
}

SEC("socket")
int gate(struct __sk_buff *skb)
{
	struct direction_entry *direction;
	struct numbers numbers;
	__u32 *index, seq, end, opened, content, header;
	struct bpf_sock *source;
	struct tcp_sock *tcp;
	__u64 cookie;
	int over;

	if (bpf_skb_load_bytes(skb, 4, &numbers, sizeof(numbers)))
		return ACCEPT;
	header = (numbers.header_words >> 4) * 4;
	content = skb->len > header ? skb->len - header : 0;
	if (numbers.flags & RST)
		return ACCEPT;
	/* Nothing that would call the verdict. */
	if (content == 0 && !(numbers.flags & (FIN | URG)))
		return ACCEPT;

	cookie = bpf_get_socket_cookie(skb);
	index = bpf_map_lookup_elem(&indices, &cookie);
	direction = index ? bpf_map_lookup_elem(&directions, index) : NULL;
	if (!direction)
		return ACCEPT;

	source = skb->sk;
	tcp = source ? bpf_skc_to_tcp_sock(source) : NULL;
	seq = bpf_ntohl(numbers.seq);
	if (!tcp || is_beyond(tcp, seq)) {
		__sync_fetch_and_add(&direction->beyond, 1);
		return REFUSE;
	}
	opened = READ_ONCE(direction->opened);
	fence();
	if (direction->full == opened && direction->closed != opened)
		close(direction, cookie, *index, tcp);
	over = direction->over == opened && direction->closed != opened;
	end = seq + content + !!(numbers.flags & FIN);
	for (int i = 0; i < ATTEMPTS; i++) {
		__u64 noted = READ_ONCE(direction->let_in);

		if (noted & HELD)
			break;
		/* A retransmission; or it fills a gap, which the closing waits for. */
		if ((__s32)(end - (__u32)noted) <= 0)
			return ACCEPT;
		if (over && content)
			break;
		if (__sync_val_compare_and_swap(&direction->let_in, noted, (__u64)end) == noted) {
			/*
			 * Noted first: who asks looks at the note after that. A probe of a closed
			 * window brings no verdict about.
			 */
			if (!is_beyond(tcp, end))
				open(direction, cookie, *index, source);
			return ACCEPT;
		}
	}
	__sync_fetch_and_add(&direction->refused, 1);
	return REFUSE;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
