/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What trace.bpf.c and src/tracing.rs say to each other. */
#ifndef TRACE_H
#define TRACE_H

enum trace_limit {
	/* Connections that are watched at a time. */
	TRACE_FILTERS = 8,
	/* Functions in one another that a stack has at most (PERF_MAX_STACK_DEPTH allows more). */
	TRACE_FRAMES = 64,
	/* Names that are asked for at a time, and 64-bit words of one: KSYM_NAME_LEN is longer, the names are not. */
	TRACE_NAMES = 1024,
	TRACE_SYMBOL_WORDS = 7,
	/* Bytes of a task's name with its final zero (TASK_COMM_LEN). */
	TRACE_NAME_BYTES = 16,
};

/* What leads from an argument of a function to the socket. */
enum trace_handle {
	TRACE_NOTHING,
	TRACE_SOCK,	/* struct sock */
	TRACE_PSOCK,	/* struct sk_psock */
	TRACE_SOCKET,	/* struct socket */
	TRACE_SKB,	/* struct sk_buff */
	TRACE_FILE,	/* struct file */
	TRACE_KIOCB,	/* struct kiocb */
	TRACE_IO_KIOCB,	/* struct io_kiocb */
	TRACE_WORK,	/* the struct work_struct of a struct sk_psock */
	TRACE_FD,	/* a descriptor of the current task */
};

/* The bits of a program's cookie. */
enum trace_cookie {
	TRACE_COOKIE_FUNCTION = 0xffff,
	TRACE_COOKIE_HANDLE_SHIFT = 16,
	TRACE_COOKIE_ARGUMENT_SHIFT = 24,
	TRACE_COOKIE_BYTE = 0xff,
	/* The function is called beside the way of a message, too: without one there it is not recorded. */
	TRACE_COOKIE_INNER = 1 << 30,
};

enum trace_kind {
	TRACE_ENTERED,
	TRACE_LEFT,
};

/* One end of a connection. IPv4 addresses are mapped into IPv6. */
struct trace_end {
	__u8 address[16];
	__u16 port;
	__u8 any_address;
	__u8 any_port;
};

/* A connection between these two, whichever of them is here. */
struct trace_filter {
	struct trace_end ends[2];
};

struct trace_settings {
	struct trace_filter filters[TRACE_FILTERS];
	__u32 count;
	/* Functions without a socket are recorded in tasks of this process; 0: of none. */
	__u32 process;
};

struct trace_state {
	__u32 on;
	__u32 lost;	/* events for which there was no room */
	__u32 marked;	/* tasks that are at work for a watched connection, of trace_stacks.bpf.c */
	__u32 reserved;
};

struct trace_event {
	__u64 time_ns;		/* CLOCK_MONOTONIC */
	__u64 result;		/* what the function has returned, when it has left */
	__u8 local[16];		/* the addresses of the socket, mapped into IPv6 */
	__u8 remote[16];
	__u16 local_port;	/* both are zero where no socket is known */
	__u16 remote_port;
	__u16 function;
	__u8 kind;		/* enum trace_kind */
	__u8 known;		/* a socket is known */
	__u32 cpu;
	__u32 thread;		/* 0: the idle task of the CPU */
	__u32 process;
	__u32 call;		/* the same within a system call, of trace_stack.h */
	__u8 name[TRACE_NAME_BYTES];
};

/* Where trace_stacks.bpf.c looks. Its programs have these names, too, with trace_ before them. */
enum trace_point {
	TRACE_SYS_ENTER,
	TRACE_SYS_EXIT,
	TRACE_SOFTIRQ_ENTRY,
	TRACE_SOFTIRQ_EXIT,
	TRACE_WORKQUEUE_EXECUTE_START,
	TRACE_WORKQUEUE_EXECUTE_END,
	TRACE_WORKQUEUE_QUEUE_WORK,
	TRACE_SOCK_SEND_LENGTH,
	TRACE_SOCK_RECV_LENGTH,
	TRACE_SK_DATA_READY,
	TRACE_INET_SOCK_SET_STATE,
	TRACE_TCP_PROBE,
	TRACE_TCP_RCV_SPACE_ADJUST,
	TRACE_TCP_SENDMSG_LOCKED,
	TRACE_NET_DEV_QUEUE,
	TRACE_NET_DEV_START_XMIT,
	TRACE_NET_DEV_XMIT,
	TRACE_NETIF_RX,
	TRACE_NETIF_RECEIVE_SKB,
	TRACE_NAPI_POLL,
	TRACE_CONSUME_SKB,
	TRACE_KFREE_SKB,
	TRACE_SKB_COPY_DATAGRAM_IOVEC,
	TRACE_SCHED_WAKING,
	TRACE_KMEM_CACHE_ALLOC,
	TRACE_KMEM_CACHE_FREE,
	TRACE_KMALLOC,
	TRACE_KFREE,
	TRACE_MM_PAGE_ALLOC,
	TRACE_IO_URING_SUBMIT_REQ,
	TRACE_IO_URING_COMPLETE,
	TRACE_IO_URING_POLL_ARM,
	TRACE_IO_URING_TASK_ADD,
	TRACE_FIB_TABLE_LOOKUP,
	TRACE_TIMER_START,
	TRACE_POINTS,
};

/* What a task was doing at a tracepoint. */
struct trace_stack {
	struct trace_event event;	/* its function is the enum trace_point */
	__u8 other[TRACE_NAME_BYTES];	/* sched_waking: who is woken */
	__u64 frames[TRACE_FRAMES];	/* the innermost first, with zeroes after the last */
};

/* A place in the kernel, and the name of the function there. */
struct trace_symbol {
	__u64 address;
	__u64 name[TRACE_SYMBOL_WORDS];	/* letters, and a zero */
};

#endif
