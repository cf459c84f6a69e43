// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Send to local: what one end of a connection writes goes into the receive queue of the other,
 * past TCP and the devices in between. Runs in the writer's sendmsg(2).
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/*
 * Local port of one end, in host order -> the socket of the other end. One connection has two
 * ports, so no address is needed to tell its ends apart.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 2);
} far_ends SEC(".maps");

/* Messages that took this way: what proves that the connection was bypassed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} bypassed SEC(".maps");

SEC("sk_msg")
int send_to_local(struct sk_msg_md *message)
{
	__u32 port = message->local_port, zero = 0;
	__u64 *count = bpf_map_lookup_elem(&bypassed, &zero);

	/* A miss drops the message, and its writer is told (EACCES). */
	if (bpf_msg_redirect_hash(message, &far_ends, &port, BPF_F_INGRESS) != SK_PASS)
		return SK_DROP;
	if (count)
		__sync_fetch_and_add(count, 1);
	return SK_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
