// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Stands in front of a source: a socket filter, which TCP asks before a segment counts as come
 * (tcp_filter). What it refuses was never acknowledged, so the sender repeats it.
 *
 * It refuses in two cases. While user space closes a direction, which takes some microseconds:
 * the kernel drops what has its verdict in the moment in which a source leaves its map
 * (sk_psock_stop_verdict takes the program away before it puts the old callback back). And when
 * user space is so late with that that the bound on what is under way would be broken.
 *
 * What lies behind the window is refused, too. TCP would drop it, and noting it as let in would
 * make everything up to there look like a repetition.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "kernel_fields.h"
#include "redirect_maps.h"

#define ACCEPT 0xffffffff
#define REFUSE 0

#define FIN 0x01
#define RST 0x04
#define URG 0x20

/* The beginning of a TCP header behind the ports. */
struct numbers {
	__be32 seq;
	__be32 ack;
	__u8 header_words;	/* in the upper half */
	__u8 flags;
} __attribute__((packed));

/* Several CPUs can have segments of one source; more than this many at once do not. */
#define ATTEMPTS 4

/*
 * Whether a segment begins behind the window. No lock is held here, so the window is read first: TCP
 * writes it after rcv_nxt (tcp_select_window). Then this edge is at TCP's own, rcv_wup + rcv_wnd,
 * or up to a window behind it, never before it.
 */
static __always_inline int is_beyond(struct __sk_buff *skb, __u32 seq)
{
	struct bpf_sock *source = skb->sk;
	struct tcp_sock *tcp;
	__u32 window;

	if (!source)
		return 1;
	tcp = bpf_skc_to_tcp_sock(source);
	if (!tcp)
		return 1;
	window = *(volatile __u32 *)&tcp->rcv_wnd;
	return (__s32)(seq - (*(volatile __u32 *)&tcp->rcv_nxt + window)) > 0;
}

SEC("socket")
int gate(struct __sk_buff *skb)
{
	struct direction *direction;
	struct numbers numbers;
	__u32 *index, seq, end, content, header;
	__u64 cookie;
	int full;

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

	seq = bpf_ntohl(numbers.seq);
	if (is_beyond(skb, seq)) {
		__sync_fetch_and_add(&direction->beyond, 1);
		return REFUSE;
	}
	full = direction->opened && direction->over == direction->opened;
	end = seq + content + !!(numbers.flags & FIN);
	for (int i = 0; i < ATTEMPTS; i++) {
		__u64 noted = *(volatile __u64 *)&direction->let_in;

		if (noted & HELD)
			break;
		/* A repetition; or it fills a gap, which user space waits for. */
		if ((__s32)(end - (__u32)noted) <= 0)
			return ACCEPT;
		if (full && content)
			break;
		if (__sync_val_compare_and_swap(&direction->let_in, noted, (__u64)end) == noted)
			return ACCEPT;
	}
	__sync_fetch_and_add(&direction->refused, 1);
	return REFUSE;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
