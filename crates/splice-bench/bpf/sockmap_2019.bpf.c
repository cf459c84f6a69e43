// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The echo of 2019: whatever arrives on the one socket of the map is sent back on it.
 *
 * As the first public measurement of SOCKMAP had it: a parser that takes each skb for a message,
 * a verdict that redirects without looking at anything. It bounds nothing and ignores errors; that
 * is what is measured. The engine `sockmap` of spliced is another program.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} echoed SEC(".maps");

SEC("sk_skb/stream_parser")
int take_all(struct __sk_buff *skb)
{
	return skb->len;
}

SEC("sk_skb/stream_verdict")
int send_back(struct __sk_buff *skb)
{
	return bpf_sk_redirect_map(skb, &echoed, 0, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
