/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs of a bypass and user space share. */
#ifndef BYPASS_H
#define BYPASS_H

#include "lib/lease.h"
#include "trace.h"

enum bypass_version {
	BYPASS_LAYOUT = 6,	/* of everything here that is pinned, and what it means */
};

/* The two ends of a connection. */
enum bypass_role {
	BYPASS_CLIENT,
	BYPASS_SERVER,
	BYPASS_LEFT_ALONE,	/* of a mark: the socket is not covered */
};

/*
 * What a pair of ends is:
 *
 *   WATCHED ──both are members──▶ ACTIVE ──see UNFIT──▶ UNFIT ──▶ LEAVING ──all is read──▶ LEFT
 *                                   │  └──────bypass ends, a filter comes──────▲
 *                                   └──its reader splices over unread messages──▶ STUCK: user space resets it
 *
 * Messages are redirected in ACTIVE and STUCK only.
 */
enum bypass_state {
	BYPASS_WATCHED,
	BYPASS_ACTIVE,
	BYPASS_UNFIT,	/* it has turned to bulk, passes too much, or has an end of BYPASS_WAITERS: user space has it leave */
	BYPASS_LEAVING,
	BYPASS_LEFT,	/* for good */
	BYPASS_STUCK,
};

/* What an end does that its reader would notice: nothing is redirected to it. */
enum bypass_trait {
	BYPASS_WAITALL = 1,	/* recv(2) with MSG_WAITALL, which a member's reads do not keep */
	BYPASS_SPLICES = 2,	/* splice(2), which does not see what was redirected */
	BYPASS_URGENT = 4,	/* it has read out of band */
	BYPASS_THREADS = 8,	/* one thread waits in recv(2) while another sends: see is_duplex */
	BYPASS_MIXES = 16,	/* it sends without waiting for room, and waits in recv(2): see keeps_no_wait */
	BYPASS_WOKEN = 32,	/* its recv(2) was woken for nothing */
	/* Those whose recv(2) may return EAGAIN as a member's. */
	BYPASS_WAITERS = BYPASS_THREADS | BYPASS_MIXES | BYPASS_WOKEN,
};

/* Being a member does not pay while many messages pass: each of them costs more than without the map. */
enum bypass_patience {
	BYPASS_OVER = 1 << 30,	/* instead of a number of poor windows: they were too many */
};

/* Why a message of a pair in ACTIVE went over TCP. */
enum bypass_obstacle {
	BYPASS_NOTHING,		/* it did not */
	BYPASS_STALE,		/* the owner is dead */
	BYPASS_LARGE,		/* TCP is faster */
	BYPASS_READER,		/* the reader has a trait, or its process splices */
	BYPASS_UNSEEN,		/* the reader has not read since it is a member: it may sleep in TCP's own recvmsg */
	BYPASS_FULL,		/* too much is unread */
	BYPASS_BEHIND,		/* what went over TCP before has not been read */
	BYPASS_LOW_MARK,	/* the reader has SO_RCVLOWAT */
	BYPASS_UPPER,		/* kTLS, by now */
	BYPASS_HELPER,		/* the kernel did not take it */
};

/* The first sequence numbers behind both SYNs, which no address translation changes. */
struct bypass_key {
	__u32 client_isn;
	__u32 server_isn;
};

/* The key of a member. */
struct bypass_member {
	struct bypass_key key;
	__u32 role;
	__u32 reserved;
};

/* What a socket carries. */
struct bypass_mark {
	struct bypass_key key;
	__u32 role;
	__u32 reserved;
};

/* One end of a connection. */
struct bypass_end {
	__u64 socket;		/* struct sock *, valid as long as its cookie is there */
	__u64 cookie;
	__u64 network;		/* the cookie of its network namespace */
	__u64 group;		/* the id of its control group, once user space has asked */
	__u8 local[16];		/* IPv4 is mapped into IPv6 */
	__u8 remote[16];
	__u32 local_port;	/* in the byte order of this machine */
	__u32 remote_port;
	__u32 user;		/* the socket's uid, once user space has asked */
	__u32 process;		/* that has read last */
	__u32 waiter;		/* the thread that has read last, if it would have waited */
	__u32 sender;		/* the thread that has sent last */

	/* What it has read. */
	__u64 received_bytes;	/* by recvmsg, whichever way they came */
	__u64 tcp_bytes;	/* out of TCP's queue, at the last recvmsg */
	__u64 reads;
	__u64 reads_before;	/* when it became a member */
	__u32 copied_seq;	/* when the last recvmsg returned */
	__u32 traits;		/* enum bypass_trait */

	__u64 sends;		/* messages since it was seen, whichever way they went; written under its socket lock of a member */

