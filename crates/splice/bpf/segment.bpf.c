// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * TCP segment translation: what one peer of a spliced pair sends is rewritten into what the
 * other expects, and goes on without a socket in between. The steps and the reasons are in
 * docs/segment.md.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include "segment.h"
#include "segment_core.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* return values of a tc program (linux/bpf.h has the enum since 6.6) */
#define NEXT -1
#define DROP 2

#define LOOPBACK 1		/* the index of lo in every network namespace */
#define MAX_HOPS 4
#define OPTION_BYTES 40		/* the most that a TCP header has room for */
#define AF_INET 2
#define AF_INET6 10

/* skb->mark of a copy on its way to the relay's own socket; nobody else sees it */
#define COPY_ACK 0x53504c41
#define COPY_RST 0x53504c52

/* How long a flow that is over still translates: four repetitions of a FIN (0.2, 0.6, 1.4, 3 s) */
#define LINGER_NS (3200ULL * 1000 * 1000)

/*
 * What lies further below stamp_floor than this is an old duplicate, which the peer has to be
 * able to tell by its stamp: no segment waits longer than this on its way through the relay.
 */
#define FLOOR_REACH_NS (1000ULL * 1000 * 1000)

#ifndef bpf_ksym_exists
#define bpf_ksym_exists(symbol) (!!(void *)symbol)
#endif

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define PSH 0x08
#define ACK 0x10
#define URG 0x20
#define ECE 0x40
#define CWR 0x80

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct segment_tuple);
	__type(value, struct segment_place);
} segment_tuples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct segment_flow);
} segment_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct segment_gate);
} segment_gates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct segment_tuple);
	__type(value, struct segment_seen);
} segment_handshakes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SEGMENT_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} segment_counts SEC(".maps");

struct scratch {
	__u8 old[64] __attribute__((aligned(8)));
	__u8 new[64] __attribute__((aligned(8)));
};

/* Keeps the compiler from proving a bound by means that the verifier does not follow. */
#define OPAQUE(x) asm volatile("" : "+r"(x))

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} segment_scratch SEC(".maps");

/* A segment, numbers in host order. */
struct segment {
	struct segment_tuple tuple;
	__u32 seq;
	__u32 ack;
	__u32 tsval;
	__u32 tsecr;
	__u32 window;
	__u32 payload;
	__u32 sack_delta;
	__u32 sack_floor;
	__u32 out_device;
	__u8 flags;
	__u8 ipv6;
	__u8 header;		/* bytes of TCP header */
	__u8 has_stamp;
	__u8 plain_stamp;	/* NOP NOP TS and nothing else */
	__u8 stamp_at;		/* offsets into the options */
	__u8 sack_at;
	__u8 sacks;
	__u8 sack_clip;
	__u8 strip_sack;
	__u8 clear_ecn;
	__u8 local;
};

static __always_inline bool after(__u32 a, __u32 b)
{
	return (__s32)(b - a) < 0;
}

static __always_inline void count(__u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&segment_counts, &reason);

	if (n)
		*n += 1;
}

static __always_inline struct scratch *scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&segment_scratch, &zero);
}

/* One's complement sums, as bpf_csum_diff gives them. */
static __always_inline __u32 csum_change(__u32 sum, __u32 from, __u32 to)
{
	__u64 wide = (__u64)sum + (__u32)~from + to;

	wide = (wide & 0xffffffff) + (wide >> 32);
	return (wide & 0xffffffff) + (wide >> 32);
}

static __always_inline __u16 csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline __u32 at_be32(const __u8 *p)
{
	return (__u32)p[0] << 24 | (__u32)p[1] << 16 | (__u32)p[2] << 8 | p[3];
}

static __always_inline void put_be32(__u8 *p, __u32 v)
{
	p[0] = v >> 24;
	p[1] = v >> 16;
	p[2] = v >> 8;
	p[3] = v;
}

