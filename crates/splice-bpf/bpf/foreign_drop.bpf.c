// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* For tests: programs of others on a device, which drop whatever comes by. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("tc")
int foreign_drop(struct __sk_buff *skb __attribute__((unused)))
{
	return TC_ACT_SHOT;
}

SEC("xdp")
int foreign_xdp(struct xdp_md *frame __attribute__((unused)))
{
	return XDP_DROP;
}
