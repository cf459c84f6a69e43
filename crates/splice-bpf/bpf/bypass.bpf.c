// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Hands what one end of a connection sends to the reader of the other end, where both are sockets of this host.
 *
 * A socket costs next to nothing until it has got some segments. Then, at its next call, the programs look whether its
 * control group is covered, and pair it with its other end by both first sequence numbers. bypass_received counts what
 * is read, and tells user space of pairs that read often. User space decides about the pair and makes both ends members
 * (bypass_control). bypass_send has the verdict on each message of a member.
 *
 * Order: a reader takes what was redirected first and TCP's queue then (tcp_bpf_recvmsg). So a message may go over TCP
 * at any time, but be redirected only when a call of the reader has returned everything that went over TCP before. A
 * call that still waits for more of it (MSG_WAITALL) sleeps in TCP's own recvmsg, which sees nothing that is redirected.
 * For the same reason the reader has to have read once since it is a member.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "bypass.h"
#include "bypass_capture.h"
#include "bypass_maps.h"
#include "bypass_pairing.h"
#include "lib/bound.h"
#include "lib/lease.h"
#include "lib/tcp.h"

/* Of recvmsg(2), from linux/socket.h */
#define MSG_OOB 0x1
#define MSG_PEEK 0x2
#define MSG_DONTWAIT 0x40
#define MSG_WAITALL 0x100
#define MSG_ERRQUEUE 0x2000

#define EAGAIN 11

/* Of a timeout that is none (linux/sched.h). */
#define MAX_SCHEDULE_TIMEOUT ((long)(~0UL >> 1))

/* How many messages make an average: enough that a large one among small ones does not count for bulk. */
#define WINDOW_MESSAGES 32

/* How many have to be redirected for each that passes. */
#define LEAST_PER_PASSED 2

/* For how long fewer may be: a reader that had no CPU for a moment catches up. */
#define POOR_WINDOWS 64
#define POOR_NS 1000000000ULL

/* Processes that splice(2) from covered sockets, which does not see what is redirected. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 4096);
} bypass_splicers SEC(".maps");

/* Linux 6.2. Fields of @type at @at can be read like any; one that is not there reads as 0. */
extern void *bpf_rdonly_cast(const void *at, __u32 type) __ksym;

static __always_inline void add_up(struct bypass_settings *settings, struct bypass_end *end)
{
	__sync_fetch_and_add(&settings->ended_sends, end->sends);
	__sync_fetch_and_add(&settings->ended_redirected_messages, end->redirected_messages);
	__sync_fetch_and_add(&settings->ended_redirected_bytes, end->redirected_bytes);
}

/* The system call of this task, by the number that splice(2) has: include/uapi/asm-generic/unistd.h, x86's syscall tables. */
static __always_inline int is_splice(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	long regs = bpf_task_pt_regs(task);
	struct pt_regs___x86 *x86 = (void *)regs;
	struct pt_regs___arm64 *arm64 = (void *)regs;
	__u64 number = 0;

	if (bpf_core_field_exists(x86->orig_ax)) {
		bpf_core_read(&number, sizeof(number), &x86->orig_ax);
		return number == 275 || number == 313;
	}
	if (bpf_core_field_exists(arm64->syscallno)) {
		bpf_core_read(&number, sizeof(int), &arm64->syscallno);
		return number == 76 || number == 340;
	}
	return 0;
}

/*
 * Whether the system call of this task sends, and does not wait for room: send(2), sendmsg(2) or sendmmsg(2) with MSG_DONTWAIT.
 * Not inline: the verifier checks it once, and not in each way through bypass_send.
 */
__attribute__((noinline)) int is_impatient(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	long regs = bpf_task_pt_regs(task);
	struct pt_regs___x86 *x86 = (void *)regs;
	struct pt_regs___arm64 *arm64 = (void *)regs;
	__u64 number = 0, flags = 0;

	if (bpf_core_field_exists(x86->orig_ax)) {
		bpf_core_read(&number, sizeof(number), &x86->orig_ax);
		if (number == 44 || number == 307)
			bpf_core_read(&flags, sizeof(flags), &x86->r10);
		else if (number == 46)
			bpf_core_read(&flags, sizeof(flags), &x86->dx);
	} else if (bpf_core_field_exists(arm64->syscallno)) {
		bpf_core_read(&number, sizeof(int), &arm64->syscallno);
		if (number == 206 || number == 269)
			bpf_core_read(&flags, sizeof(flags), &arm64->regs[3]);
		else if (number == 211)
			bpf_core_read(&flags, sizeof(flags), &arm64->regs[2]);
	}
	return !!(flags & MSG_DONTWAIT);
}

