// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Records what the kernel is doing for a message of a watched connection, for kernels that let no
 * program be attached to their functions: at each tracepoint on the way, the stack of functions.
 *
 * A tracepoint with a socket or a packet of a watched connection marks its task. Until the end of what
 * the task does there (a system call, an item of work, a softirq), every tracepoint is recorded, but
 * for those of other packets. A system call of the watched process is marked from its beginning.
 */
#include "trace_stack.h"

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

/* Threads of the watched process, except for its first one, which only waits for the others. */
static __always_inline bool is_own(const struct trace_settings *asked)
{
	__u64 task = bpf_get_current_pid_tgid();

	return asked->process && task >> 32 == asked->process && (__u32)task != asked->process;
}

static __always_inline void unmark(struct trace_state *now, __u64 key)
{
	if (!bpf_map_delete_elem(&marks, &key))
		__sync_fetch_and_add(&now->marked, -1);
}

static __always_inline int met(void *ctx, __u32 point, __u8 handle, __u64 argument, __u64 result,
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

#include "trace_name.h"
