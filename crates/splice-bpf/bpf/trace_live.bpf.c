// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Records what the kernel is doing for a message of a watched connection, beside connections of others, which pay for
 * each tracepoint that they meet: the way to a program costs twice what the program does for them. There are fewer of
 * them than in trace_stacks.bpf.c, four for a segment of TCP from one socket to another: net_dev_queue, netif_receive_skb,
 * sched_waking and tcp_rcv_space_adjust. Datagrams have sock_recv_length instead of the last one.
 *
 * A tracepoint with a socket or a packet of a watched connection is recorded, and opens a window for its task on its CPU.
 * One of others closes the window. What has no socket, a wake-up or an item of work, is recorded within a window of its
 * task. That may be too much: user space leaves out what no function called that is at work on a watched socket.
 */
#include "trace_stack.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The task that works on a watched connection on this CPU, as `task_key` has it; 0: none. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} windows SEC(".maps");

static __always_inline bool is_close(const struct trace_settings *asked, __u8 handle, __u64 argument)
{
	if (handle == TRACE_SOCK)
		return may_be_watched(asked, (void *)argument);
	return may_have_watched(asked, (void *)argument);
}

static __always_inline int met(void *ctx, __u32 point, __u8 handle, __u64 argument, __u64 result,
			       struct task_struct *other)
{
	struct trace_settings *asked;
	struct connection at = {};
	struct trace_state *now;
	__u32 zero = 0;
	__u64 *window;

	now = bpf_map_lookup_elem(&state, &zero);
	if (!now || !now->on)
		return 0;
	window = bpf_map_lookup_elem(&windows, &zero);
	if (!window)
		return 0;
	if (handle == TRACE_NOTHING) {
		/* What nearly all of the host's work meets. */
		if (!*window || *window != task_key())
			return 0;
		return record(ctx, now, point, result, NULL, other);
	}
	asked = bpf_map_lookup_elem(&settings, &zero);
	if (!asked)
		return 0;
	if (!is_close(asked, handle, argument) || !connection_of(handle, argument, &at) || !is_watched(asked, &at)) {
		if (*window)
			*window = 0;
		return 0;
	}
	*window = task_key();
	if (handle == TRACE_SKB)
		result = payload_bytes((void *)argument);
	return record(ctx, now, point, result, &at, other);
}

POINT(SOCK_RECV_LENGTH, sock_recv_length, TRACE_SOCK, ctx[0], (int)ctx[1], 0)
POINT(INET_SOCK_SET_STATE, inet_sock_set_state, TRACE_SOCK, ctx[0], (int)ctx[2], 0)
POINT(TCP_RCV_SPACE_ADJUST, tcp_rcv_space_adjust, TRACE_SOCK, ctx[0], 0, 0)
POINT(NET_DEV_QUEUE, net_dev_queue, TRACE_SKB, ctx[0], 0, 0)
POINT(NETIF_RECEIVE_SKB, netif_receive_skb, TRACE_SKB, ctx[0], 0, 0)
POINT(KFREE_SKB, kfree_skb, TRACE_SKB, ctx[0], 0, 0)
POINT(SCHED_WAKING, sched_waking, TRACE_NOTHING, 0, 0, ctx[0])
POINT(WORKQUEUE_QUEUE_WORK, workqueue_queue_work, TRACE_NOTHING, 0, 0, 0)
POINT(WORKQUEUE_EXECUTE_END, workqueue_execute_end, TRACE_NOTHING, 0, 0, 0)

#include "trace_name.h"
