/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How the programs of a bypass find the two ends of a connection. */
#ifndef BYPASS_PAIRING_H
#define BYPASS_PAIRING_H

#include <bpf/bpf_endian.h>

#include "bypass_maps.h"
#include "lib/lease.h"
#include "lib/tcp.h"

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))

#define AF_INET6 10
#define E2BIG 7

/* How many segments a socket has to have got before it is looked at: short connections pay next to nothing. */
#define FIRST_SEGMENTS 16

/* Control groups are not nested deeper by anybody who is known. */
#define MOST_LEVELS 32

/* The groups that are covered, with all below them, by their ids. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, __u32);
	__uint(max_entries, 1024);
} bypass_groups SEC(".maps");

/* Connections that read often, have turned to bulk, or are stuck, for user space, which looks at times. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} bypass_news SEC(".maps");

static const struct bypass_pair empty_pair SEC(".rodata") = {};

/* The first sequence numbers of a socket, in the order of its pair's key, and its role. */
struct numbers {
	struct bypass_key key;
	__u32 role;
};

/*
 * What a socket has sent and received leads back to where it began (__tcp_transmit_skb, tcp_rcv_nxt_update). The SYN
 * counts as acknowledged for the end that has connected only (tcp_snd_una_update). Another CPU may be changing all of
 * this: then it does not fit, or differs when it is read again.
 */
static __always_inline int count_back(struct tcp_sock *tcp, struct numbers *to)
{
	__u32 own = READ_ONCE(tcp->snd_nxt) - (__u32)(READ_ONCE(tcp->bytes_sent) - READ_ONCE(tcp->bytes_retrans));
	__u32 other = READ_ONCE(tcp->rcv_nxt) - (__u32)READ_ONCE(tcp->bytes_received);
	__u32 syn = own - (READ_ONCE(tcp->snd_una) - (__u32)READ_ONCE(tcp->bytes_acked));

	if (syn > 1)
		return 0;
	to->role = syn ? BYPASS_CLIENT : BYPASS_SERVER;
	to->key.client_isn = syn ? own : other;
	to->key.server_isn = syn ? other : own;
	return 1;
}

static __always_inline int is_covered(struct sock *sk)
{
	struct cgroup *group = BPF_CORE_READ(sk, sk_cgrp_data.cgroup), *above;
	int level = BPF_CORE_READ(group, level), i;
	__u64 id;

	for (i = 0; i < MOST_LEVELS && i <= level; i++) {
		above = NULL;
		bpf_core_read(&above, sizeof(above), &group->ancestors[i]);
		id = BPF_CORE_READ(above, kn, id);
		if (bpf_map_lookup_elem(&bypass_groups, &id))
			return 1;
	}
	return 0;
}

static __always_inline void describe(struct sock *sk, struct tcp_sock *tcp, struct bypass_end *end)
{
	__u32 *local = (__u32 *)end->local, *remote = (__u32 *)end->remote;

	end->cookie = bpf_get_socket_cookie(sk);
	end->network = BPF_CORE_READ(sk, __sk_common.skc_net.net, net_cookie);
	end->local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
	end->remote_port = bpf_ntohs(BPF_CORE_READ(sk, __sk_common.skc_dport));
	end->copied_seq = tcp->copied_seq;
	if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET6) {
		bpf_core_read(end->local, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(end->remote, 16, &sk->__sk_common.skc_v6_daddr);
	} else {
		local[2] = remote[2] = bpf_htonl(0xffff);
		local[3] = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
		remote[3] = BPF_CORE_READ(sk, __sk_common.skc_daddr);
	}
}

static __always_inline void tell_by(struct bypass_settings *settings, const struct bypass_key *key, __u64 flags)
{
	/* Who does not fit stays as it is. */
	if (bpf_ringbuf_output(&bypass_news, (void *)key, sizeof(*key), flags))
		__sync_fetch_and_add(&settings->missed, 1);
}

static __always_inline void tell(struct bypass_settings *settings, const struct bypass_key *key)
{
	tell_by(settings, key, BPF_RB_NO_WAKEUP);
}

/* Wakes user space up. */
static __always_inline void tell_at_once(struct bypass_settings *settings, const struct bypass_key *key)
{
	tell_by(settings, key, BPF_RB_FORCE_WAKEUP);
}

/* Pairs a socket with its other end, if it is covered. Nobody reads from it meanwhile. */
static __always_inline void pair_up(struct sock *sk, struct tcp_sock *tcp, struct bypass_settings *settings)
{
	struct bypass_mark fresh = { .role = BYPASS_LEFT_ALONE };
	struct numbers once, again;
	struct bypass_pair *pair;
	struct bypass_end *end;

	if (settings->stopping || is_stale(&settings->lease, bpf_ktime_get_ns()))
		return;
	if (!is_covered(sk) || BPF_CORE_READ(sk, __sk_common.skc_state) != BPF_TCP_ESTABLISHED)
		goto mark;
	if (!count_back(tcp, &once) || !count_back(tcp, &again))
		return;
	if (once.role != again.role || once.key.client_isn != again.key.client_isn ||
	    once.key.server_isn != again.key.server_isn)
		return;
	/* Fails where the other end was first. */
	if (bpf_map_update_elem(&bypass_pairs, &once.key, &empty_pair, BPF_NOEXIST) == -E2BIG) {
		__sync_fetch_and_add(&settings->missed, 1);
		goto mark;
	}
	pair = bpf_map_lookup_elem(&bypass_pairs, &once.key);
	if (!pair)
		return;
	/*
	 * Namespaces give the same tuple the same numbers when they connect in the same 64 ns (secure_tcp_seq), so a
	 * third end shows that nobody knows who belongs to whom.
	 */
	end = once.role == BYPASS_CLIENT ? &pair->ends[0] : &pair->ends[1];
	if (__sync_val_compare_and_swap(&end->socket, 0, (__u64)sk)) {
		pair->conflict = 1;
		__sync_fetch_and_add(&settings->conflicts, 1);
		goto mark;
	}
	describe(sk, tcp, end);
	fresh.key = once.key;
	fresh.role = once.role;
	if (!bpf_sk_storage_get(&bypass_marks, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE)) {
		pair->conflict = 1;
		__sync_fetch_and_add(&settings->missed, 1);
		return;
	}
	__sync_fetch_and_or(&pair->present, 1 << once.role);
	return;
mark:
	bpf_sk_storage_get(&bypass_marks, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

/* The end of a socket, if it has one; see pair_up(). */
static __always_inline struct bypass_pair *pair_of(struct bypass_mark *mark)
{
	return mark->role == BYPASS_LEFT_ALONE ? NULL : bpf_map_lookup_elem(&bypass_pairs, &mark->key);
}

#endif
