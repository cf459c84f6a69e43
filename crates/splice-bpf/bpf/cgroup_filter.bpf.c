// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For tests: programs that filter what the sockets of a control group receive and send, as systemd's
 * IPAddressDeny= has them. They let everything pass.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("cgroup_skb/ingress")
int filter_ingress(struct __sk_buff *skb __attribute__((unused)))
{
	return 1;
}

SEC("cgroup_skb/egress")
int filter_egress(struct __sk_buff *skb __attribute__((unused)))
{
	return 1;
}
