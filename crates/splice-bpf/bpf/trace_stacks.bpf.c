// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Records what the kernel is doing for a message of a watched connection, for kernels that let no
 * program be attached to their functions: at each tracepoint on the way, the stack of functions.
 *
 * A tracepoint with a socket or a packet of a watched connection marks its task. Until the end of what
 * the task does there (a system call, an item of work, a softirq), every tracepoint is recorded, but
 * for those of other packets. A system call of the watched process is marked from its beginning.
 */
#include "trace_connection.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Tasks that are marked at the same time. */
#define MARKS 1024

struct mark {
	__u32 softirq;	/* it ends with the softirq, not with what the task itself does */
	__u32 foreign;	/* the softirq handles a packet of others at present */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MARKS);
	__type(key, __u64);
	__type(value, struct mark);
} marks SEC(".maps");

/* Whether a CPU runs softirqs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} softirqs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TRACE_NAMES);
	__type(key, __u32);
	__type(value, struct trace_symbol);
} symbols SEC(".maps");

static __always_inline int record(void *ctx, struct trace_state *now, __u32 point, __u64 result,
			     struct connection *at, struct task_struct *other)
{
	struct trace_stack *stack = bpf_ringbuf_reserve(&events, sizeof(*stack), 0);
	__u64 task = bpf_get_current_pid_tgid();

	if (!stack) {
		__sync_fetch_and_add(&now->lost, 1);
		return 0;
	}
	__builtin_memset(stack, 0, sizeof(*stack));
	stack->event.time_ns = bpf_ktime_get_ns();
	stack->event.result = result;
	if (at) {
		__builtin_memcpy(stack->event.local, at->local, sizeof(at->local));
		__builtin_memcpy(stack->event.remote, at->remote, sizeof(at->remote));
		stack->event.local_port = at->local_port;
		stack->event.remote_port = at->remote_port;
		stack->event.known = 1;
	}
	stack->event.function = point;
	stack->event.cpu = bpf_get_smp_processor_id();
	stack->event.thread = task;
	stack->event.process = task >> 32;
	bpf_get_current_comm(stack->event.name, sizeof(stack->event.name));
	if (other)
		BPF_CORE_READ_STR_INTO(&stack->other, other, comm);
	bpf_get_stack(ctx, stack->frames, sizeof(stack->frames), 0);
	/* User space looks when it is all over: a wake-up from within the scheduler would be unsafe. */
	bpf_ringbuf_submit(stack, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Threads of the watched process, except for its first one, which only waits for the others. */
static __always_inline bool is_own(const struct trace_settings *asked)
{
	__u64 task = bpf_get_current_pid_tgid();

	return asked->process && task >> 32 == asked->process && (__u32)task != asked->process;
}

/*
 * Whether a socket may be watched. What nearly all of the host's sockets and packets meet: it reads the fields themselves,
 * which a program at a tracepoint may, and costs a tenth of the comparison of addresses.
 */
static __always_inline bool may_be_watched(const struct trace_settings *asked, struct sock *sk)
{
	return is_watched_port(asked, sk->__sk_common.skc_num, bpf_ntohs(sk->__sk_common.skc_dport));
}

/* The same of a packet, by its socket or its headers. */
static __always_inline bool may_have_watched(const struct trace_settings *asked, struct sk_buff *skb)
{
	unsigned char *at = skb->head + skb->network_header;
	__u16 protocol = skb->protocol;
	struct sock *sk = skb->sk;
	__u8 headers[IPV6_BYTES + 4];
	__be16 ports[2];

	if (sk)
		return may_be_watched(asked, sk);
	if (protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_probe_read_kernel(headers, IPV4_BYTES + 4, at))
			return false;
		/* With options, the ports are elsewhere. */
		if ((headers[0] & 0xf) * 4 != IPV4_BYTES)
			return true;
		__builtin_memcpy(ports, headers + IPV4_BYTES, sizeof(ports));
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_probe_read_kernel(headers, IPV6_BYTES + 4, at))
			return false;
		__builtin_memcpy(ports, headers + IPV6_BYTES, sizeof(ports));
	} else {
		return false;
	}
	return is_watched_port(asked, bpf_ntohs(ports[0]), bpf_ntohs(ports[1]));
}

