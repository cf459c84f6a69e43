// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Catches the TCP connections of a control group when they become ESTABLISHED, those that a filter names: puts each
 * into a map and tells user space of it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "catcher.h"
#include "catcher_maps.h"

#define AF_INET 2
#define AF_INET6 10

const volatile struct catcher_filter filter SEC(".rodata.filter");

/* Connections that user space has not taken yet. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__uint(value_size, sizeof(struct caught_connection));
} news SEC(".maps");

/* Wakes user space; what is in it does not matter. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} calls SEC(".maps");

/* How many connections were not caught, since a map was full. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} missed SEC(".maps");

static __always_inline void miss(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&missed, &zero);

	if (count)
		__sync_fetch_and_add(count, 1);
}

/* Whether an address is the one that the filter names. */
static __always_inline int is_named(const __u8 *address, int is_ipv6, const volatile __u32 *named)
{
	const __u32 *word = (const __u32 *)address;

	if (!is_ipv6)
		return !named[0] && !named[1] && named[2] == bpf_htonl(0xffff) && named[3] == word[0];
	return named[0] == word[0] && named[1] == word[1] && named[2] == word[2] && named[3] == word[3];
}

static __always_inline int passes(const struct caught_connection *connection)
{
	if (filter.local_port && filter.local_port != connection->local_port)
		return 0;
	if (filter.remote_port && filter.remote_port != connection->remote_port)
		return 0;
	if (filter.has_local && !is_named(connection->local, connection->is_ipv6, filter.local))
		return 0;
	return !filter.has_remote || is_named(connection->remote, connection->is_ipv6, filter.remote);
}

SEC("sockops")
int catch(struct bpf_sock_ops *skops)
{
	struct caught_connection connection = {};
	__u32 call = 0, *word;

	if (skops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    skops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	connection.cookie = bpf_get_socket_cookie(skops);
	connection.is_active = skops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB;
	connection.is_ipv6 = skops->family == AF_INET6;
	connection.local_port = skops->local_port;
	connection.remote_port = bpf_ntohl(skops->remote_port);
	word = (__u32 *)connection.local;
	if (connection.is_ipv6) {
		word[0] = skops->local_ip6[0];
		word[1] = skops->local_ip6[1];
		word[2] = skops->local_ip6[2];
		word[3] = skops->local_ip6[3];
		word = (__u32 *)connection.remote;
		word[0] = skops->remote_ip6[0];
		word[1] = skops->remote_ip6[1];
		word[2] = skops->remote_ip6[2];
		word[3] = skops->remote_ip6[3];
	} else {
		word[0] = skops->local_ip4;
		word = (__u32 *)connection.remote;
		word[0] = skops->remote_ip4;
	}
	if (!passes(&connection))
		return 1;
	if (bpf_sock_hash_update(skops, &caught, &connection.cookie, BPF_NOEXIST)) {
		miss();
		return 1;
	}
	if (bpf_map_push_elem(&news, &connection, 0))
		miss();
	bpf_ringbuf_output(&calls, &call, sizeof(call), 0);
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
