// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The four redirects of SOCKMAP, one source to one target, without flow control.
 *
 *   sent on the source ──▶ redirect_sent ──▶ the target's reader, or the target's peer
 *   received by the source ──▶ redirect_received ──▶ the target's reader, or the target's peer
 *
 * What cannot be redirected is passed: it stays where it would be without the program. The helper's own
 * answer to a target that is gone or unsuitable is SK_DROP, which loses what a sender takes for delivered.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "redirections.h"
#include "redirections_maps.h"
#include "lib/lease.h"

/*
 * The kernel's structures, as far as they are read. The names behind ___ are ours: other headers declare
 * other fields of them.
 */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cookie___redirections {
	__s64 counter;
};

struct sock_common___redirections {
	struct cookie___redirections skc_cookie;
};

struct sock___redirections {
	struct sock_common___redirections __sk_common;
	void *sk_user_data;
};

struct list_head___redirections {
	struct list_head___redirections *next;
};

struct sk_buff_head___redirections {
	__u32 qlen;
};

struct sk_psock___redirections {
	struct sk_buff_head___redirections ingress_skb;
	struct list_head___redirections ingress_msg;
};

#pragma clang attribute pop

/* sk_user_data carries flags in its low bits (SK_USER_DATA_PTRMASK). */
#define USER_DATA_FLAGS 7UL

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct redirections_unknown);
	__uint(max_entries, 1);
} unknown SEC(".maps");

/* Shared by all that one owner has pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct lease);
	__uint(max_entries, 1);
} lease SEC(".maps");

/* A pointer that was stored and read again is a number to the verifier. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} address SEC(".maps");

static __always_inline __u64 flags(void)
{
	return setting.to_local ? BPF_F_INGRESS : 0;
}

static __always_inline int pass(struct redirection *of, __u32 bytes, enum redirection_pass why)
{
	__sync_fetch_and_add(&of->passed[why], 1);
	__sync_fetch_and_add(&of->passed_bytes, bytes);
	return SK_PASS;
}

/* A member of the sources has no redirection before it is linked, and while it leaves. */
static __always_inline int pass_unknown(void)
{
	struct redirections_unknown *count;
	__u32 zero = 0;

	count = bpf_map_lookup_elem(&unknown, &zero);
	if (count)
		__sync_fetch_and_add(&count->passed, 1);
	return SK_PASS;
}

/*
 * Whether the owner is gone. That is for good: what a stream's reader gets after it has passed once would overtake what it
 * has not read.
 */
static __always_inline int is_over(void)
{
	struct lease *of;
	__u32 zero = 0;

	of = bpf_map_lookup_elem(&lease, &zero);
	if (!of || !of->stale_ns)
		return 0;
	if (!of->lapsed && is_stale_at(of->heartbeat_ns, of->stale_ns, bpf_ktime_get_coarse_ns()))
		of->lapsed = 1;
	return of->lapsed != 0;
}

static __always_inline int conclude(struct redirection *of, __u32 bytes, long verdict)
{
	if (verdict == SK_PASS) {
		__sync_fetch_and_add(&of->messages, 1);
		__sync_fetch_and_add(&of->bytes, bytes);
		return SK_PASS;
	}
	pass(of, bytes, REDIRECTION_REFUSED);
	return setting.raw ? verdict : SK_PASS;
}

SEC("sk_skb/verdict")
int redirect_received(struct __sk_buff *skb)
{
	/*
	 * A UNIX socket's messages still belong to the socket that has sent them (unix_read_skb), so
	 * they do not tell who received them.
	 */
	__u64 key = setting.only ? 0 : bpf_get_socket_cookie(skb);
	struct redirection *of = bpf_map_lookup_elem(&redirections, &key);
	__u32 bytes = skb->len;
	long verdict;

	if (!of) {
		/* Passed, a FIN would be an empty message in front of the reader (sk_psock_backlog). */
		if (bytes == 0 && skb->sk && bpf_skc_to_tcp_sock(skb->sk))
			return SK_DROP;
		return pass_unknown();
	}
	/*
	 * The kernel's worker takes an empty message for a broken target (sk_psock_backlog). Passed, it would stay
	 * in front of the source's reader for good, who gets EFAULT at each call (sk_msg_recvmsg). A FIN has been
	 * noted already, so it may be dropped.
	 */
	if (bytes == 0) {
		if (of->is_tcp)
			return SK_DROP;
		__sync_fetch_and_add(&of->empty, 1);
		return setting.raw ? SK_PASS : SK_DROP;
	}
	if (is_over())
		return pass(of, bytes, REDIRECTION_LAPSED);
	if (of->most_bytes) {
		/* The worker sends each fragment by itself, so a message has to be in one piece. */
		if (bytes > of->most_bytes)
			return pass(of, bytes, REDIRECTION_TOO_LONG);
		if (bpf_skb_pull_data(skb, bytes))
			return pass(of, bytes, REDIRECTION_NO_MEMORY);
	}
	if (setting.is_hash)
		verdict = bpf_sk_redirect_hash(skb, &targets, &key, flags());
	else
		verdict = bpf_sk_redirect_map(skb, &targets, of->slot, flags());
	return conclude(of, bytes, verdict);
}

