/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What segment.bpf.c and user space (`kernel/segment` of the crate splice) say to each other.
 *
 * Sequence spaces. Each of the relay's two sockets has its own, so a byte has two sequence numbers. "Side 0"
 * is the peer of socket A, "side 1" the peer of socket B; what a peer sends is in the sequence space of its
 * own connection. seq_delta leads from there to the sequence space of the other connection.
 */
#ifndef SEGMENT_H
#define SEGMENT_H

#include "lib/reasons.h"

/* A connection as a segment from its peer carries it; network order, IPv4 mapped into IPv6. */
struct segment_tuple {
	__be32 source[4];
	__be32 destination[4];
	__be16 source_port;
	__be16 destination_port;
};

#define SEGMENT_ORIGIN_SHIFT 1

/* Where a tuple belongs. */
struct segment_place {
	__u32 flow;
	/* of a forwarded connection with its origin's index, shifted by SEGMENT_ORIGIN_SHIFT */
	__u32 side;
	/* the only device that its segments may come in on */
	__u32 device;
	/* must be that of the flow, or the flow has become another's */
	__u32 serial;
};

/*
 * A pair of sockets:
 *
 * FREE ──▶ WATCH ──▶ OVERLAP ◀──▶ SPLICED ──▶ TIME_WAIT ──▶ FREE
 *                       ▲            │
 *                       ▼            │
 *                      HELD ◀────────┘
 *                       └──▶ RETURNED ──▶ FREE
 *
 * User space makes all transitions but SPLICED to TIME_WAIT, which the program makes when it sees
 * the end, TIME_WAIT to FREE, which a SYN on the tuple makes, too, and SPLICED to HELD, which the program
 * makes when it sees what it cannot translate. User space goes back to OVERLAP when a segment has reached a
 * socket that was taken to be done. In HELD it has the sockets take their connections up again. In RETURNED
 * their peers may have received more than the sockets have sent, which the sockets send once more.
 *
 * A forwarded connection, which never had sockets (segment/forward.h):
 *
 * FREE ──▶ CLAIMED ──▶ OPENING ──▶ SPLICED ──▶ TIME_WAIT ──▶ FREE
 *                         └───────────────────────▲
 *
 * The program makes all transitions but those from OPENING to TIME_WAIT when no answer comes, and from TIME_WAIT to
 * FREE. Those user space makes.
 *
 * In OVERLAP each of the two streams has a state of its own, SEGMENT_TAKEN_OVER or not:
 *
 * by the sockets ──▶ taken over
 *
 * By the sockets: its bytes and the acknowledgements of them go from socket to socket, and its
 * sender is announced no window beyond `announced_edge`, where the socket's ended before. So it comes to
 * a stop, or to a pause of its own before that, and the receiver acknowledges the last of it. Then nothing
 * of it is in flight any more, and the program takes it over: it translates the stream from `takeover_seq` on.
 */
enum segment_state {
	SEGMENT_FREE,		/* as if there were no entry */
	SEGMENT_WATCH,		/* segments are noted and go on as they are */
	SEGMENT_OVERLAP,	/* each stream by the sockets, until they have emptied it; then translated */
	SEGMENT_SPLICED,	/* translated, and the sockets sleep */
	SEGMENT_TIME_WAIT,		/* over; late segments and retransmissions are still translated */
	SEGMENT_CLAIMED,	/* a SYN has just got the slot, and fills it in */
	SEGMENT_OPENING,	/* a SYN was translated; the client has not acknowledged an answer */
	SEGMENT_HELD,		/* nothing passes: the sockets are about to take their connections up again. A reset ends
				   the pair all the same */
	SEGMENT_RETURNED,	/* all goes by the sockets; no segment acknowledges more than they have sent */
};

