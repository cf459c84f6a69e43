// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For tests: programs that filter what the sockets of a control group receive and send, as systemd's
 * IPAddressDeny= has them, and let everything pass, or nothing; one that refuses connections; and two that are told of
 * connections.
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

SEC("cgroup_skb/ingress")
int drop_ingress(struct __sk_buff *skb __attribute__((unused)))
{
	return 0;
}

SEC("cgroup_skb/egress")
int drop_egress(struct __sk_buff *skb __attribute__((unused)))
{
	return 0;
}

/* How often told_of_connections was called. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} told SEC(".maps");

SEC("sockops")
int told_of_connections(struct bpf_sock_ops *ops __attribute__((unused)))
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&told, &zero);

	if (count)
		__sync_fetch_and_add(count, 1);
	return 1;
}

/* It wants to see the options of every segment that its sockets receive from then on. */
SEC("sockops")
int reads_options(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		bpf_sock_ops_cb_flags_set(ops, BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG);
	return 1;
}
