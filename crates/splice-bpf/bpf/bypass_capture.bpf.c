// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Copies messages of members for user space. bypass_send ends in this program while somebody captures; it has decided where
 * the message goes, and counted it. It runs under the lock of the sending socket, so what is read of that is exact.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "bypass.h"
#include "bypass_maps.h"
#include "lib/tcp.h"

/* User space looks every 10 ms. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} bypass_captured SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bypass_capture_counts);
} bypass_capture_word SEC(".maps");

static volatile const struct bypass_capture_setting setting SEC(".rodata.setting") = {};

static __always_inline int is_end(const volatile struct trace_end *end, const __u8 *address, __u32 port)
{
	const volatile __u64 *asked = (const volatile void *)end->address;
	const __u64 *is = (const void *)address;

	return (end->any_port || end->port == port) && (end->any_address || (asked[0] == is[0] && asked[1] == is[1]));
}

/* Whether it is asked for, by the addresses that one of its ends has. */
static __always_inline int is_asked_for(const struct bypass_end *of)
{
	const volatile struct trace_end *ends = setting.filter.ends;

	return (is_end(&ends[0], of->local, of->local_port) && is_end(&ends[1], of->remote, of->remote_port)) ||
	       (is_end(&ends[1], of->local, of->local_port) && is_end(&ends[0], of->remote, of->remote_port));
}

/* How many bytes a socket has sent, whichever way, and where that began. */
static __always_inline __u32 sent(struct bypass_end *of, __u32 write_seq)
{
	return write_seq + (__u32)of->redirected_bytes;
}

/* A record's length has to be known to the verifier: there are some, for messages up to @most bytes each. */
static __always_inline int put(struct sk_msg_md *message, const struct bypass_message *head, __u32 bytes, const __u32 most)
{
	struct bypass_message *record = bpf_ringbuf_reserve(&bypass_captured, sizeof(*head) + most, 0);

	if (!record)
		return 0;
	__builtin_memcpy(record, head, sizeof(*head));
	if (bytes > most)
		bytes = most;
	barrier_var(bytes);
	if (bytes && bytes <= most)
		bpf_probe_read_kernel(record + 1, bytes, message->data);
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 1;
}

SEC("sk_msg")
int bypass_capture(struct sk_msg_md *message)
{
	struct bypass_message head = {};
	struct bpf_sock *sk = message->sk;
	struct bypass_capture_counts *counts;
	struct bypass_end *from, *to, *client;
	__u32 zero = 0, wanted, bytes;
	struct bypass_mark *mark;
	struct bypass_pair *pair;
	struct tcp_sock *tcp, *theirs;
	int has_room;

	counts = bpf_map_lookup_elem(&bypass_capture_word, &zero);
	if (!sk || !counts)
		return SK_PASS;
	mark = bpf_sk_storage_get(&bypass_marks, sk, 0, 0);
	pair = mark ? bpf_map_lookup_elem(&bypass_pairs, &mark->key) : NULL;
	tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (!pair || !tcp)
		return SK_PASS;
	client = &pair->ends[0];
	from = mark->role == BYPASS_CLIENT ? &pair->ends[0] : &pair->ends[1];
	to = mark->role == BYPASS_CLIENT ? &pair->ends[1] : &pair->ends[0];
	head.is_redirected = from->obstacle == BYPASS_NOTHING;
	if (!head.is_redirected && !setting.with_passed)
		return SK_PASS;
	/* With address translation the ends have different ones. */
	if (!is_asked_for(&pair->ends[0]) && !is_asked_for(&pair->ends[1]))
		return SK_PASS;
	head.bytes = message->size;
	wanted = head.bytes < setting.snap_bytes ? head.bytes : setting.snap_bytes;
	bytes = (char *)(long)message->data_end - (char *)(long)message->data;
	/* A message is in several pieces, or in pages that others may change (sendfile(2)). */
	if (bytes < wanted) {
		bpf_msg_pull_data(message, 0, wanted, 0);
		bytes = (char *)(long)message->data_end - (char *)(long)message->data;
	}
	if (bytes < wanted)
		__sync_fetch_and_add(&counts->torn, 1);
	else
		bytes = wanted;
	head.captured = bytes;
	head.time_ns = bpf_ktime_get_ns();
	__builtin_memcpy(head.client, client->local, 16);
	__builtin_memcpy(head.server, client->remote, 16);
	head.client_port = client->local_port;
	head.server_port = client->remote_port;
	head.sender = mark->role;
	head.sequence = sent(from, tcp->write_seq) - (head.is_redirected ? head.bytes : 0);
	theirs = (struct tcp_sock *)to->socket;
	head.acknowledged = sent(to, BPF_CORE_READ(theirs, write_seq));
	if (bytes <= 256)
		has_room = put(message, &head, bytes, 256);
	else if (bytes <= 1024)
		has_room = put(message, &head, bytes, 1024);
	else if (bytes <= 4096)
		has_room = put(message, &head, bytes, 4096);
	else if (bytes <= 16384)
		has_room = put(message, &head, bytes, 16384);
	else
		has_room = put(message, &head, bytes, BYPASS_CAPTURE_MOST);
	__sync_fetch_and_add(has_room ? &counts->taken : &counts->lost, 1);
	return SK_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
