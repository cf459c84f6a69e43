// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Stands in front of a source: a socket filter, which TCP asks before a segment counts as come
 * (tcp_filter). What it refuses was never acknowledged, so the sender repeats it.
 *
 * It refuses in two cases. While user space closes a direction, which takes some microseconds:
 * the kernel drops what has its verdict in the moment in which a source leaves its map
 * (sk_psock_stop_verdict takes the program away before it puts the old callback back). And when
 * user space is so late with that that the bound on what is under way would be broken.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

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

/* A window is smaller than this by far: what lies beyond is not taken anyway. */
#define FARTHEST (1 << 28)

SEC("socket")
int gate(struct __sk_buff *skb)
{
	struct direction *direction;
	struct numbers numbers;
	__u32 *index, end, before = 0, content, header;
	int noted = -1, full;
	__u64 cookie;

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

	full = direction->opened && direction->over == direction->opened;
	/*
	 * First noted, then held is read: user space first writes held, then reads what was
	 * noted. One of the two sees the other.
	 */
	end = bpf_ntohl(numbers.seq) + content + !!(numbers.flags & FIN);
	for (int i = 0; i < ATTEMPTS && noted < 0; i++) {
		__s32 ahead;

		before = *(volatile __u32 *)&direction->accepted;
		ahead = end - before;
		if (ahead <= 0 || ahead > FARTHEST)
			noted = 0;
		/* What fills a gap is let in: user space waits for it. */
		else if (full && content)
			break;
		else if (__sync_val_compare_and_swap(&direction->accepted, before, end) == before)
			noted = 1;
	}
	if (noted < 0 || *(volatile __u32 *)&direction->held) {
		if (noted > 0)
			__sync_val_compare_and_swap(&direction->accepted, end, before);
		__sync_fetch_and_add(&direction->refused, 1);
		return REFUSE;
	}
	return ACCEPT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
