/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fields of kernel structures that the relay's sockets are looked up for. Only names and
 * types count here; libbpf finds the offsets in the running kernel's BTF.
 */
#ifndef SEGMENT_CORE_H
#define SEGMENT_CORE_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	__s64 counter;
} atomic64_t;

struct sk_buff {
	__u8 ip_summed : 2;
};

struct net_device {
	int ifindex;
	unsigned short type;
};

struct dst_entry {
	struct net_device *dev;
	void *xfrm;
	void *lwtstate;
};

struct netns_ipv4 {
	unsigned int fib_rules_require_fldissect;
};

struct netns_ipv6 {
	unsigned int fib6_rules_require_fldissect;
};

struct netns_xfrm {
	unsigned int policy_count[6];	/* XFRM_POLICY_MAX directions, twice */
};

struct net {
	struct netns_ipv4 ipv4;
	struct netns_ipv6 ipv6;
	struct netns_xfrm xfrm;
};

typedef struct {
	struct net *net;
} possible_net_t;

/* Indices of cgroup_bpf.effective */
enum cgroup_bpf_attach_type {
	CGROUP_INET_INGRESS,
	CGROUP_INET_EGRESS,
};

struct bpf_prog_array_item {
	void *prog;
};

struct bpf_prog_array {
	struct bpf_prog_array_item items[1];
};

struct cgroup_bpf {
	struct bpf_prog_array *effective[CGROUP_INET_EGRESS + 1];
};

struct cgroup {
	struct cgroup_bpf bpf;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock_common {
	possible_net_t skc_net;
	volatile unsigned char skc_state;
	int skc_bound_dev_if;
	atomic64_t skc_cookie;
};

struct sock {
	struct sock_common __sk_common;
	int sk_rx_dst_ifindex;
	struct dst_entry *sk_dst_cache;
	__u32 sk_mark;
	__u32 sk_priority;
	void *sk_user_data;
	struct sock_cgroup_data sk_cgrp_data;
};

struct ipv6_pinfo {
	__u8 tclass;
};

struct inet_sock {
	struct ipv6_pinfo *pinet6;
	__u8 tos;
};

struct inet_connection_sock {
	__u32 icsk_pmtu_cookie;
	const void *icsk_ulp_ops;
};

struct tcp_options_received {
	__u32 ts_recent;
	__u16 tstamp_ok : 1, sack_ok : 3, snd_wscale : 4, rcv_wscale : 4;
	__u16 mss_clamp;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 write_seq;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 snd_wnd;
	__u32 copied_seq;
	__u32 rcv_nxt;
	__u32 rcv_wup;
	__u32 rcv_wnd;
	__u32 max_window;
	__u64 bytes_received;
	__u32 tsoffset;
	__u16 advmss;
	__u8 ecn_flags;
	__u8 tcp_usec_ts : 1;
	__u8 bpf_sock_ops_cb_flags;
	struct tcp_options_received rx_opt;
	bool is_mptcp;
	void *md5sig_info;
	void *ao_info;
};

#pragma clang attribute pop

#endif