static __always_inline void unmark(struct trace_state *now, __u64 key)
{
	if (!bpf_map_delete_elem(&marks, &key))
		__sync_fetch_and_add(&now->marked, -1);
}

static __always_inline int seen(void *ctx, __u32 point, __u8 handle, __u64 argument, __u64 result,
				struct task_struct *other)
{
	struct mark begun = {}, *mark;
	struct trace_settings *asked;
	struct connection at = {};
	struct trace_state *now;
	__u32 zero = 0, *softirq;
	bool known = false;
	__u64 key;

	softirq = bpf_map_lookup_elem(&softirqs, &zero);
	now = bpf_map_lookup_elem(&state, &zero);
	asked = bpf_map_lookup_elem(&settings, &zero);
	if (!now || !now->on || !asked || !softirq)
		return 0;
	if (point == TRACE_SOFTIRQ_ENTRY)
		*softirq = 1;
	/* What nearly all of the host's work meets: nothing concerns a watched connection at present. */
	if (!now->marked && handle == TRACE_NOTHING && !(point == TRACE_SYS_ENTER && asked->process)) {
		if (point == TRACE_SOFTIRQ_EXIT)
			*softirq = 0;
		return 0;
	}
	if (!now->marked && handle == TRACE_SOCK && !may_be_watched(asked, (void *)argument))
		return 0;
	if (!now->marked && handle == TRACE_SKB && !may_have_watched(asked, (void *)argument))
		return 0;
	key = task_key();
	mark = bpf_map_lookup_elem(&marks, &key);
	if (handle != TRACE_NOTHING)
		known = connection_of(handle, argument, &at);
	if (known && is_watched(asked, &at)) {
		if (mark)
			mark->foreign = 0;
	} else if (known && handle == TRACE_SKB) {
		if (mark)
			mark->foreign = *softirq;
		goto end;
	} else if (mark) {
		if (mark->foreign)
			goto end;
		/* A socket of others that what happens here leads to. */
	} else if (point != TRACE_SYS_ENTER || !is_own(asked)) {
		goto end;
	}
	if (!mark) {
		begun.softirq = *softirq;
		if (!bpf_map_update_elem(&marks, &key, &begun, BPF_NOEXIST))
			__sync_fetch_and_add(&now->marked, 1);
	}
	/* Not of a packet of others, which pays nothing for that. */
	if (handle == TRACE_SKB)
		result = payload_bytes((void *)argument);
	record(ctx, now, point, result, known ? &at : NULL, other);
end:
	if (point == TRACE_SOFTIRQ_EXIT) {
		*softirq = 0;
		if (mark && mark->softirq)
			unmark(now, key);
		else if (mark)
			mark->foreign = 0;
	}
	if (mark && (point == TRACE_SYS_EXIT || point == TRACE_WORKQUEUE_EXECUTE_END))
		unmark(now, key);
	return 0;
}

