/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stack of functions at a tracepoint. For trace_stacks.bpf.c and trace_live.bpf.c; each has its own `met`, which decides
 * what is recorded.
 */
#ifndef TRACE_STACK_H
#define TRACE_STACK_H

#include "trace_connection.h"

/* Of `struct pt_regs` on x86-64, which has the fewest. */
#define REGISTERS 21

/*
 * Tells one system call of a task from the next: the registers with which it has entered the kernel. Two calls from one
 * place with the same arguments are alike.
 */
static __always_inline __u32 system_call(void)
{
	struct pt_regs *entered = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	__u64 registers[REGISTERS];
	__u64 sum = 0;
	int i;

	if (bpf_probe_read_kernel(registers, sizeof(registers), entered))
		return 0;
	/* Those of the result, on AArch64 and on x86-64: sys_exit has it already. */
	for (i = 0; i < REGISTERS; i++)
		if (i != 0 && i != 10)
			sum = sum * 31 + registers[i];
	return sum ^ sum >> 32;
}

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
	stack->event.call = system_call();
	bpf_get_current_comm(stack->event.name, sizeof(stack->event.name));
	if (other)
		BPF_CORE_READ_STR_INTO(&stack->other, other, comm);
	bpf_get_stack(ctx, stack->frames, sizeof(stack->frames), 0);
	/* User space looks when it is all over: a wake-up from within the scheduler would be unsafe. */
	bpf_ringbuf_submit(stack, BPF_RB_NO_WAKEUP);
	return 0;
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

/* A tracepoint, which of its arguments leads to a socket, and which one is worth to be told. */
#define POINT(NUMBER, NAME, HANDLE, ARGUMENT, RESULT, OTHER)                                             \
	SEC("tp_btf/" #NAME)                                                                     \
	int trace_##NAME(__u64 *ctx)                                                             \
	{                                                                                        \
		return met(ctx, TRACE_##NUMBER, HANDLE, ARGUMENT, RESULT, (void *)(OTHER)); \
	}

#endif
