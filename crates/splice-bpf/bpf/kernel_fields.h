/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few fields of kernel structures that the programs read. The offsets are put in when the
 * program is loaded, from the running kernel's BTF, so only the names have to be right.
 */
#ifndef KERNEL_FIELDS_H
#define KERNEL_FIELDS_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock {
	int sk_sndbuf;
	int sk_wmem_queued;
	void *sk_user_data;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 write_seq;
	__u32 copied_seq;
	__u32 rcv_nxt;
	__u32 rcv_wnd;
};

struct sk_buff {
	char cb[48];
};

struct tcp_skb_cb {
	__u32 seq;
};

/* The place of a stream parser's frame in its skb. */
struct strp_msg {
	int full_len;
	int offset;
};

struct _strp_msg {
	struct strp_msg strp;
};

struct sk_skb_cb {
	struct _strp_msg strp;
};

#pragma clang attribute pop

#endif
