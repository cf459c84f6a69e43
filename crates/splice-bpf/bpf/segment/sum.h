/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Summing up what is in a packet, and whether its checksum is right. */
#ifndef SEGMENT_SUM_H
#define SEGMENT_SUM_H

#include "lib/checksum.h"
#include "segment/core.h"
#include "segment/parse.h"

/* The sum of the pseudo-header, and the protocol's length in it. */
static __always_inline __u32 pseudo_sum(const struct segment *s, __u32 length)
{
	const __u32 *source = s->tuple.source, *destination = s->tuple.destination;
	__u64 sum = (__u64)source[3] + destination[3] + bpf_htonl(IPPROTO_TCP) + bpf_htonl(length);
	__u32 i;

	if (s->ipv6) {
#pragma unroll
		for (i = 0; i < 3; i++)
			sum += (__u64)source[i] + destination[i];
	}
	return csum_narrow(sum);
}

/* A walk over a part of a packet that is summed up. */
struct sum_walk {
	struct __sk_buff *skb;
	struct chunk *chunk;
	__u32 at;
	__u32 end;
	__u32 sum;
};

static long sum_chunk(__u32 index, struct sum_walk *walk)
{
	/* Of the last byte: of the length itself the verifier of 6.1 does not learn that there is some. */
	__u64 last = walk->end - walk->at - 1, length, size;
	struct chunk *chunk = walk->chunk;
	__s64 sum;

	(void)index;
	if (last >= CHUNK_BYTES)
		last = CHUNK_BYTES - 1;
	length = last + 1;
	/* What does not fill its last word counts as zero. */
	chunk->words[last / 4] = 0;
	if (bpf_skb_load_bytes(walk->skb, walk->at, chunk, length))
		return 1;
	size = (length + 3) / 4 * 4;
	OPAQUE(size);
	if (size > CHUNK_BYTES)
		return 1;
	sum = bpf_csum_diff(NULL, 0, chunk->words, size, walk->sum);
	if (sum < 0)
		return 1;
	walk->sum = sum;
	walk->at += length;
	return 0;
}

#define CHECKSUM_PARTIAL 3	/* linux/skbuff.h */

extern void *bpf_cast_to_kern_ctx(void *) __ksym __weak;

/* A type that came with Linux 6.4: since then a program may read the kernel's own packet here. */
struct bpf_iter_num___local {
};

/* Whether the checksum is still to be computed. Before Linux 6.4 the program cannot know, and takes the sender's word. */
static __always_inline bool is_unfinished(struct __sk_buff *skb)
{
	struct sk_buff *kernel;

	if (!bpf_core_type_exists(struct bpf_iter_num___local))
		return true;
	kernel = bpf_cast_to_kern_ctx(skb);
	return BPF_CORE_READ_BITFIELD(kernel, ip_summed) == CHECKSUM_PARTIAL;
}

/* Whether the checksum of an IPv4 header without options is right. */
static __always_inline bool is_header_right(struct __sk_buff *skb)
{
	const __u32 *word = (void *)(long)skb->data + ETH_HLEN, *end = (void *)(long)skb->data_end;
	__u64 sum = 0;
	__u32 i;

	if (word + sizeof(struct iphdr) / sizeof(*word) > end)
		return false;
#pragma unroll
	for (i = 0; i < sizeof(struct iphdr) / sizeof(*word); i++)
		sum += word[i];
	return !csum_fold(csum_narrow(sum));
}

/*
 * Whether the receiver would find the checksum of TCP right. A device, GRO, or a sender on this host may have taken care
 * of that; else the segment is summed up. The program never corrects a checksum, so a segment that is found wrong here is
 * found wrong by its receiver, too.
 *
 * Where the checksum is still to be computed (CHECKSUM_PARTIAL) it holds the sum of the pseudo-header.
 */
static __always_inline bool is_segment_right(struct __sk_buff *skb, const struct segment *s)
{
	struct sum_walk walk = { .skb = skb };
	__u32 zero = 0;

	/* The kernel merges none that it has not verified, and has none to verify where it has made them. */
	if (skb->gso_size)
		return true;
	walk.at = tcp_offset(s);
	walk.end = walk.at + s->header + s->payload;
	walk.sum = pseudo_sum(s, s->header + s->payload);
	if ((s->check == (__u16)~csum_fold(walk.sum) && is_unfinished(skb)) ||
	    bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return true;
	walk.chunk = bpf_map_lookup_elem(&segment_chunks, &zero);
	if (!walk.chunk)
		return false;
	bpf_loop((walk.end - walk.at + CHUNK_BYTES - 1) / CHUNK_BYTES, sum_chunk, &walk, 0);
	return walk.at == walk.end && !csum_fold(walk.sum);
}

/* Whether the receiver would find all checksums right. @s: as parse() has read it. */
__noinline int is_verified(struct __sk_buff *skb, struct segment *s)
{
	return s && (s->ipv6 || is_header_right(skb)) && is_segment_right(skb, s);
}

#endif