/* Has a pair leave since a recv(2) of @end may return EAGAIN without a reason, at once: that may be the next call. */
static __always_inline void send_off(struct bypass_settings *settings, struct bypass_mark *mark, struct bypass_pair *pair,
				     struct bypass_end *end, __u32 trait)
{
	if (!(end->traits & trait))
		__sync_fetch_and_or(&end->traits, trait);
	if (__sync_val_compare_and_swap(&pair->state, BYPASS_ACTIVE, BYPASS_UNFIT) == BYPASS_ACTIVE)
		tell_at_once(settings, &mark->key);
}

/*
 * Whether this task, which sends on a socket that is read by calls that wait, does not wait for room. Room that comes later
 * wakes such a call up, and a member's returns EAGAIN then (tcp_msg_wait_data, Linux 6.1 to 7.2).
 */
static __always_inline int keeps_no_wait(struct bypass_end *end)
{
	return end->waiter && is_impatient();
}

/* In tcp_v4_destroy_sock: nobody has a descriptor of it any more. */
SEC("tp_btf/tcp_destroy_sock")
int bypass_gone(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct bypass_settings *settings = the_settings();
	struct bypass_mark *mark;
	struct bypass_pair *pair;
	__u32 bit, before;

	mark = bpf_sk_storage_get(&bypass_marks, sk, 0, 0);
	pair = mark ? pair_of(mark) : NULL;
	if (!pair || !settings)
		return 0;
	bit = mark->role == BYPASS_CLIENT ? 1 : 2;
	before = __sync_fetch_and_or(&pair->closed, bit);
	if ((before | bit) == pair->present) {
		add_up(settings, &pair->ends[0]);
		add_up(settings, &pair->ends[1]);
		bpf_map_delete_elem(&bypass_pairs, &mark->key);
	}
	return 0;
}

/* Redirected bytes that the reader has not taken: what it has received, less what came by TCP. */
static __always_inline __s64 unread(struct bypass_end *from, struct bypass_end *to)
{
	return from->redirected_bytes - (to->received_bytes - to->tcp_bytes);
}

/*
 * Whether too many messages of both ends have passed for long, at the end of a window. One that passes costs more than one
 * that is redirected saves: with every second one passed, round trips were at 0.94 of TCP (Linux 6.18).
 */
static __always_inline int is_poor(struct bypass_end *from, struct bypass_end *to)
{
	__u32 passed = from->passed_messages + to->passed_messages;
	__u32 balance = from->redirected_messages + to->redirected_messages - LEAST_PER_PASSED * passed;
	__s32 gained = balance - from->window_balance;
	__u64 now_ns;

	from->window_balance = balance;
	if (gained >= 0) {
		from->poor_windows = 0;
		return 0;
	}
	now_ns = bpf_ktime_get_coarse_ns();
	if (!from->poor_windows++)
		from->poor_since_ns = now_ns;
	if (from->poor_windows < POOR_WINDOWS || now_ns - from->poor_since_ns < POOR_NS)
		return 0;
	from->poor_windows = BYPASS_OVER;
	return 1;
}

/* Whether being a member does not pay any more, with this message: it has turned to bulk, or passes too much. */
static __always_inline int is_unfit(struct bypass_settings *settings, struct bypass_end *from, struct bypass_end *to,
				    __u32 bytes)
{
	__u32 sum;

	from->window_bytes += bytes;
	if (++from->window_messages < WINDOW_MESSAGES)
		return 0;
	sum = from->window_bytes;
	from->window_messages = 0;
	from->window_bytes = 0;
	return sum > WINDOW_MESSAGES * settings->bulk_bytes || is_poor(from, to);
}

