// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Sends what arrives on a source to its target, without user space.
 *
 * Attached as a verdict to the map of sources, with no parser: it runs once per skb. What it
 * returns decides who has the bytes: redirected, they are acknowledged to the sender and belong
 * to the target; passed, they wait on the source for user space, charged to it, so that its
 * window closes; dropped, they would be acknowledged and gone, so bytes are never dropped.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "redirect.h"
#include "backlog.h"
#include "maps.h"

/* Sources; this program is attached here. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__type(key, __u64);
	__type(value, __u64);
	__uint(max_entries, 1);
} sources SEC(".maps");

/* Cookie of a source -> its index in directions. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
	__uint(max_entries, 1);
} indices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct direction);
	__uint(max_entries, 1);
} directions SEC(".maps");

/* Indices of directions that need user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} calls SEC(".maps");

/* skbs of sources that have no direction; only a race of a removal can make one. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} strays SEC(".maps");

/*
 * What an skb costs the target beside its bytes: the send buffer is charged with the bookkeeping
 * of each skb too (SKB_TRUESIZE of an empty TCP skb is 1280 bytes on 64 bits), and the bytes may
 * be spread over one more skb for every 16 KiB (32 KiB page fragments, 17 of them at most).
 */
#define SKB_COST 1536
#define PIECE_SHIFT 14

/* The most that is granted at once: the sooner the next look, the closer to the bound. */
#define MOST_CREDIT (256 << 10)

/* A look at the target: what still fits before its send function would say EAGAIN. */
static __always_inline __s64 room_of_target(__u64 cookie, struct direction *direction)
{
	struct bpf_sock *target = bpf_map_lookup_elem(&targets, &cookie);
	struct tcp_sock *tcp;
	__s64 size = 0, used = 0;

	if (!target)
		return 0;
	tcp = bpf_skc_to_tcp_sock(target);
	if (tcp) {
		struct sock *sk = &tcp->inet_conn.icsk_inet.sk;

		/*
		 * Three quarters, so that the worker never finds it full, whatever the
		 * bookkeeping comes to: what is passed on this socket waits behind its backlog,
		 * charged to nobody.
		 */
		size = sk->sk_sndbuf - (sk->sk_sndbuf >> 2);
		used = sk->sk_wmem_queued;
		used += (__s64)backlog_skbs(sk->sk_user_data) * direction->largest;
	}
	bpf_sk_release(target);
	/* Latched, it waits until half is free, so that it does not go back and forth per skb. */
	if (direction->latched)
		size >>= 1;
	return size - used;
}

/*
 * Leaves the skb to user space, and calls it unless it has bytes of this direction to copy
 * anyway. The counter is a full barrier before consumed is read, as user space puts one between
 * writing consumed and reading passed: one of the two sees the other's write.
 */
static __always_inline int pass(struct __sk_buff *skb, struct direction *direction, __u32 index)
{
	__u64 before = __sync_fetch_and_add(&direction->passed, skb->len);

	/* User space will fill the target by hand: what was granted for it is void. */
	direction->credit = 0;

	if (*(volatile __u64 *)&direction->consumed == before)
		bpf_ringbuf_output(&calls, &index, sizeof(index), BPF_RB_FORCE_WAKEUP);
	return SK_PASS;
}

/* The most that one call of bpf_skb_adjust_room takes away (sk_skb_adjust_room). */
#define MOST_CUT 0xfff
/* A segment has 64 KiB at most, but for BIG TCP; what is longer ends the pair. */
#define MOST_CUTS 34

/*
 * Takes bytes away that have come before. A segment that was sent again with other borders is
 * queued whole, and its reader skips what it knows (tcp_recvmsg_locked); tcp_read_skb hands the
 * whole skb to the verdict.
 */
static __always_inline int trim(struct __sk_buff *skb, struct direction *direction)
{
	__u32 seq = 0, known;

	bpf_core_read(&seq, sizeof(seq),
		      &((struct tcp_skb_cb *)((struct sk_buff *)skb)->cb)->seq);
	known = direction->base_seq + (__u32)(direction->redirected + direction->passed) - seq;
	if (known == 0)
		return 0;
	direction->trimmed++;
	for (int i = 0; i < MOST_CUTS && known > 0; i++) {
		__u32 cut = known < MOST_CUT ? known : MOST_CUT;

		if (bpf_skb_adjust_room(skb, -(__s32)cut, 0, 0))
			return -1;
		known -= cut;
	}
	return known ? -1 : 0;
}

SEC("sk_skb/verdict")
int redirect(struct __sk_buff *skb)
{
	__u64 cookie = bpf_get_socket_cookie(skb);
	__u32 *index = bpf_map_lookup_elem(&indices, &cookie);
	struct direction *direction;
	__s64 cost;

	direction = index ? bpf_map_lookup_elem(&directions, index) : NULL;
	if (!direction) {
		__u32 zero = 0;
		__u64 *count = bpf_map_lookup_elem(&strays, &zero);

		if (count)
			__sync_fetch_and_add(count, 1);
		return SK_PASS;
	}

	/*
	 * A bare end of stream. Redirected it would break the target (the worker takes the zero
	 * for EPIPE); passed it would break the source when that has a backlog of its own.
	 * Dropping it loses nothing: the socket has noted the end already.
	 */
	if (skb->len == 0) {
		direction->fins++;
		return SK_DROP;
	}

	if (trim(skb, direction)) {
		/* Nobody can say what belongs where from here on: user space ends the pair. */
		direction->missed++;
		return pass(skb, direction, *index);
	}

	direction->last_ns = bpf_ktime_get_coarse_ns();

	/* Bytes before these are still in user space's hands. */
	if (*(volatile __u64 *)&direction->consumed != direction->passed) {
		direction->behind++;
		return pass(skb, direction, *index);
	}

	/* Only user space can stop in the middle of an skb, and end the pair at its end. */
	if (direction->redirected + direction->passed + skb->len >= direction->limit) {
		direction->limited++;
		return pass(skb, direction, *index);
	}

	cost = skb->len + SKB_COST + ((skb->len >> PIECE_SHIFT) * SKB_COST);
	if (cost > direction->largest)
		direction->largest = cost;
	if (direction->credit < cost) {
		__s64 room = room_of_target(cookie, direction);

		if (room < cost) {
			direction->latched = 1;
			direction->full++;
			return pass(skb, direction, *index);
		}
		direction->latched = 0;
		direction->credit = room < MOST_CREDIT ? room : MOST_CREDIT;
		if (direction->credit < cost)
			direction->credit = cost;
	}

	direction->credit -= cost;

	/*
	 * Counted before it is queued, so that user space never takes the target for drained
	 * while bytes are on their way to it.
	 */
	__sync_fetch_and_add(&direction->redirected, skb->len);
	if (bpf_sk_redirect_hash(skb, &targets, &cookie, 0) != SK_PASS) {
		/* The helper's own answer to a miss is SK_DROP: acknowledged and lost. */
		__sync_fetch_and_add(&direction->redirected, -(__u64)skb->len);
		direction->missed++;
		return pass(skb, direction, *index);
	}
	return SK_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