static __always_inline __u32 tcp_offset(const struct segment *s)
{
	return ETH_HLEN + (s->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
}

/* A walk over the options. */
struct walk {
	struct scratch *buffer;
	__u32 at;
	__u32 length;
	__u32 tsval;
	__u32 tsecr;
	__u8 stamp_at;
	__u8 sack_at;
	__u8 has_stamp;
	__u8 sacks;
	__u8 nonsense;
};

static long walk_option(__u32 index, struct walk *walk)
{
	struct scratch *b = walk->buffer;
	__u32 at = walk->at;
	__u8 kind, size;

	(void)index;
	OPAQUE(at);
	if (at >= walk->length || at >= OPTION_BYTES)
		return 1;
	kind = b->old[at];
	if (kind == 0)
		return 1;
	if (kind == 1) {
		walk->at = at + 1;
		return 0;
	}
	size = b->old[at + 1];
	walk->at = at + size;
	if (size < 2 || walk->at > walk->length) {
		walk->nonsense = 1;
		return 1;
	}
	if (kind == 8 && size == 10) {
		walk->has_stamp = 1;
		walk->stamp_at = at;
		walk->tsval = at_be32(&b->old[at + 2]);
		walk->tsecr = at_be32(&b->old[at + 6]);
	} else if (kind == 5 && size >= 10 && size <= 34 && (size & 7) == 2) {
		walk->sack_at = at;
		walk->sacks = size >> 3;
	}
	return 0;
}

/*
 * Finds timestamps and SACK blocks among options that are not just NOP NOP TS. False when the
 * options make no sense.
 */
static __noinline int find_options(struct __sk_buff *skb, struct segment *s)
{
	struct walk walk = { .buffer = scratch() };
	__u32 length;

	if (!s || !walk.buffer)
		return 0;
	length = s->header - sizeof(struct tcphdr);
	OPAQUE(length);
	if (length == 0)
		return 1;
	if (length > OPTION_BYTES)
		return 0;
	if (bpf_skb_load_bytes(skb, tcp_offset(s) + sizeof(struct tcphdr), walk.buffer->old, length))
		return 0;
	walk.length = length;
	bpf_loop(OPTION_BYTES, walk_option, &walk, 0);
	s->has_stamp = walk.has_stamp;
	s->stamp_at = walk.stamp_at;
	s->tsval = walk.tsval;
	s->tsecr = walk.tsecr;
	s->sack_at = walk.sack_at;
	s->sacks = walk.sacks;
	return !walk.nonsense;
}

/* False for what is not ours to understand: it goes on untouched. */
static __always_inline bool parse(struct __sk_buff *skb, struct segment *s)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *tcp;
	__u32 total;

	if (skb->vlan_present)
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + ETH_HLEN;

		/* Local headers may lie outside the linear part after GRO. */
		if ((void *)ip + sizeof(*ip) + sizeof(*tcp) > end) {
			if (bpf_skb_pull_data(skb, ETH_HLEN + sizeof(*ip) + sizeof(*tcp)))
				return false;
			data = (void *)(long)skb->data;
			end = (void *)(long)skb->data_end;
			ip = data + ETH_HLEN;
			if ((void *)ip + sizeof(*ip) + sizeof(*tcp) > end)
				return false;
		}
		/* With options the header length differs; fragments have no ports. */
		if (ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_TCP ||
		    (ip->frag_off & bpf_htons(0x3fff)))
			return false;
		s->tuple.source[2] = s->tuple.destination[2] = bpf_htonl(0xffff);
		s->tuple.source[3] = ip->saddr;
		s->tuple.destination[3] = ip->daddr;
		tcp = (void *)(ip + 1);
		total = bpf_ntohs(ip->tot_len);
		/* A super-packet of more than 64 KiB says 0 (BIG TCP). */
		if (!total)
			total = skb->len - ETH_HLEN;
		if (total > skb->len - ETH_HLEN || total < sizeof(*ip))
			return false;
		total -= sizeof(*ip);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + ETH_HLEN;

		if ((void *)ip + sizeof(*ip) + sizeof(*tcp) > end) {
			if (bpf_skb_pull_data(skb, ETH_HLEN + sizeof(*ip) + sizeof(*tcp)))
				return false;
			data = (void *)(long)skb->data;
			end = (void *)(long)skb->data_end;
			ip = data + ETH_HLEN;
			if ((void *)ip + sizeof(*ip) + sizeof(*tcp) > end)
				return false;
		}
		if (ip->version != 6 || ip->nexthdr != IPPROTO_TCP)
			return false;
		__builtin_memcpy(s->tuple.source, &ip->saddr, 16);
		__builtin_memcpy(s->tuple.destination, &ip->daddr, 16);
		s->ipv6 = 1;
		tcp = (void *)(ip + 1);
		total = bpf_ntohs(ip->payload_len);
		if (!total)
			total = skb->len - ETH_HLEN - sizeof(*ip);
		if (total > skb->len - ETH_HLEN - sizeof(*ip))
			return false;
	} else {
		return false;
	}
	s->tuple.source_port = tcp->source;
	s->tuple.destination_port = tcp->dest;
	s->header = tcp->doff * 4;
	if (s->header < sizeof(*tcp) || s->header > total)
		return false;
	s->payload = total - s->header;
	s->seq = bpf_ntohl(tcp->seq);
	s->ack = bpf_ntohl(tcp->ack_seq);
	s->window = bpf_ntohs(tcp->window);
	s->flags = ((__u8 *)tcp)[13];
	if (s->header == sizeof(*tcp) + 12 && (void *)(tcp + 1) + 12 <= end) {
		__be32 *option = (void *)(tcp + 1);

		if (option[0] == bpf_htonl(0x0101080a)) {
			s->has_stamp = s->plain_stamp = 1;
			s->tsval = bpf_ntohl(option[1]);
			s->tsecr = bpf_ntohl(option[2]);
		}
	}
	return true;
}

static __always_inline __u32 end_of(const struct segment *s)
{
	return s->seq + s->payload + !!(s->flags & FIN) + !!(s->flags & SYN);
}

static __always_inline void note_handshake(struct __sk_buff *skb, const struct segment *s)
{
	struct segment_seen seen = {
		.device = skb->ifindex,
		.seq = s->seq,
		.ack = s->flags & ACK ? s->ack : 0,
	};

	bpf_map_update_elem(&segment_handshakes, &s->tuple, &seen, BPF_ANY);
}

static __always_inline void note(struct __sk_buff *skb, const struct segment *s,
				 struct segment_side *side)
{
	__u32 end = end_of(s), edge = s->ack + (s->window << (side->window_left & 15));
	bool first = !(side->marks & SEGMENT_NOTED);

