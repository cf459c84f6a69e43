// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Hands whole frames from member to member: each frame names its destination.
 *
 * A stream parser finds the end of a frame, and the verdict runs once per frame, under the sender's
 * socket lock. Both get the skb in which the frame begins, and the frame's place in it lies in the
 * skb's control block (struct strp_msg), as skb->data is not moved there.
 *
 * Whatever goes to a member comes through its backlog, what user space says included: that arrives
 * as frames of a socket of its own. The kernel's worker takes skb after skb from the backlog and
 * remembers where it stopped in one (sk_psock_backlog), so frames never mix. A write of user space
 * would: the worker needs a call of the send function for each fragment of a frame.
 *
 * Frames for the mesh itself and for groups are copied to user space, if it asks for them, and it sends the
 * copies for the members of a group through its own socket. SK_PASS would be no way: each frame then holds
 * the memory of its whole packet against the receive buffer of its sender, whose window closes within a
 * frame (sk_psock_skb_ingress_self, Linux 6.18).
 *
 * A redirect knows no back-pressure. So the verdict counts what is on its way to the destination (lib/bound.h),
 * and refuses a frame beyond the bound. A frame that is refused is dropped, counted for its sender,
 * and reported to user space, which tells the sender.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "mesh.h"
#include "backlog.h"

/* Members by their ids. No program is attached, so being in it makes a socket a destination only. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__type(key, __u64);
	__type(value, __u64);
	__uint(max_entries, 1);
} mesh_targets SEC(".maps");

/* Members by their cookies; the programs are attached here. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__type(key, __u64);
	__type(value, __u64);
	__uint(max_entries, 1);
} mesh_sources SEC(".maps");

/* Cookie -> place in mesh_members. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, __u32);
	__uint(max_entries, 1);
} mesh_by_cookie SEC(".maps");

/* Id -> place in mesh_members. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, __u32);
	__uint(max_entries, 1);
} mesh_by_id SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct mesh_member);
	__uint(max_entries, 1);
} mesh_members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct mesh_framing);
	__uint(max_entries, 1);
} mesh_framings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} mesh_records SEC(".maps");

/* Parts of frames for user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, MESH_SIZE_HEARD);
} mesh_heard SEC(".maps");

static __always_inline struct mesh_framing *framing(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&mesh_framings, &first);
}

static __always_inline struct mesh_member *source_of(struct __sk_buff *skb, __u32 *place)
{
	__u64 cookie = bpf_get_socket_cookie(skb);
	__u32 *found = bpf_map_lookup_elem(&mesh_by_cookie, &cookie);

	if (!found)
		return NULL;
	*place = *found;
	return bpf_map_lookup_elem(&mesh_members, place);
}

/* Where the frame at hand begins, and its length once the parser has told it. */
static __always_inline void locate(struct __sk_buff *skb, __u32 *offset, __u32 *bytes)
{
	struct sk_skb_cb *cb = (struct sk_skb_cb *)((struct sk_buff *)skb)->cb;

	bpf_core_read(offset, sizeof(*offset), &cb->strp.strp.offset);
	bpf_core_read(bytes, sizeof(*bytes), &cb->strp.strp.full_len);
}

/* 0 and the value, or -1 if the field has not come whole. */
static __always_inline int read_field(struct __sk_buff *skb, __u32 offset, struct mesh_field *field, __u64 *value)
{
	__u8 raw[8] = {};
	__u32 bytes, last;
	__u32 little_endian = field->little_endian;
	__u64 sum = 0;

	/* By its last byte: of the length itself the verifier of 6.1 does not learn that there is some. */
	last = field->bytes - 1;
	if (last >= sizeof(raw))
		return -1;
	barrier_var(last);
	bytes = last + 1;
	if (bpf_skb_load_bytes(skb, offset + field->offset, raw, bytes))
		return -1;
	for (__u32 i = 0; i < sizeof(raw); i++) {
		if (i >= bytes)
			break;
		if (little_endian)
			sum |= (__u64)raw[i] << (8 * i);
		else
			sum = sum << 8 | raw[i];
	}
	*value = sum;
	return 0;
}

