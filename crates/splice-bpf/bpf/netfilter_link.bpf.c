// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* For tests: somebody else's program at a netfilter hook. It lets everything pass. */
#include <linux/bpf.h>
#include <linux/netfilter.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("netfilter")
int netfilter_link(void *ctx __attribute__((unused)))
{
	return NF_ACCEPT;
}