	if (!(s->flags & ACK) || (s->flags & (SYN | RST)))
		return;
	side->seen_device = skb->ifindex;
	if (first || after(end, side->high_seq))
		side->high_seq = end;
	if (first || after(s->ack, side->high_ack))
		side->high_ack = s->ack;
	if (first || after(edge, side->edge))
		side->edge = edge;
	if (s->flags & FIN) {
		side->fin_end = end;
		side->marks |= SEGMENT_FIN;
	}
	side->marks |= SEGMENT_NOTED;
}

/*
 * The other peer has acknowledged up to `ack` (in this side's numbering). Many CPUs may say so
 * at once; who loses the race says nothing new, or says it again with the next segment.
 */
static __always_inline void advance_acked(struct segment_side *side, __u32 ack, __u64 *moved_ns)
{
	__u64 old = *(volatile __u64 *)&side->acked;
	__u32 step = ack - (__u32)old;
	int i;

	for (i = 0; i < 4; i++) {
		__u64 found;

		if (step == 0 || step >> 31)
			return;
		found = __sync_val_compare_and_swap(&side->acked, old, old + step);
		if (found == old) {
			*moved_ns = bpf_ktime_get_coarse_ns();
			return;
		}
		old = found;
		step = ack - (__u32)old;
	}
}

/*
 * A reset ends the flow only where an endpoint would accept it: exactly at the place that it
 * expects next. Everything else is for the endpoint to judge, which asks back (RFC 5961).
 */
static __always_inline bool is_accepted_reset(const struct segment *s,
					      const struct segment_side *side,
					      const struct segment_side *other)
{
	return s->seq == side->high_seq || s->seq == other->high_ack + other->ack_delta ||
	       s->seq + side->seq_delta == other->edge;
}

/*
 * The difference between two clocks is chosen once, so that the first stamp lies one tick below
 * what the relay's own socket would send now.
 */
static __always_inline __u64 stamp_delta(struct segment_side *side, __u32 tsval, __u32 now)
{
	__u64 known = *(volatile __u64 *)&side->stamp_delta;
	__u64 choice, found;

	if (known)
		return known;
	choice = SEGMENT_STAMP_KNOWN | (__u32)(now - 1 - tsval);
	found = __sync_val_compare_and_swap(&side->stamp_delta, 0, choice);
	return found ?: choice;
}

static __always_inline void translate_stamp(struct segment *s, struct segment_side *side,
					    const struct segment_side *other, __u32 state)
{
	__u32 tick_ns = side->flags & SEGMENT_MICROSECONDS ? 1000 : 1000000;
	__u64 delta = *(volatile __u64 *)&side->stamp_delta;
	__u64 back = *(volatile __u64 *)&other->stamp_delta;
	__u32 stamp;

	if (!delta || state == SEGMENT_OVERLAP) {
		__u32 now = bpf_ktime_get_ns() / tick_ns + side->clock;

		delta = stamp_delta(side, s->tsval, now);
		/*
		 * The relay's own socket still sends, too, stamping with the time of now. With any
		 * other stamp one of the two looks like an old duplicate.
		 */
		stamp = state == SEGMENT_OVERLAP ? now : s->tsval + (__u32)delta;
	} else {
		stamp = s->tsval + (__u32)delta;
	}
	/* What waited on its way while the socket went on stamping. */
	if (after(side->stamp_floor, stamp) && side->stamp_floor - stamp < FLOOR_REACH_NS / tick_ns)
		stamp = side->stamp_floor;
	s->tsval = stamp;
	/* An echo of a clock that is not known yet: 0 is an echo of nothing (RFC 7323). */
	s->tsecr = back ? s->tsecr - (__u32)back : 0;
}

/*
 * Turns the segment into what the other peer expects. Returns 0, or COPY_ACK or COPY_RST when
 * the relay's own socket has to hear of it, too.
 */