enum segment_mark {
	SEGMENT_NOTED = 1,	/* a segment was seen; `seen_*`, `high_seq`, `high_ack` are known */
	SEGMENT_FIN = 2,	/* the peer's end of stream was seen: `fin_end` */
	SEGMENT_FIN_ACKED = 4,	/* and the other peer has acknowledged it */
	SEGMENT_RST = 8,	/* the peer sent a reset that the other peer accepts */
	SEGMENT_TAKEN_OVER = 16,	/* in OVERLAP: the peer's stream is translated from `takeover_seq` on */
	SEGMENT_CONGESTED = 32,	/* a segment was marked on its way from the peer, which does not know it (no CWR yet) */
	SEGMENT_ASKED = 64,	/* user space has the socket that sleeps ask whether the peer is alive */
	SEGMENT_DOUBTED = 128,	/* the peer sent a reset that the other peer may have accepted */
	SEGMENT_GAP = 256,	/* something that the peer has sent before `high_seq` may not have come by */
	SEGMENT_FRAGMENTED = 512,	/* the peer's segments come in fragments */
	SEGMENT_OPTIONED = 1024,	/* they come with IP options, or with extension headers of IPv6 */
	SEGMENT_NARROW = 2048,	/* they are too long for the path to the other peer */
	SEGMENT_STRAYED = 4096,	/* they come by another device than before, or in a VLAN */
	SEGMENT_CLOSED = 8192,	/* they get lost: the stack would not take them, or has no way to the other peer */
	SEGMENT_PROBES = 16384,	/* the peer has asked for room that the other one does not have */
	SEGMENT_DISTANT = 32768,	/* a gigabyte or more of the peer's stream has been translated */
	SEGMENT_TIMED = 65536,	/* the peer of side 1 has sent payload: `first_ns` */
};

enum segment_flag {
	SEGMENT_LOCAL = 1,	/* the other peer is on this host */
	SEGMENT_CLEAR_ECN = 2,	/* the other connection does not do ECN */
	SEGMENT_STRIP_SACK = 4,	/* the other connection does not do SACK */
	SEGMENT_MICROSECONDS = 8,	/* the other connection's timestamps tick once a microsecond */
	SEGMENT_ECHO_ECN = 16,	/* this one does: the program echoes marks to its peer */
	SEGMENT_FORWARDED = 32,	/* there are no sockets that could get a copy */
	SEGMENT_SCALES = 64,	/* the peer's SYN has a window scale: kept until both are known */
	SEGMENT_COUNTED = 128,	/* as one that is opening, with the others of its client's network */
} __attribute__((packed));

/* `accepted_at` and `waiting` count units of 2^20 ns of CLOCK_MONOTONIC, modulo 2^32; never 0. */
#define SEGMENT_TICK_SHIFT 20

/* `timestamp_delta` has been chosen. */
#define SEGMENT_TIMESTAMP_KNOWN (1ULL << 32)

/*
 * Segments that come in from one peer: all that the program reads of them, or writes, for a segment that is
 * translated. What only a change-over needs is in segment_change_over_side.
 */
struct segment_side {
	/* user space writes these before the flow lives */
	struct segment_tuple out;	/* as the translated segment carries it */
	__u32 out_device;
	__u32 seq_delta;
	__u32 ack_delta;
	__u8 window_left;	/* scale of the peer */
	__u8 window_right;	/* scale that the relay announced to the other peer */
	__u8 flags;
	__u8 own_scale;		/* scale that the relay announced to this peer */

	/* the program writes these; in OVERLAP user space raises some */
	__u32 timestamp_floor;	/* where the clock stands, or stood: no translated TSval lies below; 0 while
				   not chosen */
	/* end of what the peer has sent (`high_seq`), and above it the marks: a stream is taken over only
	   if nothing more has come at that very moment, and what more comes is not after an end of it */
	__u64 high_seq_and_marks;
	__u64 timestamp_delta;	/* from its TSval to the translated one; 0 while the clock stands */
	__u64 acked;		/* end of what the other peer has acknowledged; low half in this sequence space */
	__u32 accepted_at;	/* when the peer last sent an acceptable segment */
	__u32 waiting;		/* since when the peer waits for an acknowledgement: the last one, or what it has sent
				   since; 0: all is acknowledged */
	__u32 edge;		/* right edge of the window that the peer has announced */
	__u32 high_ack;		/* what the peer has acknowledged */
	__u32 announced_edge;	/* the furthest right edge that the relay's socket has announced to this peer */
	__u32 latest_timestamp;	/* of its translated segments, since the clock goes on; else 0 */
	__u32 recent_timestamp;	/* the peer's own that the other peer compares with (TS.Recent of RFC 7323); 0:
				   not known */
	__u32 largest_window;	/* that the peer has announced, in bytes */
	__u32 recent_seconds;	/* CLOCK_MONOTONIC: when that was last seen */
	__u32 doubted_seq;	/* with SEGMENT_DOUBTED: the number of the reset */
	__u32 first_ack;	/* nothing less can ever have been acknowledged; it follows `high_ack` from afar */
	__u32 fin_end;		/* with SEGMENT_FIN: the number after the FIN */
};

