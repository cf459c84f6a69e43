/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of a bypass, and the fields of the kernel's structures that its programs read. */
#ifndef BYPASS_MAPS_H
#define BYPASS_MAPS_H

#include "bypass.h"
#include "lib/psock.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
	int level;
	struct cgroup *ancestors[32];
};

struct net {
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	__u8 bytes[16];
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

/* The number of the flag may change between versions. */
enum sock_flags {
	SOCK_ZEROCOPY,
};

typedef struct {
	__u32 val;
} kuid_t;

typedef struct {
	__s64 counter;
} atomic64_t;

struct sock_common {
	__u32 skc_daddr;
	__u32 skc_rcv_saddr;
	__u16 skc_dport;
	__u16 skc_num;
	__u16 skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	atomic64_t skc_cookie;
	volatile unsigned char skc_state;
	unsigned long skc_flags;
};

struct sock {
	struct sock_common __sk_common;
	int sk_rcvlowat;
	long sk_rcvtimeo;
	void *sk_socket;
	kuid_t sk_uid;
	void *sk_user_data;
	struct sock_cgroup_data sk_cgrp_data;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const void *icsk_ulp_ops;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 write_seq;
	__u32 copied_seq;
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 segs_in;
	__u32 data_segs_in;
	__u64 bytes_sent;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_retrans;
};

/* Of each architecture; what is behind ___ is not compared. */
struct pt_regs___x86 {
	unsigned long r10;
	unsigned long dx;
	unsigned long orig_ax;
};

struct pt_regs___arm64 {
	__u64 regs[31];
	int syscallno;
};

struct task_struct;

#pragma clang attribute pop

/* Who can be redirected to. The program that redirects is attached here. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__type(key, struct bypass_member);
	__type(value, __u64);
	__uint(max_entries, 1);
} bypass_members SEC(".maps");

/* Every connection of which an end was seen. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bypass_key);
	__type(value, struct bypass_pair);
	__uint(max_entries, 1);
} bypass_pairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct bypass_mark);
} bypass_marks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bypass_settings);
} bypass_control_word SEC(".maps");

static __always_inline struct bypass_settings *the_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&bypass_control_word, &zero);
}

#endif