static __always_inline __u32 translate(struct segment *s, struct segment_flow *flow,
				       struct segment_side *side, struct segment_side *other,
				       __u32 state)
{
	__u32 end = end_of(s), copy = 0, heard = side->high_ack;
	__u32 seq = s->seq + side->seq_delta, ack = s->ack + side->ack_delta;
	__u32 scaled = s->window << (side->window_left & 15);
	/* end of what the relay's own socket has to deliver to this peer */
	__u32 own_final = other->cut + other->seq_delta;
	bool bare = !s->payload && !(s->flags & (SYN | FIN | RST));

	if (s->flags & RST) {
		if (is_accepted_reset(s, side, other)) {
			side->marks |= SEGMENT_RST;
			copy = COPY_RST;
			if (state == SEGMENT_SPLICED) {
				flow->deadline_ns = bpf_ktime_get_ns() + LINGER_NS;
				flow->state = SEGMENT_LINGER;
			}
		} else {
			count(SEGMENT_RST_REFUSED);
		}
	} else if (s->flags & ACK) {
		/* Only what can be true may move the marks: a forger has to hit the window. */
		if (!after(ack, other->high_seq)) {
			__u32 edge = s->ack + scaled;

			if (after(s->ack, side->high_ack))
				side->high_ack = s->ack;
			if (after(edge, side->edge))
				side->edge = edge;
			advance_acked(other, ack, &flow->moved_ns);
			if ((other->marks & (SEGMENT_FIN | SEGMENT_FIN_ACKED)) == SEGMENT_FIN &&
			    !after(other->fin_end, ack)) {
				other->marks |= SEGMENT_FIN_ACKED;
				if (state == SEGMENT_SPLICED && (side->marks & SEGMENT_FIN_ACKED)) {
					flow->deadline_ns = bpf_ktime_get_ns() + LINGER_NS;
					flow->state = SEGMENT_LINGER;
					copy = COPY_RST;
				}
			}
		}
		/*
		 * Within the window that the other peer, or before it the relay, has announced; an end
		 * of stream may lie one beyond. While the relay still announces, nobody knows.
		 */
		if (after(end, side->high_seq) &&
		    (state == SEGMENT_OVERLAP || !after(end, side->promised + 1) ||
		     !after(end + side->seq_delta, other->edge + 1)))
			side->high_seq = end;
		if ((s->flags & FIN) && end == side->high_seq) {
			side->fin_end = end;
			side->marks |= SEGMENT_FIN;
		}
		/*
		 * The socket has to hear until all that it has sent is acknowledged, or it repeats it.
		 * Should a copy get lost, the answer to the repetition is bare.
		 */
		if (state == SEGMENT_OVERLAP && (bare || !after(heard, own_final)))
			copy = COPY_ACK;
	}

	if (state == SEGMENT_OVERLAP && after(other->cut, ack)) {
		/*
		 * What the relay has acknowledged stays acknowledged. An older acknowledgement would
		 * make the receiver discard the whole segment. The window ends where it ended.
		 */
		__u32 raised = other->cut - ack;

		scaled = scaled > raised ? scaled - raised : 0;
		ack = other->cut;
		s->sack_clip = 1;
	}
	/*
	 * The relay may have accepted more from this peer than the other one has room for, so the
	 * peer's next number can lie outside of the other's window; there an acknowledgement
	 * would be ignored.
	 */
	if (bare && after(seq, other->edge))
		seq = other->edge;

	s->sack_delta += side->ack_delta;
	s->sack_floor = s->sack_clip ? ack : 0;
	s->seq = seq;
	s->ack = ack;
	scaled >>= side->window_right & 15;
	s->window = scaled < 0xffff ? scaled : 0xffff;
	if (s->has_stamp)
		translate_stamp(s, side, other, state);
	if (side->flags & SEGMENT_STRIP_SACK)
		s->strip_sack = 1;
	if (side->flags & SEGMENT_CLEAR_ECN)
		s->clear_ecn = 1;
	s->local = side->flags & SEGMENT_LOCAL;
	s->out_device = side->out_device;
	s->tuple = side->out;
	__sync_fetch_and_add(&side->segments, 1);
	if (s->payload)
		__sync_fetch_and_add(&side->payload_bytes, s->payload);
	return copy;
}

/* Writes timestamps and SACK blocks; the change goes into `sum`. False when it fails. */
static __noinline int rewrite_options(struct __sk_buff *skb, struct segment *s, __u32 *sum)
{
	struct scratch *b = scratch();
	__u32 length, i, at, stamp;
	__s64 change;

	if (!s || !b || !sum)
		return 0;
	length = s->header - sizeof(struct tcphdr);
	OPAQUE(length);
	if (length == 0)
		return 1;
	if (length > OPTION_BYTES)
		return 0;
	__builtin_memset(b, 0, sizeof(*b));
	at = tcp_offset(s) + sizeof(struct tcphdr);
	if (bpf_skb_load_bytes(skb, at, b->old, length))
		return 0;
	__builtin_memcpy(b->new, b->old, OPTION_BYTES);
	stamp = s->stamp_at;
	OPAQUE(stamp);
	if (s->has_stamp && stamp <= OPTION_BYTES - 10) {
		put_be32(&b->new[stamp + 2], s->tsval);
		put_be32(&b->new[stamp + 6], s->tsecr);
	}
	for (i = 0; i < 4; i++) {
		__u32 block = s->sack_at + 2 + 8 * i, from, to;

		OPAQUE(block);
		if (i >= s->sacks || block < 2 || block > OPTION_BYTES - 8)
			break;
		if (s->strip_sack) {
			/* kind and size of the first, and so all of it, become NOP */
			if (i == 0) {
				b->new[block - 2] = 1;
				b->new[block - 1] = 1;
			}
			__builtin_memset(&b->new[block], 1, 8);
			continue;
		}
		from = at_be32(&b->new[block]) + s->sack_delta;
		to = at_be32(&b->new[block + 4]) + s->sack_delta;
		/* What the relay had acknowledged would look like a duplicate's report. */
		if (s->sack_clip && after(s->sack_floor, from))
			from = s->sack_floor;
		if (s->sack_clip && after(s->sack_floor, to))
			to = s->sack_floor;
		put_be32(&b->new[block], from);
		put_be32(&b->new[block + 4], to);
	}
	change = bpf_csum_diff((__be32 *)b->old, OPTION_BYTES, (__be32 *)b->new, OPTION_BYTES, *sum);
	if (change < 0 || bpf_skb_store_bytes(skb, at, b->new, length, 0))
		return 0;
	*sum = change;
	return 1;
}

