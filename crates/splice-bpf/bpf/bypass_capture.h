/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Copies of members' messages for user space, while somebody captures. The ring is that one's: it is in the map as long as
 * its owner lives, and the bypass takes it out of there if that has forgotten to. An array of programs would do as well, but
 * the kernel loses a reference to one that is looked up by its number while it goes (prog_array_map_clear, Linux 6.18).
 */
#ifndef BYPASS_CAPTURE_H
#define BYPASS_CAPTURE_H

#include "bypass_maps.h"

/* The rings of captures are larger. This is whole pages everywhere. */
struct bypass_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct bypass_ring);
} bypass_captures SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bypass_capture_setting);
} bypass_capture_settings SEC(".maps");

static __always_inline int is_end(const struct trace_end *end, const __u8 *address, __u32 port)
{
	const __u64 *asked = (const void *)end->address, *is = (const void *)address;

	return (end->any_port || end->port == port) && (end->any_address || (asked[0] == is[0] && asked[1] == is[1]));
}

/* Whether it is asked for, by the addresses that one of its ends has. */
static __always_inline int is_asked_for(const struct bypass_capture_setting *setting, const struct bypass_end *of)
{
	const struct trace_end *ends = setting->filter.ends;

	return (is_end(&ends[0], of->local, of->local_port) && is_end(&ends[1], of->remote, of->remote_port)) ||
	       (is_end(&ends[1], of->local, of->local_port) && is_end(&ends[0], of->remote, of->remote_port));
}

/* How many bytes a socket has sent, whichever way, and where that began. */
static __always_inline __u32 sent(struct bypass_end *of, __u32 write_seq)
{
	return write_seq + (__u32)of->redirected_bytes;
}

/* A record's length has to be known to the verifier: there are some, for messages up to @most bytes each. */
static __always_inline int put(void *ring, struct sk_msg_md *message, const struct bypass_message *head, __u32 bytes, const __u32 most)
{
	struct bypass_message *record = bpf_ringbuf_reserve(ring, sizeof(*head) + most, 0);

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

/*
 * Copies a message of a member, whose verdict is given and counted, into the ring of a capture. 0: there is none. Not inline: who
 * does not capture should not have it verified in each way through bypass_send.
 */
__attribute__((noinline)) int copied(struct sk_msg_md *message)
{
	struct bypass_message head = {};
	struct bpf_sock *sk = message->sk;
	struct bypass_capture_setting *setting;
	struct bypass_settings *counts;
	struct bypass_end *from, *to, *client;
	__u32 zero = 0, wanted, bytes;
	struct bypass_mark *mark;
	struct bypass_pair *pair;
	struct tcp_sock *tcp, *theirs;
	int has_room;
	void *ring;

	ring = bpf_map_lookup_elem(&bypass_captures, &zero);
	setting = bpf_map_lookup_elem(&bypass_capture_settings, &zero);
	counts = the_settings();
	if (!sk || !ring || !setting || !counts)
		return 0;
	mark = bpf_sk_storage_get(&bypass_marks, sk, 0, 0);
	pair = mark ? bpf_map_lookup_elem(&bypass_pairs, &mark->key) : NULL;
	tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (!pair || !tcp)
		return 1;
	client = &pair->ends[0];
	from = mark->role == BYPASS_CLIENT ? &pair->ends[0] : &pair->ends[1];
	to = mark->role == BYPASS_CLIENT ? &pair->ends[1] : &pair->ends[0];
	head.is_redirected = from->obstacle == BYPASS_NOTHING;
	if (!head.is_redirected && !setting->with_passed)
		return 1;
	/* With address translation the ends have different ones. */
	if (!is_asked_for(setting, &pair->ends[0]) && !is_asked_for(setting, &pair->ends[1]))
		return 1;
	head.bytes = message->size;
	wanted = head.bytes < setting->snap_bytes ? head.bytes : setting->snap_bytes;
	bytes = (char *)(long)message->data_end - (char *)(long)message->data;
	/* A message is in several pieces, or in pages that others may change (sendfile(2)). */
	if (bytes < wanted) {
		bpf_msg_pull_data(message, 0, wanted, 0);
		bytes = (char *)(long)message->data_end - (char *)(long)message->data;
	}
	if (bytes < wanted)
		__sync_fetch_and_add(&counts->capture_torn, 1);
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
		has_room = put(ring, message, &head, bytes, 256);
	else if (bytes <= 1024)
		has_room = put(ring, message, &head, bytes, 1024);
	else if (bytes <= 4096)
		has_room = put(ring, message, &head, bytes, 4096);
	else if (bytes <= 16384)
		has_room = put(ring, message, &head, bytes, 16384);
	else
		has_room = put(ring, message, &head, bytes, BYPASS_CAPTURE_MOST);
	__sync_fetch_and_add(has_room ? &counts->capture_taken : &counts->capture_lost, 1);
	return 1;
}

#endif