/*
 * Whether the process that has read from `to` last splices. Asked again only for another process, and once there is another
 * that splices.
 */
static __always_inline int is_read_by_splicer(struct bypass_settings *settings, struct bypass_end *from,
					      struct bypass_end *to)
{
	__u32 process = to->process, splicers = settings->splicers;

	if (from->checked_process == process && from->checked_splicers == splicers)
		return 0;
	if (bpf_map_lookup_elem(&bypass_splicers, &process))
		return 1;
	from->checked_process = process;
	from->checked_splicers = splicers;
	return 0;
}

/* Fields of an end's socket, which lives at least as long as a call on it or its peer's counters. */
static __always_inline struct tcp_sock *socket_of(struct bypass_end *end)
{
	return bpf_rdonly_cast((void *)end->socket, bpf_core_type_id_kernel(struct tcp_sock));
}

/*
 * Whether the owner is dead. The coarse clock moves with each tick, so a look at it lasts for that: a call is dear where each
 * return costs (Safe RET of AMD), and bpf_jiffies64 is none.
 */
static __always_inline int is_orphan(struct bypass_settings *settings, struct bypass_end *from)
{
	__u64 tick = bpf_jiffies64();

	if (from->fresh_tick == tick)
		return 0;
	if (is_stale(&settings->lease, bpf_ktime_get_coarse_ns()))
		return 1;
	from->fresh_tick = tick;
	return 0;
}

/* What keeps a message of `from` from being redirected to `to`. */
static __always_inline __u32 obstacle(struct bypass_settings *settings, struct bypass_end *from, struct bypass_end *to,
				      __u32 bytes)
{
	struct tcp_sock *tcp, *theirs;
	__s64 waiting;

	if (bytes > settings->bulk_bytes)
		return BYPASS_LARGE;
	if (to->traits || is_read_by_splicer(settings, from, to))
		return BYPASS_READER;
	if (to->reads == to->reads_before)
		return BYPASS_UNSEEN;
	waiting = unread(from, to);
	if (waiting <= 0)
		from->burst_messages = 0;
	if (waiting + bytes + (__u64)(from->burst_messages + 1) * BOUND_MESSAGE_COST > settings->unread_bytes)
		return BYPASS_FULL;
	tcp = socket_of(from);
	if (to->copied_seq != tcp->write_seq)
		return BYPASS_BEHIND;
	theirs = socket_of(to);
	if (tcp->inet_conn.icsk_ulp_ops || theirs->inet_conn.icsk_ulp_ops)
		return BYPASS_UPPER;
	if (theirs->inet_conn.icsk_inet.sk.sk_rcvlowat > 1)
		return BYPASS_LOW_MARK;
	return BYPASS_NOTHING;
}

/* Has a message copied whose verdict is given, if somebody captures. */
static __always_inline void capture(struct bypass_settings *settings, struct sk_msg_md *message)
{
	__u64 until_ns = settings->capture_until_ns;

	if (!until_ns)
		return;
	if ((__s64)(until_ns - bpf_ktime_get_coarse_ns()) <= 0 || !copied(message))
		__sync_fetch_and_add(&settings->capture_missed, 1);
}

