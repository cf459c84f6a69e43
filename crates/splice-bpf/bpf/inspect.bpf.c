// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Tells user space how far a target has come with what was redirected to it. Never
 * attached: user space runs it with BPF_PROG_RUN and the question as the packet. It is a tc
 * program since that type may look into a map of sockets and can be run this way.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "redirect.h"
#include "backlog.h"
#include "maps.h"

SEC("tc")
int inspect(struct __sk_buff *skb)
{
	struct inspection *answer = (void *)(long)skb->data;
	struct bpf_sock *target;
	struct tcp_sock *tcp;
	__u64 cookie;

	if ((void *)(answer + 1) > (void *)(long)skb->data_end)
		return 0;
	cookie = answer->cookie;
	target = bpf_map_lookup_elem(&targets, &cookie);
	if (!target)
		return 0;
	answer->found = 1;
	answer->state = target->state;
	tcp = bpf_skc_to_tcp_sock(target);
	if (tcp) {
		answer->queued_skbs = backlog_of(psock_of(tcp->inet_conn.icsk_inet.sk.sk_user_data));
		answer->write_seq = tcp->write_seq;
		answer->copied_seq = tcp->copied_seq;
		answer->rcv_nxt = tcp->rcv_nxt;
		answer->on_the_way_bytes = on_the_way(tcp, 0);
		answer->send_limit_bytes = tcp->inet_conn.icsk_inet.sk.sk_sndbuf;
	}
	bpf_sk_release(target);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