/* Five cache lines, of which a segment that is translated touches all; those of a change-over are apart. */
struct segment_flow {
	__u32 state;
	__u32 serial;
	__u64 deadline_ns;	/* CLOCK_MONOTONIC: OVERLAP and TIME_WAIT count as FREE afterwards */
	__u64 moved_ns;		/* when a byte was last acknowledged */
	__u64 last_ns;		/* when the last segment came in TIME_WAIT */
	__u64 opened_ns;	/* CLOCK_MONOTONIC: when the SYN of a forwarded connection came */
	__u32 first[2];		/* of a forwarded connection: the number of the first byte of each peer's stream */
	__u64 payload_bytes[2];	/* of each peer, translated */
	struct segment_side side[2];
};

_Static_assert(sizeof(struct segment_flow) == 5 * 64, "a flow shares no cache line with another");

/* One end of connections; network order, IPv4 mapped into IPv6. */
struct segment_end {
	__be32 address[4];
	__be16 port;
	__u16 reserved;
};

/* Where connections are forwarded from: what user space listens on, too. */
struct segment_listener {
	__u32 origin;		/* index; SEGMENT_NO_ORIGIN with port 0: an address of this host */
	__u32 reserved;
};

#define SEGMENT_NO_ORIGIN 0xffffffffU

/* Which origin the segments of a server belong to. */
struct segment_route {
	__be32 server[4];
	__be32 source[4];
	__be16 port;
	__u16 reserved;
};

/*
 * A server as one of this host's addresses reaches it, and the ports of that address that are the relay's there. The
 * connection from the port `first_port + n` has the slot `base + n`. Free ones stand in segment_free from `base` on, a
 * ring: programs take from its head, and user space alone adds to its tail. So the port that was given back first is
 * used again first.
 */
struct segment_origin {
	/* user space writes these before it leads anybody here */
	__be32 server[4];
	__be32 source[4];
	__be16 port;
	__u16 first_port;
	__u32 ports;
	__u32 base;
	__u32 device;		/* towards the server */
	__u32 half_open_most;
	__u32 open_within_ms;	/* or user space gives a connection up */
	/* and keeps these */
	__u64 alive_until_ns;	/* CLOCK_MONOTONIC: without its owner new connections go to the socket */
	__u64 tail;

	/* the program writes these */
	__u64 head;
	__u64 opened;		/* SYNs that have got a slot */
	__u32 half_open;	/* in OPENING; user space takes off those that it gives up */
	__u32 serials;		/* counts connections, so that each has a serial of its own */

	/* user space writes it: where the server, or the gateway to it, is on the device; zeroes: look it up */
	__be32 next_hop[4];
	__u32 reserved[4];
};

_Static_assert(sizeof(struct segment_origin) == 2 * 64, "an origin shares no cache line with another");

#define SEGMENT_RELEASED_MOST 32

/* Forwarded connections that are over: what segment_release takes out of the table, by their slots. */
struct segment_released {
	__u8 ethernet[14];
	__u16 count;
	__u32 flow[SEGMENT_RELEASED_MOST];
	__u32 serial[SEGMENT_RELEASED_MOST];
};

/* What is known of one peer from WATCH to the end of OVERLAP. */
struct segment_change_over_side {
	/* user space writes it before OVERLAP */
	__u32 clock;		/* TSval of the socket that the other peer talks to, at time 0 */

	/* the program writes these; user space raises some */
	__u32 acknowledged_by_socket;	/* end of what the relay's socket has acknowledged to this peer */
	__u32 takeover_seq;	/* with SEGMENT_TAKEN_OVER: all before it went by the sockets */
	__u32 sent;		/* end of what the relay's socket has sent to this peer */
	__u32 current_edge;	/* right edge that it announces now: want of memory may take it back */
	__u32 seen_device;
	__u32 seen_hops;	/* TTL of the last segment that was noted */
	__u32 held_end;		/* end of what this peer has sent in HELD, without a gap; 0: nothing */
};

/* The change-over of the flow with the same index; a flow that is spliced does not touch it. */
struct segment_change_over {
	struct segment_change_over_side side[2];
};

_Static_assert(sizeof(struct segment_change_over) == 64, "a change-over is one cache line");

/* No window is larger, in bytes (RFC 7323, 2.3): `announced_edge` and `first_ack` lag no further. */
#define SEGMENT_WINDOW_LIMIT (1U << 30)