/* Writes the translated segment into the packet. False when it fails. */
static __always_inline bool rewrite(struct __sk_buff *skb, struct segment *s, bool ipv6)
{
	const __u32 at = ETH_HLEN + (ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	void *data, *end;
	struct tcphdr *tcp;
	__u32 sum = 0, pseudo = 0, word;
	__be32 value;
	/* An urgent byte stays in its place, as it does when the relay's sockets pass it on. */
	__u8 flags = s->flags & ~URG;

	if (!s->plain_stamp && !rewrite_options(skb, s, &sum))
		return false;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	tcp = data + at;
	if ((void *)(tcp + 1) > end)
		return false;
	if (s->plain_stamp) {
		__be32 *option = (void *)(tcp + 1);

		if ((void *)(option + 3) > end)
			return false;
		value = bpf_htonl(s->tsval);
		sum = csum_change(sum, option[1], value);
		option[1] = value;
		value = bpf_htonl(s->tsecr);
		sum = csum_change(sum, option[2], value);
		option[2] = value;
	}
	if (s->clear_ecn)
		flags &= ~(ECE | CWR);
	word = *(__u32 *)tcp;
	tcp->source = s->tuple.source_port;
	tcp->dest = s->tuple.destination_port;
	sum = csum_change(sum, word, *(__u32 *)tcp);
	value = bpf_htonl(s->seq);
	sum = csum_change(sum, tcp->seq, value);
	tcp->seq = value;
	value = bpf_htonl(s->ack);
	sum = csum_change(sum, tcp->ack_seq, value);
	tcp->ack_seq = value;
	word = ((__u32 *)tcp)[3];
	((__u8 *)tcp)[13] = flags;
	tcp->window = bpf_htons(s->window);
	sum = csum_change(sum, word, ((__u32 *)tcp)[3]);

	if (ipv6) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		__u32 *source = (__u32 *)&ip->saddr, *destination = (__u32 *)&ip->daddr;
		int i;

#pragma unroll
		for (i = 0; i < 4; i++) {
			pseudo = csum_change(pseudo, source[i], s->tuple.source[i]);
			pseudo = csum_change(pseudo, destination[i], s->tuple.destination[i]);
			source[i] = s->tuple.source[i];
			destination[i] = s->tuple.destination[i];
		}
		/* The second byte ends with the two ECN bits, shifted by four. */
		if (s->clear_ecn)
			((__u8 *)ip)[1] &= ~0x30;
		if (!s->local)
			ip->hop_limit--;
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		__u32 header = 0;

		pseudo = csum_change(pseudo, ip->saddr, s->tuple.source[3]);
		pseudo = csum_change(pseudo, ip->daddr, s->tuple.destination[3]);
		header = pseudo;
		ip->saddr = s->tuple.source[3];
		ip->daddr = s->tuple.destination[3];
		if (s->clear_ecn) {
			word = *(__u32 *)ip;
			ip->tos &= ~3;
			header = csum_change(header, word, *(__u32 *)ip);
		}
		if (!s->local) {
			word = ((__u32 *)ip)[2] & bpf_htonl(0xffff0000);
			ip->ttl--;
			header = csum_change(header, word,
					     ((__u32 *)ip)[2] & bpf_htonl(0xffff0000));
		}
		ip->check = csum_fold(csum_change(header, 0, (__u16)~ip->check));
	}
	if (bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), 0, sum, 0))
		return false;
	/*
	 * Apart, because a packet whose checksum is still to be computed carries the sum of the
	 * addresses alone.
	 */
	return !bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), 0, pseudo,
				    BPF_F_PSEUDO_HDR | (ipv6 ? BPF_F_IPV6 : 0));
}

/*
 * Makes of a copy what the relay's own socket accepts: an acknowledgement without payload, or a
 * reset, at the place where the socket stands still. The peer has moved on, so the number that
 * it sent lies outside of the socket's window.
 */
static __always_inline int give_to_socket(struct __sk_buff *skb, struct segment *s,
					  const struct segment_side *side,
					  const struct segment_side *other, bool reset)
{
	const __u32 at = tcp_offset(s), own_final = other->cut + other->seq_delta;
	struct scratch *b = scratch();
	void *data, *end;
	struct tcphdr *tcp;
	__u32 header = s->header, sum = 0, i;
	__s64 change;

	skb->mark = 0;
	OPAQUE(header);
	if (!b || header < sizeof(*tcp) || header > 60)
		return DROP;
	if (s->payload && bpf_skb_change_tail(skb, at + header, 0)) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	if (bpf_skb_pull_data(skb, at + header))
		return DROP;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (s->ipv6) {
		struct ipv6hdr *ip = data + ETH_HLEN;

		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end)
			return DROP;
		ip->payload_len = bpf_htons(header);
		for (i = 0; i < 4; i++) {
			sum = csum_change(sum, 0, s->tuple.source[i]);
			sum = csum_change(sum, 0, s->tuple.destination[i]);
		}
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		__u32 word;

		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end)
			return DROP;
		word = *(__u32 *)ip;
		ip->tot_len = bpf_htons(sizeof(*ip) + header);
		ip->check = csum_fold(csum_change(csum_change(0, word, *(__u32 *)ip), 0,
						  (__u16)~ip->check));
		sum = csum_change(sum, 0, s->tuple.source[3]);
		sum = csum_change(sum, 0, s->tuple.destination[3]);
	}
	tcp->seq = bpf_htonl(reset ? side->cut : side->own_seq);
	if (after(s->ack, own_final))
		tcp->ack_seq = bpf_htonl(own_final);
	((__u8 *)tcp)[13] = reset ? RST | ACK : s->flags & ~(FIN | PSH | URG);
	tcp->check = 0;
	sum = csum_change(sum, 0, bpf_htonl(IPPROTO_TCP));
	sum = csum_change(sum, 0, bpf_htonl(header));
	__builtin_memset(b->old, 0, sizeof(b->old));
	if (bpf_skb_load_bytes(skb, at, b->old, header))
		return DROP;
	change = bpf_csum_diff(NULL, 0, (__be32 *)b->old, sizeof(b->old), sum);
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	tcp = data + at;
	if (change < 0 || (void *)(tcp + 1) > end)
		return DROP;
	tcp->check = csum_fold(change);
	count(SEGMENT_OWN_COPIES);
	return NEXT;
}

