/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs and user space share. */
#ifndef REDIRECT_H
#define REDIRECT_H

/*
 * This far before its byte limit a direction is closed for good: more than the socket holds that
 * gate has let in already (sk_add_backlog: both buffers, five and a half MiB at most).
 */
#define LIMIT_MARGIN (8 << 20)

/* The bit above the sequence number in `let_in`. */
#define HELD (1ULL << 32)

/*
 * One direction of a pair, in an array that user space has mapped. Each field has one writer, so
 * nobody can overwrite what another counted; `let_in` changes by atomic operations.
 *
 * A direction is open while its source is a member of sources, and closed while it is not: then
 * the source is a plain TCP socket, and its bytes wait in its receive queue. User space asks, gate
 * opens and closes; every byte that passes is redirected.
 */
struct direction_entry {
	/* Written by redirect, under the source's socket lock. */
	__u64 redirected;	/* bytes handed to the target */
	__u64 last_ns;		/* CLOCK_MONOTONIC_COARSE when bytes last came */
	__u64 first_ns;		/* CLOCK_MONOTONIC when they first did; 0 before */
	__s64 credit;		/* cost that fits the target without another look */
	__u32 full;		/* the opening in which the target had its share: gate closes */
	__u32 over;		/* the opening in which gate has to refuse what is new */
	__u32 missed;		/* skbs that could not be redirected: the pair is lost */
	__u32 reserved[5];	/* the rest of a cache line, which redirect alone writes */

	/* Written by user space. */
	__u64 limit;		/* byte limit, as `redirected` counts */
	__u32 base_seq;		/* sequence number of the source's first byte */
	__u32 target_seq;	/* where that byte went in the target's sequence space */
	__u32 opened;		/* number of this opening, from 1 */

	/* Written by gate. */
	__u32 closed;		/* number of the opening that it ended last */
	__u32 refused;		/* segments that were not let in; the sender retransmits them */
	__u32 beyond;		/* segments beyond the window, which TCP would not take */

	/*
	 * The sequence number after everything that gate let in, and HELD for the moment in which
	 * it closes. In one word, so that nothing is let in that is not noted, or meanwhile. Set by
	 * user space before there is a gate.
	 */
	__u64 let_in;

	/*
	 * The number of an opening that user space asks for, else 0. Gate takes it when the next
	 * segment comes, or user space takes it back: whoever makes it 0 goes on.
	 */
	__u32 asked;

	/* Written by gate. */
	__u32 error;		/* errno of the kernel where it did not take the source */
	__u64 reserved_line[2];
};

_Static_assert(__builtin_offsetof(struct direction_entry, limit) == 64, "writers share no cache line");
_Static_assert(sizeof(struct direction_entry) == 128, "writers share no cache line");

/* What inspect tells of a target, which is a source of the other direction too. */
struct inspection {
	__u64 cookie;		/* in: the source whose target is meant */
	__u32 found;		/* out: 1 when there is such a target */
	__u32 queued_skbs;	/* out: redirected to it, not yet given to its send function */
	__u32 write_seq;	/* out: after the last byte given to its send function */
	__u32 copied_seq;	/* out: after the last byte that was taken out of it */
	__u32 rcv_nxt;		/* out: after the last byte (or end of stream) that came */
	__u32 on_the_way_bytes;	/* out: memory after it that no peer has yet, but for the bytes of its backlog */
	__u32 send_limit_bytes;	/* out: the most of that */
	__u32 state;		/* out: BPF_TCP_ESTABLISHED and so on */
};

#endif
