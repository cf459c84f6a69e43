/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Forwarded connections: translated from the SYN on, without a socket of the relay. The client and the server shake
 * hands with one another, so sequence numbers, windows and options stay as they are. What changes is addresses, ports,
 * and the client's timestamps: behind one port the server sees connections of many clients, and would take the SYN of
 * one whose clock is behind for an old duplicate (`tcp_timewait_state_process`).
 *
 * A SYN that this program does not take goes up to the listening socket, which is always there.
 */
#ifndef SEGMENT_FORWARD_H
#define SEGMENT_FORWARD_H

#include "lib/tuple.h"
#include "segment/origin.h"
#include "segment/steady.h"

/* Tells the serials of forwarded connections from those of pairs. */
#define FORWARD_SERIAL (1U << 31)

/* How long an opening connection is kept beyond the time that its owner gives it: the owner is the first to notice. */
#define OPENING_SLACK_NS (2ULL * 1000 * 1000 * 1000)

#define TCP_TIME_WAIT 6		/* net/tcp_states.h */
#define TCP_LISTEN 10

/* What becomes of a SYN whose tuple has no connection. */
enum beginning {
	BEGINNING_NONE,		/* it is for the stack */
	BEGINNING_DONE,		/* it has got a slot */
	BEGINNING_TWICE,	/* another CPU has the same SYN in hand, and has got it one */
};

#define EEXIST 17		/* asm-generic/errno-base.h */

enum opening {
	OPENING_PASSED,		/* translated; the connection is still opening, or is over */
	OPENING_DONE,		/* the client has acknowledged the answer: it is as any other connection now */
};

static __always_inline bool is_forwarded(const struct segment_flow *flow)
{
	return flow->side[0].flags & SEGMENT_FORWARDED;
}

/*
 * Addresses that the stack takes no connection from (`ip_route_input_slow`, `ipv6_rcv`), and those of a link, which
 * mean nothing beyond it.
 */
static __always_inline bool is_client_address(const struct segment *s)
{
	const struct segment_tuple *tuple = &s->tuple;
	__u32 first;

	if (!s->ipv6) {
		first = bpf_ntohl(tuple->source[3]) >> 24;
		return first != 0 && first != 127 && first < 224;
	}
	first = bpf_ntohl(tuple->source[0]);
	return first >> 29 == 1 || first >> 25 == 0xfc >> 1;
}

/* Whether connections may come in on a device. @device: its index. */
static __always_inline bool is_forwarding_device(__u32 device)
{
	return bpf_map_lookup_elem(&segment_devices, &device);
}

/* Whether a server answers a SYN that is not the connection's. @from: the side of the sender. */
static __always_inline bool is_foreign_answer(const struct segment *s, const struct segment_flow *flow,
					      __u32 from)
{
	return from && (s->flags & (SYN | ACK)) == (SYN | ACK) && s->ack != flow->first[0];
}

/*
 * Whether a socket of this host has a connection.
 * @tuple: as its peer's segments carry it. @in_time_wait: whether one that is over counts, too.
 */
