// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * User space's hand on a bypass: makes sockets members, for which it has no descriptors, and looks at them. Never
 * attached: user space runs it with BPF_PROG_RUN in the network namespace of the socket, with the question as the packet.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "bypass.h"
#include "bypass_maps.h"

#define TCP_ESTABLISHED 1

/* @sk: of the end in question. What keeps it from being a member, else BYPASS_DONE. */
static __always_inline __u32 fitness(struct bpf_sock *sk, struct bypass_end *end)
{
	struct tcp_sock *tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	struct sock *socket;
	struct cgroup *group;

	if (!tcp)
		return BYPASS_NO_SOCKET;
	socket = &tcp->inet_conn.icsk_inet.sk;
	end->user = BPF_CORE_READ(socket, sk_uid.val);
	group = BPF_CORE_READ(socket, sk_cgrp_data.cgroup);
	end->group = BPF_CORE_READ(group, kn, id);
	if (BPF_CORE_READ(socket, __sk_common.skc_state) != TCP_ESTABLISHED)
		return BYPASS_NOT_OPEN;
	if (BPF_CORE_READ(tcp, inet_conn.icsk_ulp_ops))
		return BYPASS_HAS_UPPER;
	if (BPF_CORE_READ(socket, __sk_common.skc_flags) & 1UL << bpf_core_enum_value(enum sock_flags, SOCK_ZEROCOPY))
		return BYPASS_ZEROCOPY;
	if (BPF_CORE_READ(socket, sk_rcvlowat) > 1)
		return BYPASS_LOW_WATER;
	/* Nobody has accepted it. */
	if (!BPF_CORE_READ(socket, sk_socket))
		return BYPASS_NOT_OPEN;
	return BYPASS_DONE;
}

static __always_inline void find(struct __sk_buff *skb, struct bypass_question *of, struct bypass_end *end)
{
	struct bypass_member member = { of->key, of->role, 0 };
	struct bpf_sock_tuple tuple = {};
	__u32 *local = (__u32 *)end->local, *remote = (__u32 *)end->remote;
	struct bypass_mark *mark;
	struct bpf_sock *sk;
	long error;

	/* As a segment to the socket has it. */
	if (!local[0] && !local[1] && local[2] == bpf_htonl(0xffff)) {
		tuple.ipv4.saddr = remote[3];
		tuple.ipv4.daddr = local[3];
		tuple.ipv4.sport = bpf_htons(end->remote_port);
		tuple.ipv4.dport = bpf_htons(end->local_port);
		sk = bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, remote, 16);
		__builtin_memcpy(tuple.ipv6.daddr, local, 16);
		tuple.ipv6.sport = bpf_htons(end->remote_port);
		tuple.ipv6.dport = bpf_htons(end->local_port);
		sk = bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	of->answer = BYPASS_NO_SOCKET;
	if (!sk)
		return;
	mark = bpf_sk_storage_get(&bypass_marks, sk, 0, 0);
	if (mark && mark->key.client_isn == of->key.client_isn && mark->key.server_isn == of->key.server_isn &&
	    mark->role == of->role)
		of->answer = fitness(sk, end);
	if (of->answer == BYPASS_DONE && of->verb == BYPASS_ADMIT) {
		error = bpf_map_update_elem(&bypass_members, &member, sk, BPF_NOEXIST);
		if (error) {
			of->error = -error;
			of->answer = BYPASS_REFUSED;
		}
	}
	bpf_sk_release(sk);
}

static __always_inline void inspect(struct bypass_question *of)
{
	struct bypass_member member = { of->key, of->role, 0 };
	struct bpf_sock *sk = bpf_map_lookup_elem(&bypass_members, &member);
	struct tcp_sock *tcp;

	of->answer = BYPASS_NO_SOCKET;
	if (!sk)
		return;
	tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (tcp) {
		of->has_unread = has_unread(psock_of(tcp->inet_conn.icsk_inet.sk.sk_user_data));
		of->answer = BYPASS_DONE;
	}
	bpf_sk_release(sk);
}

SEC("tc")
int bypass_control(struct __sk_buff *skb)
{
	struct bypass_question of;
	struct bypass_pair *pair;

	if (bpf_skb_load_bytes(skb, 0, &of, sizeof(of)))
		return 0;
	pair = bpf_map_lookup_elem(&bypass_pairs, &of.key);
	if (of.verb == BYPASS_INSPECT) {
		inspect(&of);
	} else if (!pair) {
		of.answer = BYPASS_NO_PAIR;
	} else if (of.verb == BYPASS_TURN) {
		if (of.state == BYPASS_ACTIVE) {
			pair->ends[0].reads_before = pair->ends[0].reads;
			pair->ends[1].reads_before = pair->ends[1].reads;
			pair->ends[0].sender = pair->ends[1].sender = 0;
		}
		pair->reason = of.reason;
		pair->state = of.state;
		of.answer = BYPASS_DONE;
	} else if (of.role == BYPASS_CLIENT) {
		find(skb, &of, &pair->ends[0]);
	} else {
		find(skb, &of, &pair->ends[1]);
	}
	bpf_skb_store_bytes(skb, 0, &of, sizeof(of), 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