/* Whether a relay that follows on this host can translate here and now as well. */
static __always_inline bool is_steady(const struct segment *s, const struct segment_flow *flow,
				      const struct segment_place *place)
{
	return flow->state == SEGMENT_SPLICED && place->device == LOOPBACK &&
	       !(s->flags & (SYN | FIN | RST)) &&
	       !((flow->side[0].marks | flow->side[1].marks) & SEGMENT_FIN);
}

SEC("tc")
int segment_ingress(struct __sk_buff *skb)
{
	struct segment s = {};
	struct segment_place *place;
	struct segment_flow *flow;
	struct segment_side *side, *other;
	__u32 state, copy, mark = skb->mark, hop;
	bool by_lo = skb->ifindex != LOOPBACK, ok;
	__u8 ttl_left = 2;

	if (!parse(skb, &s))
		return NEXT;
	place = bpf_map_lookup_elem(&segment_tuples, &s.tuple);
	if (!place) {
		if (s.flags & SYN)
			note_handshake(skb, &s);
		return NEXT;
	}
	flow = bpf_map_lookup_elem(&segment_flows, &place->flow);
	if (!flow || flow->serial != place->serial)
		return NEXT;
	side = &flow->side[place->side & 1];
	other = &flow->side[!(place->side & 1)];
	state = *(volatile __u32 *)&flow->state;
	if (mark == COPY_ACK || mark == COPY_RST)
		return give_to_socket(skb, &s, side, other, mark == COPY_RST);
	if (state == SEGMENT_FREE) {
		if (s.flags & SYN)
			note_handshake(skb, &s);
		return NEXT;
	}
	if (state == SEGMENT_WATCH) {
		note(skb, &s, side);
		return NEXT;
	}
	if (place->device != skb->ifindex) {
		count(SEGMENT_OTHER_DEVICE);
		return NEXT;
	}
	if (state != SEGMENT_SPLICED && bpf_ktime_get_ns() > flow->deadline_ns) {
		count(SEGMENT_EXPIRED);
		return NEXT;
	}
	if (state == SEGMENT_LINGER && (s.flags & SYN)) {
		flow->state = SEGMENT_FREE;
		note_handshake(skb, &s);
		count(SEGMENT_REUSED);
		return NEXT;
	}
	if (!s.plain_stamp && !find_options(skb, &s)) {
		count(SEGMENT_MALFORMED);
		return NEXT;
	}

	copy = translate(&s, flow, side, other, state);
	for (hop = 1; hop < MAX_HOPS && s.local; hop++) {
		place = bpf_map_lookup_elem(&segment_tuples, &s.tuple);
		if (!place)
			break;
		flow = bpf_map_lookup_elem(&segment_flows, &place->flow);
		if (!flow || flow->serial != place->serial || flow->state == SEGMENT_FREE)
			break;
		if (!is_steady(&s, flow, place)) {
			/* It goes round by lo and comes in as a first hop. */
			by_lo = true;
			break;
		}
		translate(&s, flow, &flow->side[place->side & 1],
			  &flow->side[!(place->side & 1)], SEGMENT_SPLICED);
	}

	if (copy) {
		/*
		 * Over lo it has to leave once more, which keeps its route: without one a segment from
		 * an address of this host is a martian.
		 */
		skb->mark = copy;
		bpf_clone_redirect(skb, skb->ifindex,
				   skb->ifindex == LOOPBACK ? 0 : BPF_F_INGRESS);
		skb->mark = mark;
	}
	if (!s.local) {
		void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
		__u32 at = s.ipv6 ? ETH_HLEN + offsetof(struct ipv6hdr, hop_limit) :
				    ETH_HLEN + offsetof(struct iphdr, ttl);

		if (data + at + 1 > end)
			return DROP;
		ttl_left = *(__u8 *)(data + at);
	}
	if (ttl_left <= 1) {
		count(SEGMENT_HOPS_EXCEEDED);
		return DROP;
	}
	ok = s.ipv6 ? rewrite(skb, &s, true) : rewrite(skb, &s, false);
	if (!ok) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	count(SEGMENT_TRANSLATED);
	if (!s.local)
		return bpf_redirect_neigh(s.out_device, NULL, 0, 0);
	if (by_lo)
		return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
	return NEXT;
}

/*
 * What the relay's own sockets send in OVERLAP. They acknowledge what they have received and
 * announce their own window, but the peer has moved on: an acknowledgement that is too old makes
 * it discard the segment, payload included, and the window is now the other peer's.
 */