SEC("sk_msg")
int redirect_sent(struct sk_msg_md *msg)
{
	struct sock___redirections *sk;
	struct redirection *of;
	__u32 bytes = msg->size;
	__u64 key = 0;
	long verdict;

	/* Programs of this type have no bpf_get_socket_cookie. */
	sk = msg->sk ? (void *)bpf_skc_to_tcp_sock(msg->sk) : NULL;
	if (!sk)
		return SK_PASS;
	key = sk->__sk_common.skc_cookie.counter;
	of = bpf_map_lookup_elem(&redirections, &key);
	if (!of)
		return pass_unknown();
	if (is_over())
		return pass(of, bytes, REDIRECTION_LAPSED);
	if (setting.is_hash)
		verdict = bpf_msg_redirect_hash(msg, &targets, &key, flags());
	else
		verdict = bpf_msg_redirect_map(msg, &targets, of->slot, flags());
	return conclude(of, bytes, verdict);
}

#define ACCEPT 0xffffffff
#define REFUSE 0
#define FIN 1
#define RST 4

/*
 * Holds a source still while it leaves the maps: a socket filter, which TCP asks before a segment counts as come
 * (tcp_filter). It refuses what would call the verdict. The sender retransmits that.
 */
SEC("socket")
int quiet(struct __sk_buff *skb)
{
	struct {
		__u8 header_words;	/* in the upper half */
		__u8 flags;
	} part;
	__u32 header;

	if (bpf_skb_load_bytes(skb, 12, &part, sizeof(part)))
		return ACCEPT;
	header = (part.header_words >> 4) * 4;
	if (part.flags & RST || (skb->len <= header && !(part.flags & FIN)))
		return ACCEPT;
	return REFUSE;
}

/* Never attached: user space runs it with BPF_PROG_RUN and the question as the packet. */
SEC("tc")
int look(struct __sk_buff *skb)
{
	struct redirections_look *answer = (void *)(long)skb->data;
	struct sk_psock___redirections *psock;
	struct sock___redirections *sk;
	struct list_head___redirections *head, *first = NULL;
	struct bpf_sock *target;
	__u32 zero = 0, slot, backlog = 0;
	__u64 *place, key;

	if ((void *)(answer + 1) > (void *)(long)skb->data_end)
		return 0;
	key = answer->key;
	slot = answer->slot;
	place = bpf_map_lookup_elem(&address, &zero);
	if (!place)
		return 0;
	if (setting.is_hash)
		target = bpf_map_lookup_elem(&targets, &key);
	else
		target = bpf_map_lookup_elem(&targets, &slot);
	if (!target)
		return 0;
	/* Only TCP and UDP sockets have helpers that make them readable. One process looks at a time. */
	*(volatile __u64 *)place = (__u64)target;
	sk = (void *)*(volatile __u64 *)place;
	psock = (void *)((__u64)BPF_CORE_READ(sk, sk_user_data) & ~USER_DATA_FLAGS);
	answer->found = 1;
	if (psock) {
		head = (void *)psock + bpf_core_field_offset(psock->ingress_msg);
		bpf_core_read(&backlog, sizeof(backlog), &psock->ingress_skb.qlen);
		bpf_probe_read_kernel(&first, sizeof(first), head);
		answer->backlog = backlog;
		answer->unread = first != head;
	}
	bpf_sk_release(target);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
