/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fields of kernel structures on the way from a function's argument to the addresses of its
 * socket. Only names and types count here; libbpf finds the offsets in the running kernel's BTF.
 */
#ifndef TRACE_KERNEL_H
#define TRACE_KERNEL_H

#include "trace.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
};

struct socket {
	struct sock *sk;
};

struct inode {
	unsigned short i_mode;
};

struct file {
	void *private_data;
	struct inode *f_inode;
};

struct kiocb {
	struct file *ki_filp;
};

struct io_kiocb {
	struct file *file;
};

struct work_struct {
	long data;
};

struct sk_psock {
	struct sock *sk;
	struct work_struct work;
};

struct sk_buff {
	struct sock *sk;
	unsigned int len;
	unsigned char *head;
	unsigned char *data;
	__u16 network_header;
	__be16 protocol;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct {
	char comm[TRACE_NAME_BYTES];
	struct files_struct *files;
};

#pragma clang attribute pop

#endif
