/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The relay's own sockets, and what the host tracks of their connections. */
#ifndef SEGMENT_SOCKETS_H
#define SEGMENT_SOCKETS_H

#include "segment/shared.h"
#include "lib/tuple.h"
#include "segment/core.h"

/* TCP_ECN_MODE_ACCECN in net/tcp.h (6.18); a bit without a meaning before */
#define ECN_MODE_ACCECN 16

/*
 * Whether a rule asks for more than addresses when it chooses a route (`ip rule add ipproto tcp dport 80`).
 * bpf_redirect_neigh does not tell it.
 */
static __always_inline bool is_ruled(struct sock *sk, bool ipv4)
{
	struct net *net = BPF_CORE_READ(sk, __sk_common.skc_net.net);

	/* Kernels without CONFIG_IP_MULTIPLE_TABLES have no rules. */
	if (ipv4)
		return bpf_core_field_exists(net->ipv4.fib_rules_require_fldissect) &&
		       BPF_CORE_READ(net, ipv4.fib_rules_require_fldissect);
	return bpf_core_field_exists(net->ipv6.fib6_rules_require_fldissect) &&
	       BPF_CORE_READ(net, ipv6.fib6_rules_require_fldissect);
}

/* Whether IPsec has policies, for whomever: a listening socket has no route that could tell. */
static __always_inline bool is_policed(struct sock *sk)
{
	struct net *net = BPF_CORE_READ(sk, __sk_common.skc_net.net);
	__u32 i, policies = 0;

	/* Without CONFIG_XFRM there are none. */
	if (!bpf_core_field_exists(net->xfrm.policy_count))
		return false;
	for (i = 0; i < 6; i++)
		policies |= BPF_CORE_READ(net, xfrm.policy_count[i]);
	return policies;
}

/*
 * Whether a program sees what the control group of a socket receives or sends, be it attached there or
 * to a group above (`cgroup_bpf_run_filter_skb`).
 */
static __always_inline bool is_filtered(struct sock *sk)
{
	struct bpf_prog_array *ingress, *egress;
	struct cgroup *group;

	/* Without CONFIG_CGROUP_BPF there are none. */
	if (!bpf_core_field_exists(struct cgroup_bpf, effective))
		return false;
	/* Before 5.15 the pointer has flags in it, and the programs are numbered otherwise. */
	if (!bpf_core_field_exists(struct sock_cgroup_data, cgroup))
		return true;
	group = BPF_CORE_READ(sk, sk_cgrp_data.cgroup);
	if (!group)
		return false;
	ingress = BPF_CORE_READ(group, bpf.effective[bpf_core_enum_value(enum cgroup_bpf_attach_type,
									 CGROUP_INET_INGRESS)]);
	egress = BPF_CORE_READ(group, bpf.effective[bpf_core_enum_value(enum cgroup_bpf_attach_type,
									CGROUP_INET_EGRESS)]);
	/* An array ends with an item without a program; an empty one is that item. */
	return (ingress && BPF_CORE_READ(ingress, items[0].prog)) ||
	       (egress && BPF_CORE_READ(egress, items[0].prog));
}

/* The DSCP that a socket gives its packets, in place. */
static __always_inline __u8 traffic_class(struct sock *sk, bool ipv4)
{
	struct inet_sock *inet = (struct inet_sock *)sk;

	return (ipv4 ? BPF_CORE_READ(inet, tos) : BPF_CORE_READ(inet, pinet6, tclass)) & ~CE;
}

/*
 * Whether a program reads the options of what a socket receives, or writes some of what it sends: a sock_ops program
 * of its control group has asked for that, as only those that were there when the socket was connected can.
 */
static __always_inline bool has_options_of_program(struct tcp_sock *tp)
{
	const __u8 asked = BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG |
			   BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG |
			   BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;

	return bpf_core_field_exists(tp->bpf_sock_ops_cb_flags) &&
	       (BPF_CORE_READ(tp, bpf_sock_ops_cb_flags) & asked);
}

/*
 * What the kernel knows of one of the relay's sockets. A global function, which the verifier looks at once.
 * @tuple: as segments of the socket's peer carry it. @out: zeroes, to be filled in. False where there is none.
 */