/* A tracepoint, which of its arguments leads to a socket, and which one is worth to be told. */
#define POINT(NUMBER, NAME, HANDLE, ARGUMENT, RESULT, OTHER)                                             \
	SEC("tp_btf/" #NAME)                                                                     \
	int trace_##NAME(__u64 *ctx)                                                             \
	{                                                                                        \
		return seen(ctx, TRACE_##NUMBER, HANDLE, ARGUMENT, RESULT, (void *)(OTHER)); \
	}

POINT(SYS_ENTER, sys_enter, TRACE_NOTHING, 0, ctx[1], 0)
POINT(SYS_EXIT, sys_exit, TRACE_NOTHING, 0, ctx[1], 0)
POINT(SOFTIRQ_ENTRY, softirq_entry, TRACE_NOTHING, 0, 0, 0)
POINT(SOFTIRQ_EXIT, softirq_exit, TRACE_NOTHING, 0, 0, 0)
POINT(WORKQUEUE_EXECUTE_START, workqueue_execute_start, TRACE_NOTHING, 0, 0, 0)
POINT(WORKQUEUE_EXECUTE_END, workqueue_execute_end, TRACE_NOTHING, 0, 0, 0)
POINT(WORKQUEUE_QUEUE_WORK, workqueue_queue_work, TRACE_NOTHING, 0, 0, 0)
POINT(SOCK_SEND_LENGTH, sock_send_length, TRACE_SOCK, ctx[0], (int)ctx[1], 0)
POINT(SOCK_RECV_LENGTH, sock_recv_length, TRACE_SOCK, ctx[0], (int)ctx[1], 0)
POINT(SK_DATA_READY, sk_data_ready, TRACE_SOCK, ctx[0], 0, 0)
POINT(INET_SOCK_SET_STATE, inet_sock_set_state, TRACE_SOCK, ctx[0], (int)ctx[2], 0)
POINT(TCP_PROBE, tcp_probe, TRACE_SOCK, ctx[0], 0, 0)
POINT(TCP_RCV_SPACE_ADJUST, tcp_rcv_space_adjust, TRACE_SOCK, ctx[0], 0, 0)
POINT(TCP_SENDMSG_LOCKED, tcp_sendmsg_locked, TRACE_SOCK, ctx[0], 0, 0)
POINT(NET_DEV_QUEUE, net_dev_queue, TRACE_SKB, ctx[0], 0, 0)
POINT(NET_DEV_START_XMIT, net_dev_start_xmit, TRACE_SKB, ctx[0], 0, 0)
POINT(NET_DEV_XMIT, net_dev_xmit, TRACE_SKB, ctx[0], 0, 0)
POINT(NETIF_RX, netif_rx, TRACE_SKB, ctx[0], 0, 0)
POINT(NETIF_RECEIVE_SKB, netif_receive_skb, TRACE_SKB, ctx[0], 0, 0)
POINT(NAPI_POLL, napi_poll, TRACE_NOTHING, 0, 0, 0)
POINT(CONSUME_SKB, consume_skb, TRACE_SKB, ctx[0], 0, 0)
POINT(KFREE_SKB, kfree_skb, TRACE_SKB, ctx[0], 0, 0)
POINT(SKB_COPY_DATAGRAM_IOVEC, skb_copy_datagram_iovec, TRACE_SKB, ctx[0], 0, 0)
POINT(SCHED_WAKING, sched_waking, TRACE_NOTHING, 0, 0, ctx[0])
POINT(KMEM_CACHE_ALLOC, kmem_cache_alloc, TRACE_NOTHING, 0, 0, 0)
POINT(KMEM_CACHE_FREE, kmem_cache_free, TRACE_NOTHING, 0, 0, 0)
POINT(KMALLOC, kmalloc, TRACE_NOTHING, 0, 0, 0)
POINT(KFREE, kfree, TRACE_NOTHING, 0, 0, 0)
POINT(MM_PAGE_ALLOC, mm_page_alloc, TRACE_NOTHING, 0, 0, 0)
POINT(IO_URING_SUBMIT_REQ, io_uring_submit_req, TRACE_IO_KIOCB, ctx[0], 0, 0)
POINT(IO_URING_COMPLETE, io_uring_complete, TRACE_NOTHING, 0, 0, 0)
POINT(IO_URING_POLL_ARM, io_uring_poll_arm, TRACE_IO_KIOCB, ctx[0], 0, 0)
POINT(IO_URING_TASK_ADD, io_uring_task_add, TRACE_IO_KIOCB, ctx[0], 0, 0)
POINT(FIB_TABLE_LOOKUP, fib_table_lookup, TRACE_NOTHING, 0, 0, 0)
POINT(TIMER_START, timer_start, TRACE_NOTHING, 0, 0, 0)

/* Names the functions at the addresses of `symbols`, up to the first that is zero. */
SEC("syscall")
int trace_name(void *ctx)
{
	struct trace_symbol *symbol;
	__u32 i, key;

	(void)ctx;
	for (i = 0; i < TRACE_NAMES; i++) {
		key = i;
		symbol = bpf_map_lookup_elem(&symbols, &key);
		if (!symbol || !symbol->address)
			break;
		BPF_SNPRINTF((char *)symbol->name, sizeof(symbol->name), "%ps", symbol->address);
	}
	return 0;
}