SEC("tc")
int segment_egress(struct __sk_buff *skb)
{
	struct segment s = {};
	struct segment_tuple key;
	struct segment_place *place;
	struct segment_flow *flow;
	struct segment_side *other;
	struct segment_gate *gate;
	__u32 zero = 0, ack, edge, room, sum = 0, at;
	struct {
		__be32 ack;
		__u8 offset;
		__u8 flags;
		__be16 window;
	} old, new;

	gate = bpf_map_lookup_elem(&segment_gates, &zero);
	if (!gate || !*(volatile __u32 *)&gate->overlaps)
		return NEXT;
	if (!parse(skb, &s) || !(s.flags & ACK) || (s.flags & (SYN | RST)))
		return NEXT;
	__builtin_memcpy(key.source, s.tuple.destination, 16);
	__builtin_memcpy(key.destination, s.tuple.source, 16);
	key.source_port = s.tuple.destination_port;
	key.destination_port = s.tuple.source_port;
	place = bpf_map_lookup_elem(&segment_tuples, &key);
	if (!place)
		return NEXT;
	flow = bpf_map_lookup_elem(&segment_flows, &place->flow);
	if (!flow || flow->serial != place->serial || flow->state != SEGMENT_OVERLAP)
		return NEXT;
	other = &flow->side[!(place->side & 1)];

	/* What the other peer says, in the numbering of this connection */
	ack = other->high_ack + other->ack_delta;
	edge = other->edge + other->ack_delta;
	if (after(s.ack, ack))
		ack = s.ack;
	room = after(edge, ack) ? (edge - ack) >> (flow->side[place->side & 1].own_scale & 15) : 0;
	/* Before the other peer is ahead of it, the socket's own window may be the smaller one. */
	if (ack == s.ack && s.window < room)
		room = s.window;
	if (room > 0xffff)
		room = 0xffff;
	if (ack == s.ack && room == s.window)
		return NEXT;

	at = tcp_offset(&s) + offsetof(struct tcphdr, ack_seq);
	if (bpf_skb_load_bytes(skb, at, &old, sizeof(old)))
		return NEXT;
	new = old;
	new.ack = bpf_htonl(ack);
	new.window = bpf_htons(room);
	sum = csum_change(sum, old.ack, new.ack);
	sum = csum_change(sum, ((__u32 *)&old)[1], ((__u32 *)&new)[1]);
	if (bpf_skb_store_bytes(skb, at, &new, sizeof(new), 0) ||
	    bpf_l4_csum_replace(skb, tcp_offset(&s) + offsetof(struct tcphdr, check), 0, sum, 0)) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	return NEXT;
}

static __always_inline void inspect(struct __sk_buff *skb, const struct segment_tuple *tuple,
				    struct segment_socket *out)
{
	struct bpf_sock_tuple key = {};
	struct bpf_sock *found;
	struct tcp_sock *tp;
	struct sock *sk;
	struct dst_entry *dst;
	struct net_device *device;
	__u32 flags = SEGMENT_SOCKET_FOUND;

	if (!tuple->source[0] && !tuple->source[1] && tuple->source[2] == bpf_htonl(0xffff)) {
		key.ipv4.saddr = tuple->source[3];
		key.ipv4.daddr = tuple->destination[3];
		key.ipv4.sport = tuple->source_port;
		key.ipv4.dport = tuple->destination_port;
		found = bpf_skc_lookup_tcp(skb, &key, sizeof(key.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(key.ipv6.saddr, tuple->source, 16);
		__builtin_memcpy(key.ipv6.daddr, tuple->destination, 16);
		key.ipv6.sport = tuple->source_port;
		key.ipv6.dport = tuple->destination_port;
		found = bpf_skc_lookup_tcp(skb, &key, sizeof(key.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!found)
		return;
	tp = bpf_skc_to_tcp_sock(found);
	if (!tp) {
		bpf_sk_release(found);
		return;
	}
	sk = (struct sock *)tp;
	out->cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
	out->state = BPF_CORE_READ(sk, __sk_common.skc_state);
	out->write_seq = BPF_CORE_READ(tp, write_seq);
	out->snd_una = BPF_CORE_READ(tp, snd_una);
	out->snd_nxt = BPF_CORE_READ(tp, snd_nxt);
	out->snd_wnd = BPF_CORE_READ(tp, snd_wnd);
	out->copied_seq = BPF_CORE_READ(tp, copied_seq);
	out->rcv_nxt = BPF_CORE_READ(tp, rcv_nxt);
	out->rcv_wup = BPF_CORE_READ(tp, rcv_wup);
	out->rcv_wnd = BPF_CORE_READ(tp, rcv_wnd);
	out->clock = BPF_CORE_READ(tp, tsoffset);
	out->announced_mss = BPF_CORE_READ(tp, advmss);
	out->peer_mss = BPF_CORE_READ(tp, rx_opt.mss_clamp);
	out->path_mtu = BPF_CORE_READ(tp, inet_conn.icsk_pmtu_cookie);
	out->peer_scale = BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.snd_wscale);
	out->snd_wl1 = BPF_CORE_READ(tp, snd_wl1);
	out->largest_window = BPF_CORE_READ(tp, max_window);
	out->received_bytes = BPF_CORE_READ(tp, bytes_received);
	out->own_scale = BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.rcv_wscale);
	if (BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.tstamp_ok))
		flags |= SEGMENT_SOCKET_TIMESTAMPS;
	if (BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.sack_ok))
		flags |= SEGMENT_SOCKET_SACK;
	if (BPF_CORE_READ(tp, ecn_flags))
		flags |= SEGMENT_SOCKET_ECN;
	if (bpf_core_field_exists(tp->tcp_usec_ts) &&
	    BPF_CORE_READ_BITFIELD_PROBED(tp, tcp_usec_ts))
		flags |= SEGMENT_SOCKET_MICROSECONDS;
	if (bpf_core_field_exists(tp->md5sig_info) && BPF_CORE_READ(tp, md5sig_info))
		flags |= SEGMENT_SOCKET_SIGNED;
	if (bpf_core_field_exists(tp->ao_info) && BPF_CORE_READ(tp, ao_info))
		flags |= SEGMENT_SOCKET_SIGNED;
	if (bpf_core_field_exists(tp->is_mptcp) && BPF_CORE_READ(tp, is_mptcp))
		flags |= SEGMENT_SOCKET_LAYERED;
	if (BPF_CORE_READ(tp, inet_conn.icsk_ulp_ops))
		flags |= SEGMENT_SOCKET_LAYERED;
	if (BPF_CORE_READ(tp, out_of_order_queue.rb_node))
		flags |= SEGMENT_SOCKET_DISORDER;
	if (BPF_CORE_READ(tp, urg_data))
		flags |= SEGMENT_SOCKET_URGENT;
	if (BPF_CORE_READ(sk, sk_mark))
		flags |= SEGMENT_SOCKET_MARKED;
	if (BPF_CORE_READ(sk, __sk_common.skc_bound_dev_if))
		flags |= SEGMENT_SOCKET_BOUND;
	out->in_device = BPF_CORE_READ(sk, sk_rx_dst_ifindex);
	dst = BPF_CORE_READ(sk, sk_dst_cache);
	if (dst) {
		device = BPF_CORE_READ(dst, dev);
		out->out_device = BPF_CORE_READ(device, ifindex);
		out->out_type = BPF_CORE_READ(device, type);
	}
	out->flags = flags;
	bpf_sk_release(found);
}