__noinline int inspect(struct __sk_buff *skb, struct segment_tuple *tuple, struct segment_socket *out)
{
	struct bpf_sock_tuple key = {};
	struct bpf_sock *found;
	struct tcp_sock *tp;
	struct sock *sk;
	struct dst_entry *dst;
	struct net_device *device;
	__u32 flags = SEGMENT_SOCKET_FOUND, size;
	__u64 received;
	__u8 ecn;

	if (!tuple || !out)
		return 0;

	size = socket_key(&key, tuple);
	found = bpf_skc_lookup_tcp(skb, &key, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return 0;
	tp = bpf_skc_to_tcp_sock(found);
	if (!tp) {
		bpf_sk_release(found);
		return 0;
	}
	sk = (struct sock *)tp;
	out->cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
	out->state = BPF_CORE_READ(sk, __sk_common.skc_state);
	out->write_seq = BPF_CORE_READ(tp, write_seq);
	out->snd_una = BPF_CORE_READ(tp, snd_una);
	out->snd_nxt = BPF_CORE_READ(tp, snd_nxt);
	out->snd_wnd = BPF_CORE_READ(tp, snd_wnd);
	out->copied_seq = BPF_CORE_READ(tp, copied_seq);
	out->rcv_nxt = BPF_CORE_READ(tp, rcv_nxt);
	out->rcv_wup = BPF_CORE_READ(tp, rcv_wup);
	out->rcv_wnd = BPF_CORE_READ(tp, rcv_wnd);
	out->clock = BPF_CORE_READ(tp, tsoffset);
	out->announced_mss = BPF_CORE_READ(tp, advmss);
	out->peer_mss = BPF_CORE_READ(tp, rx_opt.mss_clamp);
	out->path_mtu = BPF_CORE_READ(tp, inet_conn.icsk_pmtu_cookie);
	out->peer_scale = BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.snd_wscale);
	out->largest_window = BPF_CORE_READ(tp, max_window);
	received = BPF_CORE_READ(tp, bytes_received);
	out->received_bytes = received;
	out->recent_bytes = received < SEGMENT_WINDOW_LIMIT ? received : SEGMENT_WINDOW_LIMIT;
	out->recent_timestamp = BPF_CORE_READ(tp, rx_opt.ts_recent);
	out->own_scale = BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.rcv_wscale);
	if (BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.tstamp_ok))
		flags |= SEGMENT_SOCKET_TIMESTAMPS;
	if (BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.sack_ok))
		flags |= SEGMENT_SOCKET_SACK;
	ecn = BPF_CORE_READ(tp, ecn_flags);
	if (ecn)
		flags |= SEGMENT_SOCKET_ECN;
	if (ecn & ECN_MODE_ACCECN)
		flags |= SEGMENT_SOCKET_COUNTS_ECN;
	if (bpf_core_field_exists(tp->tcp_usec_ts) &&
	    BPF_CORE_READ_BITFIELD_PROBED(tp, tcp_usec_ts))
		flags |= SEGMENT_SOCKET_MICROSECONDS;
	if (bpf_core_field_exists(tp->md5sig_info) && BPF_CORE_READ(tp, md5sig_info))
		flags |= SEGMENT_SOCKET_SIGNED;
	if (bpf_core_field_exists(tp->ao_info) && BPF_CORE_READ(tp, ao_info))
		flags |= SEGMENT_SOCKET_SIGNED;
	if (bpf_core_field_exists(tp->is_mptcp) && BPF_CORE_READ(tp, is_mptcp))
		flags |= SEGMENT_SOCKET_LAYERED;
	if (BPF_CORE_READ(tp, inet_conn.icsk_ulp_ops))
		flags |= SEGMENT_SOCKET_LAYERED;
	/* A sockmap takes it (sk_psock_init), and whoever reads the socket in the kernel. */
	if (BPF_CORE_READ(sk, sk_user_data))
		flags |= SEGMENT_SOCKET_LAYERED;
	if (BPF_CORE_READ(sk, sk_mark))
		flags |= SEGMENT_SOCKET_MARKED;
	if (BPF_CORE_READ(sk, __sk_common.skc_bound_dev_if))
		flags |= SEGMENT_SOCKET_BOUND;
	if (traffic_class(sk, is_ipv4(tuple)) || BPF_CORE_READ(sk, sk_priority))
		flags |= SEGMENT_SOCKET_CLASSED;
	if (is_ruled(sk, is_ipv4(tuple)))
		flags |= SEGMENT_SOCKET_RULED;
	if (is_policed(sk))
		flags |= SEGMENT_SOCKET_POLICED;
	if (is_filtered(sk))
		flags |= SEGMENT_SOCKET_FILTERED;
	if (has_options_of_program(tp))
		flags |= SEGMENT_SOCKET_EXTENDED;
	out->in_device = BPF_CORE_READ(sk, sk_rx_dst_ifindex);
	dst = BPF_CORE_READ(sk, sk_dst_cache);
	if (dst) {
		device = BPF_CORE_READ(dst, dev);
		out->out_device = BPF_CORE_READ(device, ifindex);
		out->out_type = BPF_CORE_READ(device, type);
		/* bpf_redirect_neigh heeds neither: what IPsec has to encrypt would leave in clear. */
		if (bpf_core_field_exists(dst->xfrm) && BPF_CORE_READ(dst, xfrm))
			flags |= SEGMENT_SOCKET_WRAPPED;
		if (BPF_CORE_READ(dst, lwtstate))
			flags |= SEGMENT_SOCKET_WRAPPED;
	}
	out->flags = flags;
	bpf_sk_release(found);
	return 1;
}