static __always_inline void report(struct mesh_member *source, __u32 place, __u32 reason, __u64 destination)
{
	struct mesh_record record = { place, reason, destination };

	if (bpf_ringbuf_output(&mesh_records, &record, sizeof(record), 0))
		__sync_fetch_and_add(&source->unreported, 1);
}

/*
 * Nobody can say where the next frame begins. An error from the parser would set the socket's error, and user space could
 * tell the member nothing any more. So everything is taken and dropped.
 */
static __always_inline void give_up(struct mesh_member *source, __u32 place, __u32 reason, __u64 length)
{
	source->fault = reason;
	report(source, place, reason, length);
}

/* Bytes that a search looks at in one step: a part of the stack. */
#define SEARCH_BYTES 128

/* A search for the delimiter, from @at to before @end in the packet. */
struct search {
	struct __sk_buff *skb;
	__u32 at;	/* once it is found, the byte after it */
	__u32 end;
	__u32 delimiter;
	__u32 is_found;
};

static long search_on(__u32 index __attribute__((unused)), struct search *search)
{
	__u8 raw[SEARCH_BYTES] = {};
	__u32 last;

	if (search->at >= search->end)
		return 1;
	last = search->end - search->at - 1;
	if (last >= sizeof(raw))
		last = sizeof(raw) - 1;
	barrier_var(last);
	if (last >= sizeof(raw))
		return 1;
	if (bpf_skb_load_bytes(search->skb, search->at, raw, last + 1))
		return 1;
	for (__u32 i = 0; i < sizeof(raw); i++) {
		if (i > last)
			break;
		if (raw[i] == search->delimiter) {
			search->at += i + 1;
			search->is_found = 1;
			return 1;
		}
	}
	search->at += last + 1;
	return 0;
}

/* The length of the frame at @offset, or 0 as long as its delimiter has not come. Each byte is looked at once. */
static __always_inline int delimited(struct __sk_buff *skb, __u32 offset, struct mesh_framing *frames,
				     struct mesh_member *source, __u32 place)
{
	__u32 come = skb->len - offset, most = frames->most_bytes, from = source->searched;
	struct search search = { .skb = skb, .delimiter = frames->delimiter };

	if (from < frames->header_bytes)
		from = frames->header_bytes;
	search.at = offset + from;
	search.end = offset + (come < most ? come : most);
	if (search.at < search.end)
		bpf_loop((search.end - search.at + SEARCH_BYTES - 1) / SEARCH_BYTES, search_on, &search, 0);
	source->searched = 0;
	if (search.is_found)
		return search.at - offset;
	if (come < most) {
		source->searched = come;
		return 0;
	}
	give_up(source, place, MESH_REASON_TOO_LONG, most);
	return come;
}

SEC("sk_skb/stream_parser")
int mesh_parser(struct __sk_buff *skb)
{
	struct mesh_framing *frames = framing();
	__u32 place, offset = 0, unused = 0, reason;
	struct mesh_member *source = source_of(skb, &place);
	__u64 length;

	locate(skb, &offset, &unused);
	if (!frames || !source || source->fault)
		return skb->len - offset;
	if (skb->len < offset + frames->header_bytes)
		return 0;
	if (frames->is_delimited)
		return delimited(skb, offset, frames, source, place);
	if (read_field(skb, offset, &frames->length, &length))
		return 0;
	/* The first comparison keeps the sum from overflowing. */
	if (length > frames->most_bytes || length + frames->added_bytes > frames->most_bytes)
		reason = MESH_REASON_TOO_LONG;
	else if (length + frames->added_bytes < frames->header_bytes)
		reason = MESH_REASON_TOO_SHORT;
	else
		return length + frames->added_bytes;
	give_up(source, place, reason, length);
	return skb->len - offset;
}

/* The bytes of a number in the notices of a delimited framing, which has them as lower-case hexadecimal digits. */
#define NUMBER_DIGITS 16

