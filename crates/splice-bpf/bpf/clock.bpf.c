// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Tells user space what the programs' clock shows. Never attached: user space runs it with BPF_PROG_RUN
 * and a struct clock_reading as the packet.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "clock.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("tc")
int read_clock(struct __sk_buff *skb)
{
	struct clock_reading *reading = (void *)(long)skb->data;

	if ((void *)(reading + 1) <= (void *)(long)skb->data_end)
		reading->now_ns = bpf_ktime_get_ns();
	return 0;
}