/* libbpf wants a definition, to find that the functions are those of the kernel. */
struct nf_conn {
	unsigned long status;
} __attribute__((preserve_access_index));

struct bpf_ct_opts___local {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple,
					 __u32 size, struct bpf_ct_opts___local *opts,
					 __u32 opts_size) __ksym __weak;
extern int bpf_ct_change_timeout(struct nf_conn *ct, __u32 timeout) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;

/*
 * The host's entry for the connection whose peer sends @tuple; to be released. NULL: there is none, or the
 * kernel cannot tell. @opts->dir then says whether the peer opened it (0) or this host did (1).
 */
static __always_inline struct nf_conn *tracked_as(struct __sk_buff *skb,
						  const struct segment_tuple *tuple,
						  struct bpf_ct_opts___local *opts)
{
	struct bpf_sock_tuple key = {};
	__u32 size;

	opts->netns_id = BPF_F_CURRENT_NETNS;
	opts->l4proto = IPPROTO_TCP;
	/* The type is where the functions are (nf_conntrack_bpf.c); their own addresses only since 6.4. */
	if (!bpf_core_type_exists(struct bpf_ct_opts___local))
		return NULL;
	size = socket_key(&key, tuple);
	return bpf_skb_ct_lookup(skb, &key, size, opts, sizeof(*opts));
}

/* IPS_SEEN_REPLY: packets have gone both ways, so the next one is of an established connection. */
#define SEEN_REPLY (1 << 1)

/* What the host's connection tracking knows: SEGMENT_TRACKED_* */
static __always_inline __u32 track(struct __sk_buff *skb, const struct segment_tuple *tuple)
{
	struct bpf_ct_opts___local opts = {};
	struct nf_conn *ct;
	__u32 known = 0;

	ct = tracked_as(skb, tuple, &opts);
	if (!ct)
		return 0;
	if (ct->status & SEEN_REPLY)
		known = opts.dir ? SEGMENT_TRACKED | SEGMENT_TRACKED_OPENED_HERE : SEGMENT_TRACKED;
	bpf_ct_release(ct);
	return known;
}

static __always_inline __u32 forget(struct __sk_buff *skb, const struct segment_tuple *tuple)
{
	struct bpf_ct_opts___local opts = {};
	struct nf_conn *ct;

	ct = tracked_as(skb, tuple, &opts);
	if (!ct)
		return 0;
	bpf_ct_change_timeout(ct, 0);
	bpf_ct_release(ct);
	return 1;
}

#endif