/* Whom a notice is for: the first number after the header. */
static __always_inline int read_recipient(struct __sk_buff *skb, __u32 offset, struct mesh_framing *frames, __u64 *id)
{
	struct mesh_field recipient = { frames->header_bytes, 8, 0, 0 };
	__u8 digits[NUMBER_DIGITS];
	__u64 sum = 0;

	if (!frames->is_delimited)
		return read_field(skb, offset, &recipient, id);
	if (bpf_skb_load_bytes(skb, offset + frames->header_bytes, digits, sizeof(digits)))
		return -1;
	for (__u32 i = 0; i < sizeof(digits); i++)
		sum = sum << 4 | (digits[i] <= '9' ? digits[i] - '0' : digits[i] - 'a' + 10);
	*id = sum;
	return 0;
}

/* Whether so many bytes more may be on their way to a destination. */
static __always_inline int has_room(struct mesh_framing *frames, struct mesh_member *target,
				    struct bpf_sock *socket, __u32 bytes)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(socket);
	__s32 pending;

	if (!tcp)
		return 0;
	pending = unwritten(target->write_base, target->redirected, tcp->write_seq);
	/* Another member has redirected something since the count was read. */
	if (pending < 0)
		pending = 0;
	return on_the_way(tcp, pending) + bytes + BOUND_SKB_COST <= frames->member_bytes;
}

/* Whether user space wants the frames for a destination: the mesh itself, or a group. */
static __always_inline int is_for_user_space(struct mesh_framing *frames, __u64 destination)
{
	return frames->passes && (!destination || destination >= frames->passed_from);
}

/* A frame on its way to user space. */
struct passing {
	struct __sk_buff *skb;
	__u32 place;
	__u32 offset;	/* of the frame in the skb */
	__u32 bytes;
	__u32 passed;	/* parts */
};

/* A turn of bpf_loop (Linux 5.17): of a plain loop, the verifier of 6.1 follows a million instructions. */
static long pass_part(__u32 index, void *context)
{
	struct passing *frame = context;
	__u32 done = index * MESH_SIZE_PART, last;
	struct mesh_part *part;

	if (done >= frame->bytes)
		return 1;
	part = bpf_ringbuf_reserve(&mesh_heard, sizeof(*part), 0);
	if (!part)
		return 1;
	part->source = frame->place;
	part->frame_bytes = frame->bytes;
	part->offset = done;
	part->reserved = 0;
	last = frame->bytes - done - 1;
	if (last >= MESH_SIZE_PART)
		last = MESH_SIZE_PART - 1;
	barrier_var(last);
	if (last >= MESH_SIZE_PART ||
	    bpf_skb_load_bytes(frame->skb, frame->offset + done, part->content, last + 1)) {
		bpf_ringbuf_discard(part, 0);
		return 1;
	}
	bpf_ringbuf_submit(part, 0);
	frame->passed++;
	return 0;
}

/* 0, or -1 if there is no room for the frame. */
static __always_inline int pass(struct __sk_buff *skb, struct mesh_framing *frames, struct mesh_member *source,
				__u32 place, __u32 offset, __u32 bytes)
{
	struct passing frame = { skb, place, offset, bytes, 0 };
	__u32 parts = (bytes + MESH_SIZE_PART - 1) / MESH_SIZE_PART;
	__u64 waiting = bpf_ringbuf_query(&mesh_heard, BPF_RB_AVAIL_DATA);

	if (source->passed_parts - source->heard_parts + parts > frames->member_parts)
		return -1;
	/* Not more than begins may end: another CPU can only spoil it in between. */
	if (waiting + parts * (sizeof(struct mesh_part) + BPF_RINGBUF_HDR_SZ) > MESH_SIZE_HEARD)
		return -1;
	bpf_loop(MESH_SIZE_PARTS, pass_part, &frame, 0);
	if (frame.passed != parts)
		return -1;
	source->passed_frames++;
	source->passed_parts += parts;
	return 0;
}

