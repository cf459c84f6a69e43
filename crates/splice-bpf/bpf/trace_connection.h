/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which connection an argument of a kernel function belongs to, and whether that one is watched. For
 * trace.bpf.c and trace_stacks.bpf.c, with the maps that both have.
 */
#ifndef TRACE_CONNECTION_H
#define TRACE_CONNECTION_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#include "trace.h"
#include "trace_kernel.h"

#define FAMILY_IPV4 2	/* AF_INET */
#define FAMILY_IPV6 10	/* AF_INET6 */
#define IPV4_BYTES 20	/* of a header without options */
#define IPV6_BYTES 40
#define UDP_BYTES 8
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
/* From linux/stat.h */
#define TYPE_MASK 0170000
#define TYPE_SOCKET 0140000

struct connection {
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trace_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trace_state);
} state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 * 1024 * 1024);
} events SEC(".maps");

static __always_inline void map_ipv4(__u8 *into, __be32 address)
{
	__builtin_memset(into, 0, 10);
	into[10] = 0xff;
	into[11] = 0xff;
	__builtin_memcpy(into + 12, &address, 4);
}

static __always_inline bool of_sock(struct sock *sk, struct connection *found)
{
	__u16 family;

	if (!sk)
		return false;
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (family == FAMILY_IPV4) {
		map_ipv4(found->local, BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr));
		map_ipv4(found->remote, BPF_CORE_READ(sk, __sk_common.skc_daddr));
	} else if (family == FAMILY_IPV6 && bpf_core_field_exists(sk->__sk_common.skc_v6_daddr)) {
		BPF_CORE_READ_INTO(&found->local, sk, __sk_common.skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&found->remote, sk, __sk_common.skc_v6_daddr);
	} else {
		return false;
	}
	found->local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
	found->remote_port = bpf_ntohs(BPF_CORE_READ(sk, __sk_common.skc_dport));
	return true;
}

/* A packet on its way in has no socket yet: its headers tell. The receiver is the local end. */
static __always_inline bool of_headers(struct sk_buff *skb, struct connection *found)
{
	unsigned char *at = BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header);
	__u16 protocol = BPF_CORE_READ(skb, protocol);
	__u8 header[IPV6_BYTES];
	__be16 ports[2];
	__be32 address;

	if (protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_probe_read_kernel(header, IPV4_BYTES, at) ||
		    (header[9] != PROTOCOL_TCP && header[9] != PROTOCOL_UDP))
			return false;
		__builtin_memcpy(&address, header + 16, 4);
		map_ipv4(found->local, address);
		__builtin_memcpy(&address, header + 12, 4);
		map_ipv4(found->remote, address);
		at += (header[0] & 0xf) * 4;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_probe_read_kernel(header, IPV6_BYTES, at) ||
		    (header[6] != PROTOCOL_TCP && header[6] != PROTOCOL_UDP))
			return false;
		__builtin_memcpy(found->remote, header + 8, 16);
		__builtin_memcpy(found->local, header + 24, 16);
		at += IPV6_BYTES;
	} else {
		return false;
	}
	if (bpf_probe_read_kernel(ports, sizeof(ports), at))
		return false;
	found->remote_port = bpf_ntohs(ports[0]);
	found->local_port = bpf_ntohs(ports[1]);
	return true;
}

/*
 * The bytes after the headers, whatever the packet is at present; 0 without any. The length of a super-packet
 * is not in its IP header (BIG TCP).
 */
static __always_inline __u32 payload_bytes(struct sk_buff *skb)
{
	unsigned char *at = BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header);
	__u16 protocol = BPF_CORE_READ(skb, protocol);
	__s64 before = at - BPF_CORE_READ(skb, data);
	__u32 headers, bytes = BPF_CORE_READ(skb, len);
	__u8 version, kind, words;

	if (bpf_probe_read_kernel(&version, 1, at))
		return 0;
	if (protocol == bpf_htons(ETH_P_IP)) {
		headers = (version & 0xf) * 4;
		if (bpf_probe_read_kernel(&kind, 1, at + 9))
			return 0;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		headers = IPV6_BYTES;
		if (bpf_probe_read_kernel(&kind, 1, at + 6))
			return 0;
	} else {
		return 0;
	}
	if (kind == PROTOCOL_UDP)
		headers += UDP_BYTES;
	else if (kind == PROTOCOL_TCP && !bpf_probe_read_kernel(&words, 1, at + headers + 12))
		headers += (words >> 4) * 4;
	else
		return 0;
	before += headers;
	return before > 0 && bytes > before ? bytes - before : 0;
}