__noinline int is_taken(struct __sk_buff *skb, struct segment_tuple *tuple, bool in_time_wait)
{
	struct bpf_sock_tuple key = {};
	struct bpf_sock *found;
	__u32 size;
	bool taken;

	if (!tuple)
		return false;
	size = socket_key(&key, tuple);
	found = bpf_skc_lookup_tcp(skb, &key, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return false;
	/* One that listens is not the connection's. */
	taken = found->state != TCP_LISTEN && (in_time_wait || found->state != TCP_TIME_WAIT);
	bpf_sk_release(found);
	return taken;
}

/* The slot is nobody's: user space gives it back. */
static __always_inline void abandon(struct segment_flow *flow)
{
	flow->opened_ns = 0;
	flow->deadline_ns = 0;
	fence();
	WRITE_ONCE(flow->state, SEGMENT_TIME_WAIT);
}

/*
 * Fills a slot in for the SYN of a client.
 * @flow, @port: the slot, and its port. @serial: the connection's.
 */
static __always_inline void begin(struct __sk_buff *skb, const struct segment *s, struct segment_flow *flow,
				  const struct segment_origin *origin, __u16 port, __u32 serial)
{
	struct segment_side *client = &flow->side[0], *server = &flow->side[1];
	__u32 latest = client->latest_timestamp, next = s->seq + 1, floor;
	__u64 now = bpf_ktime_get_ns();

	__builtin_memset(flow->side, 0, sizeof(flow->side));
	__builtin_memcpy(client->out.source, origin->source, 16);
	__builtin_memcpy(client->out.destination, origin->server, 16);
	client->out.source_port = bpf_htons(port);
	client->out.destination_port = origin->port;
	reverse(&s->tuple, &server->out);
	client->out_device = origin->device;
	server->out_device = skb->ifindex;
	client->flags = SEGMENT_FORWARDED | SEGMENT_COUNTED | (s->has_scale ? SEGMENT_SCALES : 0);
	server->flags = SEGMENT_FORWARDED;
	/* Until the server has answered: what the client has announced, from 0 on, and its scale. */
	client->edge = s->window;
	client->largest_window = s->window;
	client->own_scale = s->scale;
	client->high_seq_and_marks = (__u64)(SEGMENT_NOTED | SEGMENT_TAKEN_OVER) << 32 | next;
	client->acked = next;
	client->announced_edge = next;
	client->accepted_at = ticks_of(now);
	client->latest_timestamp = latest;
	if (s->has_timestamp) {
		floor = now / 1000000;
		if (latest && !after(floor, latest))
			floor = latest + 1;
		floor = floor ?: 1;
		client->timestamp_floor = floor;
		client->timestamp_delta = SEGMENT_TIMESTAMP_KNOWN | (__u32)(floor - s->tsval);
		client->latest_timestamp = floor;
		client->recent_timestamp = s->tsval;
		client->recent_seconds = now_seconds();
	}
	flow->first[0] = next;
	flow->first[1] = 0;
	__builtin_memset(flow->payload_bytes, 0, sizeof(flow->payload_bytes));
	flow->moved_ns = now;
	flow->opened_ns = now;
	flow->last_ns = now;
	flow->deadline_ns = now + origin->open_within_ms * 1000000ULL + OPENING_SLACK_NS;
	flow->serial = serial;
	fence();
	WRITE_ONCE(flow->state, SEGMENT_OPENING);
}

/*
 * The connection that had this tuple is over: its entry no longer leads anywhere. @slot, @serial: of that connection.
 */
static __always_inline void forget_former(struct segment_tuple *tuple, __u32 slot, __u32 serial)
{
	struct segment_place *known = bpf_map_lookup_elem(&segment_tuples, tuple);

	/* Whoever is the first removes it, and nobody what has taken its place since. */
	if (known && known->flow == slot &&
	    __sync_val_compare_and_swap(&known->serial, serial, 0) == serial)
		bpf_map_delete_elem(&segment_tuples, tuple);
}

/* Takes a connection out of those that are opening. @state: what it becomes. Whether the caller was the first. */
static __always_inline bool leave_opening(struct segment_flow *flow, __u32 state)
{
	struct segment_origin *origin;

	if (__sync_val_compare_and_swap(&flow->state, SEGMENT_OPENING, state) != SEGMENT_OPENING)
		return false;
	origin = origin_of_flow(flow);
	if (origin)
		__sync_fetch_and_add(&origin->half_open, -1);
	count_off(flow);
	return true;
}

/*
 * Opens a connection for a SYN whose tuple has none, and whose options were found.
 * @s: the SYN. @at: to be filled in. enum beginning.
 */
__noinline int open_forward(struct __sk_buff *skb, struct segment *s, struct segment_place *at)
{
	struct segment_end key = {};
	struct segment_listener *listener, *own;
	struct segment_origin *origin;
	struct segment_flow *flow;
	struct segment_place place = {};
	struct segment_tuple from_server, from_client;
	__u32 index, slot, device = skb->ifindex, *openings;
	__u16 port;
	long error;

	if (!s || !at)
		return BEGINNING_NONE;
	__builtin_memcpy(key.address, s->tuple.destination, 16);
	key.port = s->tuple.destination_port;
	listener = bpf_map_lookup_elem(&segment_listeners, &key);
	if (!listener)
		return BEGINNING_NONE;
	index = listener->origin;
	__builtin_memcpy(key.address, s->tuple.source, 16);
	key.port = 0;
	own = bpf_map_lookup_elem(&segment_listeners, &key);
	if (own || !is_forwarding_device(device) || skb->pkt_type != PACKET_HOST || s->payload || (s->flags & (FIN | RST | URG | ACK)) ||
	    !is_client_address(s) || s->has_other) {
		count(SEGMENT_FORWARD_UNKNOWN);
		return BEGINNING_NONE;
	}
	/* A repeated SYN of a connection that the listening socket has got. */
	if (is_taken(skb, &s->tuple, false)) {
		count(SEGMENT_FORWARD_TAKEN);
		return BEGINNING_NONE;
	}
	origin = bpf_map_lookup_elem(&segment_origins, &index);
	if (!origin || bpf_ktime_get_coarse_ns() > READ_ONCE(origin->alive_until_ns)) {
		count(SEGMENT_FORWARD_LATE);
		return BEGINNING_NONE;
	}
	openings = openings_of(s->tuple.source);
	if (!openings || READ_ONCE(*openings) >= (origin->half_open_most + 1) / NETWORK_SHARE ||
	    READ_ONCE(origin->half_open) >= origin->half_open_most) {
		count(SEGMENT_FORWARD_CROWDED);
		return BEGINNING_NONE;
	}
	if (!take_port(origin, &slot)) {
		count(SEGMENT_FORWARD_NO_PORT);
		return BEGINNING_NONE;
	}
	flow = bpf_map_lookup_elem(&segment_flows, &slot);
	if (!flow)
		return BEGINNING_NONE;
	WRITE_ONCE(flow->state, SEGMENT_CLAIMED);
	port = origin->first_port + slot - origin->base;
	__builtin_memcpy(from_server.source, origin->server, 16);
	__builtin_memcpy(from_server.destination, origin->source, 16);
	from_server.source_port = origin->port;
	from_server.destination_port = bpf_htons(port);
	place.flow = slot;
	place.side = index << SEGMENT_ORIGIN_SHIFT;
	place.device = skb->ifindex;
	place.serial = __sync_fetch_and_add(&origin->serials, 1) | FORWARD_SERIAL;
	if (is_taken(skb, &from_server, true)) {
		abandon(flow);
		count(SEGMENT_FORWARD_TAKEN);
		return BEGINNING_NONE;
	}
	/* Before user space can see it, and give it up. */
	__sync_fetch_and_add(&origin->half_open, 1);
	__sync_fetch_and_add(openings, 1);
	begin(skb, s, flow, origin, port, place.serial);
	from_client = s->tuple;
	error = bpf_map_update_elem(&segment_tuples, &from_client, &place, BPF_NOEXIST);
	if (error) {
		if (leave_opening(flow, SEGMENT_CLAIMED))
			abandon(flow);
		return error == -EEXIST ? BEGINNING_TWICE : BEGINNING_NONE;
	}
	__sync_fetch_and_add(&origin->opened, 1);
	*at = place;
	return BEGINNING_DONE;
}

/*
 * Ends an opening connection whose server has not answered, if its client has begun another one from the same port.
 * @s: from the client. Whether it has.
 */
static __always_inline bool begins_again(const struct segment *s, struct segment_flow *flow)
{
	if ((s->flags & (SYN | ACK)) != SYN || s->seq + 1 == flow->first[0] ||
	    (marks(&flow->side[1]) & SEGMENT_NOTED))
		return false;
	prolong(flow, 0);
	leave_opening(flow, SEGMENT_TIME_WAIT);
	return true;
}

/* Whether it is the server's answer to the client's SYN. */
static __always_inline bool answers(const struct segment *s, const struct segment_flow *flow)
{
	return (s->flags & (SYN | ACK)) == (SYN | ACK) && s->ack == flow->first[0] &&
	       (!flow->first[1] || s->seq + 1 == flow->first[1]);
}

/* The server has answered: both ends are known. The answer may be on two CPUs at once. */
static __always_inline void meet(const struct segment *s, struct segment_flow *flow, __u32 slot)
{
	struct segment_side *client = &flow->side[0], *server = &flow->side[1];
	struct segment_cold *cold = bpf_map_lookup_elem(&segment_colds, &slot);
	__u32 next = s->seq + 1;

	if (!cold || __sync_val_compare_and_swap(&flow->first[1], 0, next) != 0)
		return;
	cold->answered_ns = bpf_ktime_get_ns();
	cold->first_ns = 0;
	server->high_ack = s->ack;
	server->first_ack = s->ack;
	server->accepted_at = ticks_of(bpf_ktime_get_coarse_ns());
	server->edge = s->ack + s->window;
	server->largest_window = s->window;
	server->acked = next;
	server->announced_edge = next;
	client->high_ack = next;
	client->first_ack = next;
	client->edge += next;
	if ((client->flags & SEGMENT_SCALES) && s->has_scale) {
		client->window_left = client->window_right = client->own_scale;
		server->window_left = server->window_right = s->scale;
		server->own_scale = client->own_scale;
		client->own_scale = s->scale;
	} else {
		client->own_scale = 0;
	}
	if (s->has_timestamp) {
		server->timestamp_floor = s->tsval ?: 1;
		server->timestamp_delta = SEGMENT_TIMESTAMP_KNOWN;
		server->recent_timestamp = s->tsval;
		server->recent_seconds = now_seconds();
	}
	fence();
	WRITE_ONCE(server->high_seq_and_marks, (__u64)(SEGMENT_NOTED | SEGMENT_TAKEN_OVER) << 32 | next);
}

/*
 * Turns a segment into what the other end expects while the connection is opening.
 * @s: the segment. @flow, @slot: its flow, and the flow's index. @from: the side of its sender. enum opening.
 */
__noinline int translate_opening(struct segment *s, struct segment_flow *flow, __u32 slot, __u32 from)
{
	struct segment_side *side, *other;
	bool answered, over = false;

	if (!s || !flow)
		return OPENING_PASSED;
	s->copy = 0;
	side = &flow->side[from & 1];
	other = &flow->side[!(from & 1)];
	answered = marks(&flow->side[1]) & SEGMENT_NOTED;
	/* Of these alone the numbers are known: the client's SYN, and the answer to it. */
	s->is_acceptable = s->is_verified && (from ? answers(s, flow) : (s->flags & SYN) && s->seq + 1 == flow->first[0]);
	if (!s->is_verified) {
		/* Its receiver will discard it. */
	} else if (s->flags & RST) {
		/*
		 * A refusal, or a client that has gone meanwhile. What a client that is still opening says to an old
		 * connection of the server is neither, and clears the way for its next SYN.
		 */
		if (from)
			over = answered ? s->seq == flow->first[1] :
					  (s->flags & ACK) && s->ack == flow->first[0];
		else
			over = answered && s->seq == flow->first[0];
		if (over) {
			add_marks(side, SEGMENT_RST);
			prolong(flow, 0);
			leave_opening(flow, SEGMENT_TIME_WAIT);
		}
	} else if (from) {
		if (answers(s, flow) && !answered)
			meet(s, flow, slot);
	} else if (!(s->flags & SYN) && (s->flags & ACK) && answered && s->ack == flow->first[1]) {
		leave_opening(flow, SEGMENT_SPLICED);
		return OPENING_DONE;
	}
	place(s, side, other, s->seq, s->ack, s->window << (side->window_right & 15));
	if (s->has_timestamp)
		translate_timestamp(s, flow, slot, from);
	return OPENING_PASSED;
}

/* A SYN tells its receiver segments that fit through both devices. IP and TCP header take that much of them. */
static __always_inline void fit_mss(struct __sk_buff *skb, struct segment *s)
{
	__u32 mtu = 0, out_mtu = 0, headers = s->ipv6 ? 60 : 40;

	if (bpf_check_mtu(skb, 0, &mtu, 0, 0) < 0 || bpf_check_mtu(skb, s->out_device, &out_mtu, 0, 0) < 0)
		return;
	mtu = mtu < out_mtu ? mtu : out_mtu;
	if (mtu > headers && mtu - headers < 0xffff)
		s->mss_most = mtu - headers;
}

/*
 * A connection that is over leaves the table. Whoever has opened another one from the same port keeps its entry.
 * @slot, @serial: of the connection. False when it is called in a wrong way.
 */
__noinline int release(__u32 slot, __u32 serial)
{
	struct segment_flow *flow = bpf_map_lookup_elem(&segment_flows, &slot);
	struct segment_tuple from_client;

	if (!flow || flow->serial != serial)
		return false;
	reverse(&flow->side[1].out, &from_client);
	forget_former(&from_client, slot, serial);
	/* User space has given it up. */
	count_off(flow);
	return true;
}

/*
 * Sends a translated segment on. The route to a server is known, so that it is not looked up for each segment; the
 * kernel follows the neighbour. A function of its own: the stack of its caller is short of room (512 bytes for all
 * callers together, Linux 6.1).
 * @side: as find() tells it.
 */
__noinline int send_on(struct segment *s, __u32 side)
{
	struct bpf_redir_neigh hop = {};
	struct segment_origin *origin;
	__u32 index = side >> SEGMENT_ORIGIN_SHIFT;

	if (!s)
		return DROP;
	if (side & 1)
		return bpf_redirect_neigh(s->out_device, NULL, 0, 0);
	origin = bpf_map_lookup_elem(&segment_origins, &index);
	if (!origin || (!origin->next_hop[2] && !origin->next_hop[0]))
		return bpf_redirect_neigh(s->out_device, NULL, 0, 0);
	if (s->ipv6) {
		hop.nh_family = AF_INET6;
		__builtin_memcpy(hop.ipv6_nh, origin->next_hop, sizeof(hop.ipv6_nh));
	} else {
		hop.nh_family = AF_INET;
		hop.ipv4_nh = origin->next_hop[3];
	}
	return bpf_redirect_neigh(s->out_device, &hop, sizeof(hop), 0);
}

#endif