SEC("sk_skb/stream_verdict")
int mesh_verdict(struct __sk_buff *skb)
{
	struct mesh_framing *frames = framing();
	__u32 place, offset = 0, bytes = 0, reason = MESH_REASON_UNKNOWN, role, is_own, is_notice = 0;
	struct mesh_member *source = source_of(skb, &place), *target;
	struct bpf_sock *socket;
	__u64 destination = 0;
	__u32 *target_place;

	if (!frames || !source)
		return SK_DROP;
	locate(skb, &offset, &bytes);
	if (source->fault || bytes < frames->header_bytes)
		return SK_DROP;
	is_own = source->role == MESH_NOTICES;
	if (read_field(skb, offset, &frames->destination, &destination))
		goto refused;
	if (is_own && !destination) {
		is_notice = 1;
		if (read_recipient(skb, offset, frames, &destination))
			goto refused;
	} else if (!is_own && is_for_user_space(frames, destination)) {
		if (source->role == MESH_LEAVING)
			goto refused;
		if (pass(skb, frames, source, place, offset, bytes)) {
			reason = MESH_REASON_FULL;
			goto refused;
		}
		source->taken_bytes += bytes;
		return SK_DROP;
	}
	target_place = bpf_map_lookup_elem(&mesh_by_id, &destination);
	target = target_place ? bpf_map_lookup_elem(&mesh_members, target_place) : NULL;
	role = target ? target->role : MESH_NOBODY;
	if (is_notice ? role == MESH_NOBODY : role != MESH_MEMBER)
		goto refused;
	if (!is_notice) {
		socket = bpf_map_lookup_elem(&mesh_targets, &destination);
		if (!socket)
			goto refused;
		reason = has_room(frames, target, socket, bytes) ? MESH_REASON_NONE : MESH_REASON_FULL;
		bpf_sk_release(socket);
		if (reason)
			goto refused;
	}
	redirect_begins(&target->redirected, bytes);
	if (bpf_sk_redirect_hash(skb, &mesh_targets, &destination, 0) != SK_PASS) {
		redirect_is_refused(&target->redirected, bytes);
		reason = MESH_REASON_UNKNOWN;
		goto refused;
	}
	if (is_notice) {
		__sync_val_compare_and_swap(&target->role, MESH_NEWCOMER, MESH_MEMBER);
		__sync_fetch_and_add(&target->notices, 1);
	} else {
		__sync_fetch_and_add(&target->received_frames, 1);
	}
	source->sent_frames++;
	source->taken_bytes += bytes;
	return SK_PASS;

refused:
	/* A notice to a member that has left meanwhile: nobody waits for it. */
	if (!is_notice) {
		if (reason == MESH_REASON_FULL)
			source->full_frames++;
		else
			source->unknown_frames++;
		/* User space reads in the counters what has become of its own. */
		if (!is_own)
			report(source, place, reason, destination);
	}
	source->taken_bytes += bytes;
	return SK_DROP;
}

/* Never attached: user space runs it to ask how far a member has come. */
SEC("tc")
int mesh_inspect(struct __sk_buff *skb)
{
	struct mesh_inspection answer = {};
	struct bpf_sock *socket;
	struct tcp_sock *tcp;

	if (bpf_skb_load_bytes(skb, 0, &answer, sizeof(answer)))
		return 0;
	socket = bpf_map_lookup_elem(&mesh_targets, &answer.id);
	if (!socket)
		return 0;
	tcp = bpf_skc_to_tcp_sock(socket);
	if (tcp) {
		struct sock *sk = &tcp->inet_conn.icsk_inet.sk;

		answer.found = 1;
		/* Before write_seq: what leaves the backlog in between is counted twice, not never. */
		answer.queued_skbs = backlog_of(psock_of(sk->sk_user_data));
		answer.write_seq = tcp->write_seq;
		answer.copied_seq = tcp->copied_seq;
		answer.rcv_nxt = tcp->rcv_nxt;
		answer.wmem_queued = sk->sk_wmem_queued;
	}
	bpf_sk_release(socket);
	bpf_skb_store_bytes(skb, 0, &answer, sizeof(answer), 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
