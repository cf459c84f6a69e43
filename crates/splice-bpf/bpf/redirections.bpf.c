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
#include "redirections_queues.h"
#include "lib/bound.h"
#include "lib/lease.h"

/* The names after ___ are ours: other headers declare other fields of them. */
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

struct tcp_sock___redirections {
	__u32 write_seq;
	__u32 snd_nxt;
};

#pragma clang attribute pop

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

/* By the cookies of the targets. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct redirection_bound);
	__uint(max_entries, 1);
} bounds SEC(".maps");

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

static __always_inline void count_passed(struct redirection *of, __u32 bytes, enum redirection_pass why)
{
	__sync_fetch_and_add(&of->passed[why], 1);
	__sync_fetch_and_add(&of->passed_bytes, bytes);
}

static __always_inline int pass(struct redirection *of, __u32 bytes, enum redirection_pass why)
{
	__sync_fetch_and_add(&of->gate, 2ULL * bytes);
	count_passed(of, bytes, why);
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
	if (!of->lapsed && is_stale(of, bpf_ktime_get_coarse_ns()))
		of->lapsed = 1;
	return of->lapsed != 0;
}

static __always_inline void *user_data_of(struct sock___redirections *sk)
{
	void *user_data = NULL;

	bpf_core_read(&user_data, sizeof(user_data), &sk->sk_user_data);
	return user_data;
}

static __always_inline int is_tcp_egress(struct redirection_bound *bound)
{
	return !setting.to_local && bound->is_tcp;
}

/*
 * Bytes that were redirected to a target, and that it has not sent, or its reader not read: for the egress of TCP by its
 * sequence numbers, as long as its owner does not write meanwhile; else by its queues, with what others have put there. If
 * those cannot be told, as many as came since they could.
 *
 * Of each other source, one message may be counted already that is about to be queued.
 */
static __always_inline __u64 outstanding(struct redirection_bound *bound, __u64 cookie, int is_verdict)
{
	struct sock___redirections *sk = (void *)bound->socket;
	struct tcp_sock___redirections *tcp = (void *)sk;
	__u64 redirected = bound->redirected, waiting = redirected - bound->gone, found = 0, queued = 0;
	__u32 write_seq = 0, snd_nxt = 0, unsent, pending;
	struct sk_psock___queues *psock;

	/* Closed, or not known yet: the helper refuses it, or it is a moment old. */
	if (sk)
		bpf_core_read(&found, sizeof(found), &sk->__sk_common.skc_cookie.counter);
	if (!sk || found != cookie)
		return 0;
	psock = psock_of(user_data_of(sk));
	if (!is_tcp_egress(bound)) {
		queued = queued_bytes((__u64)psock, setting.to_local);
		if (queued == UNCOUNTED)
			return waiting;
		if (queued > redirected)
			queued = redirected;
		if (is_verdict)
			bound->gone = redirected - queued;
		return queued;
	}
	bpf_core_read(&write_seq, sizeof(write_seq), &tcp->write_seq);
	bpf_core_read(&snd_nxt, sizeof(snd_nxt), &tcp->snd_nxt);
	unsent = write_seq - snd_nxt;
	if (!backlog_of(psock)) {
		if (is_verdict) {
			bound->gone = redirected;
			bound->base = write_seq - (__u32)redirected;
		}
		return unsent;
	}
	pending = unwritten(bound->base, redirected, write_seq);
	if (pending < waiting)
		waiting = pending;
	return waiting + unsent;
}

/* The bound of a redirection; NULL if it has none. */
static __always_inline struct redirection_bound *bound_of(struct redirection *of)
{
	__u64 cookie = of->target;

	return cookie ? bpf_map_lookup_elem(&bounds, &cookie) : NULL;
}

/*
 * Whether a message has to be passed for the bound, which is counted then. On a stream all that follows is passed, too, until
 * user space resumes: else it would overtake. Verdicts of one source run one at a time, so the gate changes under this
 * one's hands only if that resumes.
 */
static __always_inline int is_beyond(struct redirection *of, struct redirection_bound *bound, __u32 bytes)
{
	__u64 gate = of->gate, held = of->is_stream ? REDIRECTION_HELD : 0;

	if (gate & REDIRECTION_HELD &&
	    __sync_val_compare_and_swap(&of->gate, gate, gate + 2ULL * bytes) == gate) {
		count_passed(of, bytes, REDIRECTION_FULL);
		return 1;
	}
	/* A look at the target costs more than to know that there is room in any case. */
	if (!is_tcp_egress(bound) && bound->redirected - bound->gone + bytes <= bound->most_bytes)
		return 0;
	if (outstanding(bound, of->target, 1) + bytes <= bound->most_bytes)
		return 0;
	__sync_fetch_and_add(&of->gate, 2ULL * bytes + held);
	count_passed(of, bytes, REDIRECTION_FULL);
	return 1;
}

static __always_inline void begin(struct redirection_bound *bound, __u32 bytes)
{
	if (bound)
		redirect_begins(&bound->redirected, bytes);
}

static __always_inline int conclude(struct redirection *of, struct redirection_bound *bound, __u32 bytes,
				    long verdict)
{
	if (verdict != SK_PASS && bound)
		redirect_is_refused(&bound->redirected, bytes);
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
	struct redirection_bound *bound;
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
	bound = bound_of(of);
	if (bound && is_beyond(of, bound, bytes))
		return SK_PASS;
	begin(bound, bytes);
	if (setting.is_hash)
		verdict = bpf_sk_redirect_hash(skb, &targets, &key, flags());
	else
		verdict = bpf_sk_redirect_map(skb, &targets, of->slot, flags());
	return conclude(of, bound, bytes, verdict);
}

SEC("sk_msg")
int redirect_sent(struct sk_msg_md *msg)
{
	struct redirection_bound *bound;
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
	bound = bound_of(of);
	if (bound && is_beyond(of, bound, bytes))
		return SK_PASS;
	begin(bound, bytes);
	if (setting.is_hash)
		verdict = bpf_msg_redirect_hash(msg, &targets, &key, flags());
	else
		verdict = bpf_msg_redirect_map(msg, &targets, of->slot, flags());
	return conclude(of, bound, bytes, verdict);
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
	struct redirection_bound *bound;
	struct sock___redirections *sk;
	struct redirection *of;
	struct bpf_sock *target;
	struct sk_psock___queues *psock;
	__u32 zero = 0, slot;
	__u64 *place, key, cookie, gate;

	if ((void *)(answer + 1) > (void *)(long)skb->data_end)
		return 0;
	key = answer->key;
	slot = answer->slot;
	cookie = answer->bound;
	if (answer->verb == REDIRECTIONS_RESUME) {
		of = bpf_map_lookup_elem(&redirections, &key);
		gate = answer->seen << 1 | REDIRECTION_HELD;
		if (of && __sync_val_compare_and_swap(&of->gate, gate, answer->seen << 1) == gate)
			answer->resumed = 1;
	}
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
	answer->found = 1;
	psock = psock_of(user_data_of(sk));
	answer->backlog = backlog_of(psock);
	answer->unread = has_unread(psock);
	bound = bpf_map_lookup_elem(&bounds, &cookie);
	if (bound) {
		if (answer->verb == REDIRECTIONS_AIM)
			bound->socket = (__u64)sk;
		answer->outstanding = outstanding(bound, cookie, 0);
	}
	bpf_sk_release(target);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
