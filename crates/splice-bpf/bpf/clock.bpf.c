// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Tells user space what the programs' clock shows. Never attached: user space runs it with BPF_PROG_RUN
 * and a struct clock_reading (src/bpf_types.rs) as the packet.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* A packet is no shorter than an Ethernet header. */
struct clock_reading {
	__u8 ethernet[14];
	__u8 reserved[2];
	__u64 now_ns;
};

SEC("tc")
int read_clock(struct __sk_buff *skb)
{
	struct clock_reading *reading = (void *)(long)skb->data;

	if ((void *)(reading + 1) <= (void *)(long)skb->data_end)
		reading->now_ns = bpf_ktime_get_ns();
	return 0;
}
