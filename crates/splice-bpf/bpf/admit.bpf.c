// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Links two connections that catcher has caught, for which user space has no descriptors. Never attached: user
 * space runs it with BPF_PROG_RUN and the question as the packet. It is a tc program since that type may look into
 * maps of sockets and change them.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#include "catcher.h"
#include "catcher_maps.h"
#include "redirections.h"
#include "redirections_maps.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock___admit {
	void *sk_socket;
};

struct tcp_sock___admit {
	__u32 copied_seq;
	__u32 rcv_nxt;
	__u32 write_seq;
};

#pragma clang attribute pop

/* Nobody reads what the kernel has for it, and what is sent to it fails for good (sendmsg_unlocked). */
static __always_inline int is_accepted(struct bpf_sock *sk)
{
	struct sock___admit *readable = (void *)bpf_skc_to_tcp_sock(sk);

	return readable && readable->sk_socket;
}

static __always_inline int is_empty(struct bpf_sock *sk)
{
	struct tcp_sock___admit *tcp = (void *)bpf_skc_to_tcp_sock(sk);

	return tcp && tcp->copied_seq == tcp->rcv_nxt;
}

#define AF_INET 2	/* linux/socket.h */

/* Strangers over IPv6 with the same two ports count as peers, too: then they wait for nothing but each other's bytes. */
static __always_inline int are_peers(struct bpf_sock *one, struct bpf_sock *other)
{
	if (one->src_port != bpf_ntohs(other->dst_port) ||
	    other->src_port != bpf_ntohs(one->dst_port))
		return 0;
	/* Sockets of IPv6 have no IPv4 addresses, or made-up ones (LOOPBACK4_IPV6). */
	if (one->family != AF_INET || other->family != AF_INET)
		return 1;
	return one->src_ip4 == other->dst_ip4 && other->src_ip4 == one->dst_ip4;
}

/*
 * A reader takes what was redirected to it before what came over its own connection (tcp_bpf_recvmsg). So nothing
 * that the source has sent may be unread, or on its way, when its next message is redirected to its own peer.
 */
static __always_inline int is_overtaken(struct bpf_sock *source, struct bpf_sock *target)
{
	struct tcp_sock___admit *from = (void *)bpf_skc_to_tcp_sock(source);
	struct tcp_sock___admit *to = (void *)bpf_skc_to_tcp_sock(target);

	return from && to && are_peers(source, target) && from->write_seq != to->copied_seq;
}

static __always_inline void add_source(struct admission *of, struct bpf_sock *source)
{
	/* A verdict has had what came before: what waits now has its own with the next segment. */
	int has_to_be_empty = of->is_received && !of->is_resumed;
	__u64 cookie = of->source;
	__u32 slot = of->slot;
	long error;

	if (has_to_be_empty && !is_empty(source)) {
		of->stage = ADMISSION_BYTES_WAIT;
		return;
	}
	if (setting.is_hash)
		error = bpf_map_update_elem(&sources, &cookie, source, BPF_NOEXIST);
	else
		error = bpf_map_update_elem(&sources, &slot, source, BPF_NOEXIST);
	of->error = -error;
	of->stage = error ? ADMISSION_SOURCE_REFUSED : ADMISSION_DONE;
	if (error || !has_to_be_empty || is_empty(source))
		return;
	/*
	 * They came between the look and the update, and would wait for the next segment, as nobody here has a
	 * descriptor to look at them with. If that comes now, the target gets them: user space waits for its
	 * verdict, and resumes.
	 */
	of->stage = ADMISSION_WITHDRAWN;
	if (setting.is_hash)
		bpf_map_delete_elem(&sources, &cookie);
	else
		bpf_map_delete_elem(&sources, &slot);
}

static __always_inline void find_source(struct admission *of, struct bpf_sock *target)
{
	__u64 cookie = of->source;
	struct bpf_sock *source;

	of->stage = ADMISSION_NO_SOURCE;
	source = bpf_map_lookup_elem(&caught, &cookie);
	if (!source)
		return;
	if (target && !of->is_received && setting.to_local && is_overtaken(source, target))
		of->stage = ADMISSION_UNREAD;
	else
		add_source(of, source);
	bpf_sk_release(source);
}

SEC("tc")
int admit(struct __sk_buff *skb)
{
	struct admission *of = (void *)(long)skb->data;
	struct bpf_sock *target;
	__u64 source_cookie, target_cookie;
	__u32 slot;
	long error;

	if ((void *)(of + 1) > (void *)(long)skb->data_end)
		return 0;
	source_cookie = of->source;
	target_cookie = of->target;
	slot = of->slot;
	if (of->is_resumed) {
		find_source(of, NULL);
		return 0;
	}
	of->stage = ADMISSION_NO_TARGET;
	target = bpf_map_lookup_elem(&caught, &target_cookie);
	if (!target)
		return 0;
	if (!is_accepted(target)) {
		of->stage = ADMISSION_NOT_ACCEPTED;
		goto release;
	}
	if (setting.is_hash)
		error = bpf_map_update_elem(&targets, &source_cookie, target, BPF_NOEXIST);
	else
		error = bpf_map_update_elem(&targets, &slot, target, BPF_NOEXIST);
	if (error) {
		of->error = -error;
		of->stage = ADMISSION_TARGET_REFUSED;
		goto release;
	}
	find_source(of, target);
release:
	bpf_sk_release(target);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