SEC("sk_msg")
int bypass_send(struct sk_msg_md *message)
{
	struct bypass_settings *settings = the_settings();
	struct bpf_sock *sk = message->sk;
	struct bypass_member target = {};
	struct bypass_end *from, *to;
	__u32 bytes = message->size;
	struct bypass_mark *mark;
	struct bypass_pair *pair;
	__u32 found;

	if (!sk || !settings)
		return SK_PASS;
	mark = bpf_sk_storage_get(&bypass_marks, sk, 0, 0);
	if (!mark)
		return SK_PASS;
	pair = pair_of(mark);
	if (!pair)
		return SK_PASS;
	if (mark->role == BYPASS_CLIENT) {
		from = &pair->ends[0];
		to = &pair->ends[1];
	} else {
		from = &pair->ends[1];
		to = &pair->ends[0];
	}
	/* The verdict runs under the sender's lock, so its counters need no atomic operation. */
	from->sends++;
	from->sender = (__u32)bpf_get_current_pid_tgid();
	if (pair->state != BYPASS_ACTIVE && pair->state != BYPASS_STUCK)
		return SK_PASS;
	if (is_orphan(settings, from)) {
		found = BYPASS_STALE;
	} else if (is_unfit(settings, from, to, bytes) &&
		   __sync_val_compare_and_swap(&pair->state, BYPASS_ACTIVE, BYPASS_UNFIT) == BYPASS_ACTIVE) {
		found = from->obstacle ? from->obstacle : BYPASS_LARGE;
		tell(settings, &mark->key);
	} else {
		found = obstacle(settings, from, to, bytes);
	}
	/* Its reader would take this first. */
	if (pair->state == BYPASS_STUCK)
		found = BYPASS_NOTHING;
	if (found == BYPASS_NOTHING) {
		target.key = mark->key;
		target.role = !mark->role;
		/* As redirect_begins. */
		from->redirected_bytes += bytes;
		if (bpf_msg_redirect_hash(message, &bypass_members, &target, BPF_F_INGRESS) == SK_PASS) {
			from->redirected_messages++;
			from->burst_messages++;
			from->obstacle = BYPASS_NOTHING;
			capture(settings, message);
			return SK_PASS;
		}
		from->redirected_bytes -= bytes;
		found = BYPASS_HELPER;
	}
	from->obstacle = found;
	from->passed_bytes += bytes;
	from->passed_messages++;
	/* Only what goes over TCP takes room. */
	if (keeps_no_wait(from))
		send_off(settings, mark, pair, from, BYPASS_MIXES);
	if (found == BYPASS_FULL)
		from->full_messages++;
	capture(settings, message);
	return SK_PASS;
}

/*
 * Whether a thread waits for messages while another one sends. A member's recv(2) returns EAGAIN without a timeout when
 * it is woken for nothing (tcp_msg_wait_data, Linux 6.1 to 7.2), as by room for a send on the same socket.
 */
static __always_inline int is_duplex(struct bypass_end *end, __u32 thread)
{
	return end->waiter == thread && end->sender && end->sender != thread;
}

/* A recv(2) that waits as long as it takes has returned EAGAIN: a member's was woken for nothing. */
static __always_inline void look_at_wait(struct sock *sk)
{
	struct bypass_settings *settings = the_settings();
	struct bypass_mark *mark;
	struct bypass_pair *pair;

	if (!sk->sk_user_data || sk->sk_rcvtimeo != MAX_SCHEDULE_TIMEOUT)
		return;
	mark = bpf_sk_storage_get(&bypass_marks, sk, 0, 0);
	pair = mark ? pair_of(mark) : NULL;
	if (pair && settings)
		send_off(settings, mark, pair, mark->role == BYPASS_CLIENT ? &pair->ends[0] : &pair->ends[1], BYPASS_WOKEN);
}

/* Behind each recvmsg that returned something (sock_recvmsg_nosec, Linux 6.3). */
SEC("tp_btf/sock_recv_length")
int bypass_received(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	int length = ctx[1], flags = ctx[2];
	struct bypass_settings *settings;
	__u32 copied_seq, before;
	struct bypass_mark *mark;
	struct bypass_pair *pair;
	struct bypass_end *end;
	struct tcp_sock *tcp;
	__u64 current;

	if (flags & (MSG_PEEK | MSG_ERRQUEUE))
		return 0;
	if (length <= 0) {
		if (length == -EAGAIN && !(flags & MSG_DONTWAIT))
			look_at_wait(sk);
		return 0;
	}
	mark = bpf_sk_storage_get(&bypass_marks, sk, 0, 0);
	settings = the_settings();
	if (!settings)
		return 0;
	if (!mark) {
		tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
		if (tcp && tcp->segs_in >= FIRST_SEGMENTS)
			pair_up(sk, tcp, settings);
		return 0;
	}
	pair = pair_of(mark);
	if (!pair)
		return 0;
	/* Only those of TCP have a mark. */
	tcp = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));
	end = mark->role == BYPASS_CLIENT ? &pair->ends[0] : &pair->ends[1];
	if (flags & MSG_OOB) {
		end->traits |= BYPASS_URGENT;
		return 0;
	}
	if (flags & MSG_WAITALL)
		end->traits |= BYPASS_WAITALL;
	current = bpf_get_current_pid_tgid();
	end->process = current >> 32;
	if (!(flags & MSG_DONTWAIT) && is_duplex(end, (__u32)current))
		send_off(settings, mark, pair, end, BYPASS_THREADS);
	end->waiter = flags & MSG_DONTWAIT ? 0 : (__u32)current;
	/* Before the sum, so that what was redirected never looks read too early. */
	copied_seq = tcp->copied_seq;
	before = end->copied_seq;
	if (after(copied_seq, before) &&
	    __sync_val_compare_and_swap(&end->copied_seq, before, copied_seq) == before)
		__sync_fetch_and_add(&end->tcp_bytes, copied_seq - before);
	__sync_fetch_and_add(&end->received_bytes, length);
	/* One that two threads read from may miss one. */
	end->reads++;
	/* Bytes have left its queue without a recvmsg. */
	if (end->received_bytes < end->tcp_bytes)
		end->traits |= BYPASS_SPLICES;
	if (end->reads >= settings->least_reads && !pair->told && pair->present == 3 &&
	    !__sync_lock_test_and_set(&pair->told, 1))
		tell(settings, &mark->key);
	return 0;
}

