// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Records the functions of the kernel that a message of a watched connection goes through. User space
 * loads each of the two programs once per function, and says with the cookie of the attachment which
 * function it is and which of its arguments leads to the socket.
 *
 * A function is recorded
 * - if its socket, or the packet it handles, belongs to a watched connection;
 * - if it has no socket and a function that is recorded has called it;
 * - if it has no socket and runs in the process that is watched.
 * What a softirq does for other packets in the midst of all this is left out, with all that it calls.
 *
 * Each task has a stack of the functions in it that were entered and not left. The idle tasks share one
 * number, so theirs are told apart by their CPU.
 */
#include "trace_connection.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Functions in one another: some 60 are attached, and the deepest ways have 40 of them. */
#define DEPTH_MOST 64
/* Tasks that are in a recorded function at the same time. */
#define STACKS 1024

enum how {
	RECORDED = 1,
	MUTED = 2,
};

struct stack {
	__u32 depth;
	__u16 function[DEPTH_MOST];
	__u8 how[DEPTH_MOST];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STACKS);
	__type(key, __u64);
	__type(value, struct stack);
} stacks SEC(".maps");

static const struct stack empty;

/* A place on the stack. The barrier keeps the compiler from leaving out the limit that the verifier wants. */
static __always_inline __u32 place(__u32 depth)
{
	barrier_var(depth);
	return depth & (DEPTH_MOST - 1);
}

static __always_inline void record(struct trace_state *now, __u16 function, __u8 kind, __u64 result,
				   const struct connection *at)
{
	struct trace_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	__u64 task = bpf_get_current_pid_tgid();

	if (!event) {
		__sync_fetch_and_add(&now->lost, 1);
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->time_ns = bpf_ktime_get_ns();
	event->result = result;
	if (at) {
		__builtin_memcpy(event->local, at->local, sizeof(event->local));
		__builtin_memcpy(event->remote, at->remote, sizeof(event->remote));
		event->local_port = at->local_port;
		event->remote_port = at->remote_port;
		event->known = 1;
	}
	event->function = function;
	event->kind = kind;
	event->cpu = bpf_get_smp_processor_id();
	event->thread = task;
	event->process = task >> 32;
	bpf_get_current_comm(event->name, sizeof(event->name));
	/* User space looks when it is all over: a wake-up from within the scheduler would be unsafe. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

SEC("fentry")
int trace_entered(void *ctx)
{
	struct connection at = {};
	struct trace_settings *asked;
	__u64 cookie, argument = 0;
	struct trace_state *now;
	struct stack *stack;
	__u8 handle, how = 0, parent = 0;
	bool known = false;
	__u32 zero = 0, depth;
	__u64 key;

	now = bpf_map_lookup_elem(&state, &zero);
	if (!now || !now->on)
		return 0;
	asked = bpf_map_lookup_elem(&settings, &zero);
	if (!asked)
		return 0;
	cookie = bpf_get_attach_cookie(ctx);
	handle = (cookie >> TRACE_COOKIE_HANDLE_SHIFT) & TRACE_COOKIE_BYTE;
	key = task_key();
	stack = bpf_map_lookup_elem(&stacks, &key);
	if (stack) {
		depth = stack->depth;
		if (depth > 0 && depth <= DEPTH_MOST)
			parent = stack->how[place(depth - 1)];
	}
	if (handle != TRACE_NOTHING) {
		__u32 number = (cookie >> TRACE_COOKIE_ARGUMENT_SHIFT) & 0xf;

		bpf_get_func_arg(ctx, number, &argument);
		known = connection_of(handle, argument, &at);
	}
	if (known && is_watched(asked, &at))
		how = RECORDED;
	else if (known && handle == TRACE_SKB)
		how = MUTED;
	else if (parent & MUTED)
		how = MUTED;
	else if (parent & RECORDED)
		how = RECORDED;
	else if (!known && asked->process && !(cookie & TRACE_COOKIE_INNER) &&
		 bpf_get_current_pid_tgid() >> 32 == asked->process)
		how = RECORDED;
	if (!stack) {
		/* Nearly all of what the machine does ends here. */
		if (how != RECORDED)
			return 0;
		bpf_map_update_elem(&stacks, &key, &empty, BPF_NOEXIST);
		stack = bpf_map_lookup_elem(&stacks, &key);
		if (!stack) {
			__sync_fetch_and_add(&now->lost, 1);
			return 0;
		}
	}
	depth = stack->depth;
	/* The depth first: an interrupt before the next line uses the place after this one. */
	*(volatile __u32 *)&stack->depth = depth + 1;
	if (depth < DEPTH_MOST) {
		stack->function[place(depth)] = cookie & TRACE_COOKIE_FUNCTION;
		stack->how[place(depth)] = how;
	}
	if (how == RECORDED)
		record(now, cookie & TRACE_COOKIE_FUNCTION, TRACE_ENTERED, 0, known ? &at : NULL);
	return 0;
}

SEC("fexit")
int trace_left(void *ctx)
{
	__u64 key = task_key(), result = 0;
	struct trace_state *now;
	struct stack *stack;
	__u16 function;
	__u32 zero = 0;
	__u8 how = 0;
	__u32 depth;
	int i;

	now = bpf_map_lookup_elem(&state, &zero);
	if (!now || !now->on)
		return 0;
	stack = bpf_map_lookup_elem(&stacks, &key);
	if (!stack)
		return 0;
	function = bpf_get_attach_cookie(ctx) & TRACE_COOKIE_FUNCTION;
	depth = stack->depth;
	/* A function that was not seen leaving is still on top of this one. */
	for (i = 0; i < DEPTH_MOST; i++) {
		if (!depth)
			return 0;
		depth--;
		if (depth < DEPTH_MOST && stack->function[place(depth)] == function) {
			how = stack->how[place(depth)];
			break;
		}
	}
	if (i == DEPTH_MOST)
		return 0;
	*(volatile __u32 *)&stack->depth = depth;
	if (!depth)
		bpf_map_delete_elem(&stacks, &key);
	if (how == RECORDED) {
		bpf_get_func_ret(ctx, &result);
		record(now, function, TRACE_LEFT, result, NULL);
	}
	return 0;
}