static __always_inline struct sock *sock_of_file(struct file *file)
{
	struct socket *socket;

	if (!file || (BPF_CORE_READ(file, f_inode, i_mode) & TYPE_MASK) != TYPE_SOCKET)
		return NULL;
	socket = BPF_CORE_READ(file, private_data);
	return BPF_CORE_READ(socket, sk);
}

static __always_inline struct file *file_of(__u32 descriptor)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file *file = NULL;

	if (descriptor < BPF_CORE_READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + descriptor);
	return file;
}

/* The connection that a function works on, by the argument that leads to it. */
static __always_inline bool connection_of(__u8 handle, __u64 argument, struct connection *found)
{
	void *at = (void *)argument;
	struct sock *sk;

	switch (handle) {
	case TRACE_SOCK:
		return of_sock(at, found);
	case TRACE_PSOCK:
		return of_sock(BPF_CORE_READ((struct sk_psock *)at, sk), found);
	case TRACE_WORK:
		at -= bpf_core_field_offset(struct sk_psock, work);
		return of_sock(BPF_CORE_READ((struct sk_psock *)at, sk), found);
	case TRACE_SOCKET:
		return of_sock(BPF_CORE_READ((struct socket *)at, sk), found);
	case TRACE_SKB:
		sk = BPF_CORE_READ((struct sk_buff *)at, sk);
		return of_sock(sk, found) || of_headers(at, found);
	case TRACE_FILE:
		return of_sock(sock_of_file(at), found);
	case TRACE_KIOCB:
		return of_sock(sock_of_file(BPF_CORE_READ((struct kiocb *)at, ki_filp)), found);
	case TRACE_IO_KIOCB:
		return of_sock(sock_of_file(BPF_CORE_READ((struct io_kiocb *)at, file)), found);
	case TRACE_FD:
		return of_sock(sock_of_file(file_of(argument)), found);
	default:
		return false;
	}
}

static __always_inline bool same_address(const __u8 *one, const __u8 *other)
{
	const __u64 *a = (const void *)one, *b = (const void *)other;

	return a[0] == b[0] && a[1] == b[1];
}

static __always_inline bool is_end(const struct trace_end *end, const __u8 *address, __u16 port)
{
	return (end->any_port || end->port == port) &&
	       (end->any_address || same_address(end->address, address));
}

static __always_inline bool is_watched(const struct trace_settings *asked, const struct connection *at)
{
	__u32 i;

	for (i = 0; i < TRACE_FILTERS && i < asked->count; i++) {
		const struct trace_end *ends = asked->filters[i].ends;

		if (is_end(&ends[0], at->local, at->local_port) &&
		    is_end(&ends[1], at->remote, at->remote_port))
			return true;
		if (is_end(&ends[1], at->local, at->local_port) &&
		    is_end(&ends[0], at->remote, at->remote_port))
			return true;
	}
	return false;
}

static __always_inline bool is_port(const struct trace_end *end, __u16 port)
{
	return end->any_port || end->port == port;
}

static __always_inline bool is_watched_port(const struct trace_settings *asked, __u16 one, __u16 other)
{
	__u32 i;

	for (i = 0; i < TRACE_FILTERS && i < asked->count; i++) {
		const struct trace_end *ends = asked->filters[i].ends;

		if ((is_port(&ends[0], one) && is_port(&ends[1], other)) ||
		    (is_port(&ends[0], other) && is_port(&ends[1], one)))
			return true;
	}
	return false;
}

static __always_inline __u64 task_key(void)
{
	__u32 thread = bpf_get_current_pid_tgid();

	return thread ? thread : (1ULL << 32) | bpf_get_smp_processor_id();
}

#endif