/*
 * Run by user space on a packet that is a struct segment_inspection: tells what the kernel knows
 * of two sockets, without a lock and in one call. write_seq and copied_seq move only by the
 * relay's own hand.
 */
SEC("tc")
int segment_inspect(struct __sk_buff *skb)
{
	struct segment_inspection *in;
	struct segment_seen *seen;
	struct segment_tuple tuple;
	struct segment_socket out;
	int i;

	for (i = 0; i < 2; i++) {
		in = (void *)(long)skb->data;
		if ((void *)(in + 1) > (void *)(long)skb->data_end)
			return DROP;
		tuple = in->tuple[i];
		__builtin_memset(&out, 0, sizeof(out));
		inspect(skb, &tuple, &out);
		seen = bpf_map_lookup_elem(&segment_handshakes, &tuple);
		in->socket[i] = out;
		if (seen)
			in->seen[i] = *seen;
	}
	return NEXT;
}

/* libbpf wants a definition, to find that the functions are those of the kernel. */
struct nf_conn {
	unsigned long status;
} __attribute__((preserve_access_index));

struct bpf_ct_opts___local {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple,
					 __u32 size, struct bpf_ct_opts___local *opts,
					 __u32 opts_size) __ksym __weak;
extern int bpf_ct_change_timeout(struct nf_conn *ct, __u32 timeout) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;

static __always_inline __u32 forget(struct __sk_buff *skb, const struct segment_tuple *tuple)
{
	struct bpf_ct_opts___local opts = {
		.netns_id = BPF_F_CURRENT_NETNS,
		.l4proto = IPPROTO_TCP,
	};
	struct bpf_sock_tuple key = {};
	struct nf_conn *ct;

	if (!bpf_ksym_exists(bpf_skb_ct_lookup) || !bpf_ksym_exists(bpf_ct_change_timeout) ||
	    !bpf_ksym_exists(bpf_ct_release))
		return 0;
	if (!tuple->source[0] && !tuple->source[1] && tuple->source[2] == bpf_htonl(0xffff)) {
		key.ipv4.saddr = tuple->source[3];
		key.ipv4.daddr = tuple->destination[3];
		key.ipv4.sport = tuple->source_port;
		key.ipv4.dport = tuple->destination_port;
		ct = bpf_skb_ct_lookup(skb, &key, sizeof(key.ipv4), &opts, sizeof(opts));
	} else {
		__builtin_memcpy(key.ipv6.saddr, tuple->source, 16);
		__builtin_memcpy(key.ipv6.daddr, tuple->destination, 16);
		key.ipv6.sport = tuple->source_port;
		key.ipv6.dport = tuple->destination_port;
		ct = bpf_skb_ct_lookup(skb, &key, sizeof(key.ipv6), &opts, sizeof(opts));
	}
	if (!ct)
		return 0;
	bpf_ct_change_timeout(ct, 0);
	bpf_ct_release(ct);
	return 1;
}

/*
 * Run by user space when a flow is over: connection tracking has not seen its end, and would keep
 * the two connections for five days.
 */
SEC("tc")
int segment_forget(struct __sk_buff *skb)
{
	struct segment_inspection *in;
	struct segment_tuple tuple;
	__u32 forgotten = 0;
	int i;

	for (i = 0; i < 2; i++) {
		in = (void *)(long)skb->data;
		if ((void *)(in + 1) > (void *)(long)skb->data_end)
			return DROP;
		tuple = in->tuple[i];
		forgotten += forget(skb, &tuple);
	}
	in = (void *)(long)skb->data;
	if ((void *)(in + 1) > (void *)(long)skb->data_end)
		return DROP;
	in->forgotten = forgotten;
	return NEXT;
}
