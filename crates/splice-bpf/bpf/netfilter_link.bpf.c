// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* For tests: programs of others at a netfilter hook. One lets everything pass, and one nothing. */
#include <linux/bpf.h>
#include <linux/netfilter.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("netfilter")
int netfilter_link(void *ctx __attribute__((unused)))
{
	return NF_ACCEPT;
}

SEC("netfilter")
int netfilter_drop(void *ctx __attribute__((unused)))
{
	return NF_DROP;
}
