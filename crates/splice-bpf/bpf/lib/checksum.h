/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* One's complement sums (RFC 1071), not folded, as bpf_csum_diff gives them. */
#ifndef LIB_CHECKSUM_H
#define LIB_CHECKSUM_H

/* What a sum becomes when one of its words changes. @sum: before. @from, @to: the word. The sum afterwards. */
static __always_inline __u32 csum_change(__u32 sum, __u32 from, __u32 to)
{
	__u64 wide = (__u64)sum + (__u32)~from + to;

	wide = (wide & 0xffffffff) + (wide >> 32);
	return (wide & 0xffffffff) + (wide >> 32);
}

/* @sum: words added up, of which there are less than 2^32. The same as a sum. */
static __always_inline __u32 csum_narrow(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

/* @sum: a sum. The checksum that stands for it in a header. */
static __always_inline __u16 csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

#endif