	/* What it has sent as a member, written under its socket lock. */
	__u64 redirected_bytes;
	__u64 redirected_messages;
	__u64 passed_bytes;	/* by TCP */
	__u64 passed_messages;
	__u64 full_messages;	/* of those: too much was unread */
	__u32 window_messages;	/* since the last look at the size of messages */
	__u32 window_bytes;
	__u32 burst_messages;	/* redirected since the reader last had nothing to read */
	__u32 obstacle;		/* enum bypass_obstacle, of the last message */
	__u32 window_balance;	/* redirected messages of both ends, less twice the passed ones, when the window began */
	__u32 poor_windows;	/* in a row, each of which saw a third of the pair's messages pass; or BYPASS_OVER */
	__u64 fresh_tick;	/* in which its owner was found alive, by bpf_jiffies64 */
	__u64 poor_since_ns;	/* the end of the first of them */
	__u32 checked_process;	/* the reader's, which did not splice when settings had */
	__u32 checked_splicers;	/* so many splicers */
};

/* One connection between two covered sockets. */
struct bypass_pair {
	struct bypass_end ends[2];	/* by enum bypass_role */
	__u32 present;			/* a bit for each end that has been seen */
	__u32 closed;			/* the same for those that are closed */
	__u32 state;			/* enum bypass_state */
	__u32 conflict;			/* another connection has the same numbers: neither is touched */
	__u32 reason;			/* of user space: why it is not redirected */
	__u32 told;			/* user space has been told that it is worth a look */
};

_Static_assert(sizeof(struct bypass_end) == 224, "no padding");
_Static_assert(sizeof(struct bypass_pair) == 2 * 224 + 24, "no padding");

/* What the owner tells the programs, and they tell the owner. */
struct bypass_settings {
	struct lease lease;
	__u64 unread_bytes;	/* the most that may be unread in a direction */
	__u64 missed;		/* connections without room in a map */
	__u64 conflicts;

	/* Of connections that have ended. */
	__u64 ended_sends;
	__u64 ended_redirected_messages;
	__u64 ended_redirected_bytes;

	/* Somebody captures messages until then, and says so again and again; 0: nobody. By CLOCK_MONOTONIC. */
	__u64 capture_until_ns;
	__u64 capture_missed;	/* messages since it was not said in time, or while there was no ring */
	__u64 capture_taken;	/* messages */
	__u64 capture_lost;	/* there was no room for them */
	__u64 capture_torn;	/* that have less of their bytes than they should: the kernel had no memory */

	__u32 bulk_bytes;	/* longer messages go over TCP, and connections whose messages are longer on average */
	__u32 least_reads;	/* how often an end has to have read before user space looks at the pair */
	__u32 stopping;		/* no further connection is taken */
	__u32 owner;		/* its process */
	__u32 splicers;		/* how many processes were found to splice(2) */
	__u32 reserved;
};

/* What a capture takes. */
enum bypass_capture_limit {
	BYPASS_CAPTURE_MOST = 1 << 16,	/* bytes of a message */
};

/* A capture takes the messages of connections between these two ends, whichever is the client. */
struct bypass_capture_setting {
	struct trace_filter filter;
	__u32 snap_bytes;	/* of each message */
	__u32 with_passed;	/* also of members' messages that went over TCP */
};

/* A message that was captured, before its bytes. */
struct bypass_message {
	__u64 time_ns;		/* CLOCK_MONOTONIC */
	__u8 client[16];	/* both addresses as the client has them, mapped into IPv6 */
	__u8 server[16];
	__u32 client_port;
	__u32 server_port;
	__u32 sender;		/* enum bypass_role */
	__u32 bytes;
	__u32 captured;		/* of them are here */
	__u32 sequence;		/* of its first byte, as if all had gone over TCP */
	__u32 acknowledged;	/* what the other end has sent */
	__u32 is_redirected;
};

/* What user space asks for. */
enum bypass_verb {
	BYPASS_FIND,	/* is the socket in the caller's network namespace, and fit */
	BYPASS_ADMIT,	/* make it a member */
	BYPASS_INSPECT,	/* what does the member have unread */
	BYPASS_TURN,	/* the pair's new state */
};

/* The answer. */
enum bypass_answer {
	BYPASS_NO_PAIR,
	BYPASS_NO_SOCKET,
	BYPASS_NOT_OPEN,	/* it is not ESTABLISHED */
	BYPASS_HAS_UPPER,	/* kTLS or another upper layer */
	BYPASS_ZEROCOPY,	/* SO_ZEROCOPY, which members lose */
	BYPASS_LOW_WATER,	/* SO_RCVLOWAT, which members do not keep */
	BYPASS_REFUSED,		/* the map did not take it; see error */
	BYPASS_DONE,
};

/* A question to bypass_control, with its answer. */
struct bypass_question {
	struct bypass_key key;
	__u32 role;
	__u32 verb;		/* enum bypass_verb */
	__u32 state;		/* for BYPASS_TURN */
	__u32 reason;		/* for BYPASS_TURN */
	__u32 answer;		/* out: enum bypass_answer */
	__u32 error;		/* out: of BYPASS_REFUSED */
	__u32 has_unread;	/* out: redirected bytes wait on its psock */
	__u32 reserved;
};

#endif