/* Of the flow with the same index: what few of its segments touch takes no room in it. */
struct segment_cold {
	__u32 until[2];		/* how far the ICMP errors that each peer got have used up its share; in ticks. Of a pair:
				   when each may be challenged again */
	__u64 answered_ns;	/* CLOCK_MONOTONIC, of a forwarded connection with SEGMENT_NOTED: when its server answered */
	__u64 first_ns;		/* CLOCK_MONOTONIC: when the first payload of side 1's peer was translated, 0 before */
};

/* Shared by all flows. */
struct segment_gate {
	__u32 awake;		/* flows whose sockets may still send: without one, what goes out is let be */
	__u32 is_preceded;	/* on lo another relay's program comes before this one */
	__u32 forwards;		/* listeners whose connections are forwarded, and what is left of former ones */
	__u32 reserved;
};

/* A handshake that came by. */
struct segment_seen {
	__u32 device;
	__u32 seq;		/* of the SYN */
	__u32 ack;		/* 0 in the first SYN */
	__u16 mss;		/* that the peer announces; 0 when it does not */
	__u16 hops;		/* TTL */
};

enum segment_socket_flag {
	SEGMENT_SOCKET_FOUND = 1,
	SEGMENT_SOCKET_TIMESTAMPS = 2,
	SEGMENT_SOCKET_SACK = 4,
	SEGMENT_SOCKET_ECN = 8,
	SEGMENT_SOCKET_MICROSECONDS = 16,
	SEGMENT_SOCKET_SIGNED = 32,	/* TCP-MD5 or TCP-AO */
	SEGMENT_SOCKET_LAYERED = 64,	/* ULP, sockmap, a user in the kernel, or MPTCP */
	SEGMENT_SOCKET_MARKED = 128,	/* SO_MARK, so that policy routing may treat it apart */
	SEGMENT_SOCKET_BOUND = 256,	/* SO_BINDTODEVICE, a VRF */
	SEGMENT_SOCKET_COUNTS_ECN = 512,	/* accurate ECN: segments carry counts */
	SEGMENT_SOCKET_WRAPPED = 1024,	/* its route has IPsec or an encapsulation (`ip route ... encap`) */
	SEGMENT_SOCKET_RULED = 2048,	/* a rule of its namespace chooses routes by ports or protocols */
	SEGMENT_SOCKET_FILTERED = 4096,	/* a BPF program of its control group sees its packets */
	SEGMENT_SOCKET_POLICED = 8192,	/* its namespace has policies of IPsec */
	SEGMENT_SOCKET_CLASSED = 16384,	/* IP_TOS, IPV6_TCLASS, SO_PRIORITY: its packets have a class */
	SEGMENT_SOCKET_EXTENDED = 32768,	/* a BPF program reads or writes TCP options of its segments */
};

/* What the kernel knows of one of the relay's sockets. */
struct segment_socket {
	__u64 cookie;
	__u32 flags;
	__u32 state;
	__u32 write_seq;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 snd_wnd;
	__u32 copied_seq;
	__u32 rcv_nxt;
	__u32 rcv_wup;
	__u32 rcv_wnd;
	__u32 clock;
	__u32 announced_mss;	/* to the peer */
	__u32 peer_mss;		/* announced by the peer */
	__u32 path_mtu;
	__u32 in_device;
	__u32 out_device;
	__u32 out_type;		/* ARPHRD_* */
	__u32 largest_window;	/* that the peer has announced */
	__u32 received_bytes;	/* modulo 2^32 */
	__u32 recent_bytes;	/* how many of them are not further back than SEGMENT_WINDOW_LIMIT */
	__u32 recent_timestamp;	/* of the peer: TS.Recent of RFC 7323 */
	__u8 peer_scale;
	__u8 own_scale;
	__u16 reserved;
};

enum segment_tracked {
	SEGMENT_TRACKED = 1,	/* the host tracks the connection, and has seen packets go both ways */
	SEGMENT_TRACKED_OPENED_HERE = 2,	/* this host has opened it */
};

/* The packet that the program segment_inspect is run on. */
struct segment_inspection {
	__u8 ethernet[14];
	__u8 reserved[2];
	struct segment_tuple tuple[2];
	struct segment_socket socket[2];
	struct segment_seen seen[2];
	__u32 forgotten;	/* by segment_forget: how many the host was tracking */
	__u32 tracked[2];	/* by segment_tracked: SEGMENT_TRACKED_* */
	__u32 reserved2;
};

#endif
