// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For tests: programs that filter what the sockets of a control group receive and send, as systemd's
 * IPAddressDeny= has them, which let everything pass; and one that refuses connections.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The server of a lab: 198.18.2.2 */
#define REFUSED 0xc6120202

SEC("cgroup/connect4")
int refuse_connect(struct bpf_sock_addr *address)
{
	return address->user_ip4 != bpf_htonl(REFUSED);
}

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