/*
 * Behind each sendmsg (sock_sendmsg_nosec, Linux 6.3). What members send, bypass_send counts; but it is not called if there is no
 * room.
 */
SEC("tp_btf/sock_send_length")
int bypass_sent(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct bypass_settings *settings;
	int length = ctx[1];
	struct bypass_mark *mark;
	struct bypass_pair *pair;
	struct bypass_end *end;
	struct tcp_sock *tcp;

	if (length > 0 ? !!sk->sk_user_data : length != -EAGAIN)
		return 0;
	tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	settings = the_settings();
	if (!tcp || !settings || tcp->segs_in < FIRST_SEGMENTS)
		return 0;
	mark = bpf_sk_storage_get(&bypass_marks, sk, 0, 0);
	if (!mark) {
		/* Of those that read, bypass_received looks, when a call has returned all that has left the queue. */
		if (!tcp->data_segs_in)
			pair_up(sk, tcp, settings);
		return 0;
	}
	pair = pair_of(mark);
	if (!pair)
		return 0;
	end = mark->role == BYPASS_CLIENT ? &pair->ends[0] : &pair->ends[1];
	if (end->waiter && pair->state <= BYPASS_ACTIVE && (length < 0 || is_impatient()))
		send_off(settings, mark, pair, end, BYPASS_MIXES);
	if (length < 0)
		return 0;
	end->sender = (__u32)bpf_get_current_pid_tgid();
	__sync_fetch_and_add(&end->sends, 1);
	return 0;
}

/* In each recvmsg and splice(2) of a TCP socket, also of one that has nothing to read (tcp_read_sock). */
SEC("tp_btf/tcp_rcv_space_adjust")
int bypass_spliced(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct bypass_settings *settings;
	struct bypass_mark *mark;
	struct bypass_pair *pair;
	struct bypass_end *end;
	__u32 process, one = 1;

	mark = bpf_sk_storage_get(&bypass_marks, sk, 0, 0);
	if (!mark || !is_splice())
		return 0;
	pair = pair_of(mark);
	settings = the_settings();
	if (!pair || !settings)
		return 0;
	process = bpf_get_current_pid_tgid() >> 32;
	if (!bpf_map_lookup_elem(&bypass_splicers, &process)) {
		bpf_map_update_elem(&bypass_splicers, &process, &one, BPF_ANY);
		__sync_fetch_and_add(&settings->splicers, 1);
	}
	end = mark->role == BYPASS_CLIENT ? &pair->ends[0] : &pair->ends[1];
	end->traits |= BYPASS_SPLICES;
	if ((pair->state == BYPASS_ACTIVE || pair->state == BYPASS_UNFIT || pair->state == BYPASS_LEAVING) &&
	    has_unread(psock_of(BPF_CORE_READ(sk, sk_user_data)))) {
		pair->state = BYPASS_STUCK;
		tell(settings, &mark->key);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
