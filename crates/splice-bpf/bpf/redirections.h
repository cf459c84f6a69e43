/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs of redirections.bpf.c and user space share. */
#ifndef REDIRECTIONS_H
#define REDIRECTIONS_H

enum redirections_version {
	REDIRECTIONS_LAYOUT = 1,	/* of everything here that is pinned, and what it means */
};

/* Why a message was passed: it stays where it would be without the program. */
enum redirection_pass {
	REDIRECTION_TOO_LONG,	/* the target does not take it in one piece */
	REDIRECTION_NO_MEMORY,	/* it could not be put into one piece */
	REDIRECTION_LAPSED,	/* the lease is over: the owner does not live any more */
	REDIRECTION_FULL,	/* too much is outstanding at the target, or what came before on a stream was passed for that */
	REDIRECTION_REFUSED,	/* the helper refuses the target, which is closed or not in a state to take it */
	REDIRECTION_PASSES,
};

/* Where the messages of one source go, and how many went. User space writes it once, the program counts. */
struct redirection {
	__u32 slot;		/* the target's index, if the maps are arrays */
	__u32 most_bytes;	/* the longest message that the target takes in one piece; 0 for a stream */
	__u32 is_tcp;		/* the source's empty message is a FIN and not a datagram */
	__u32 is_stream;	/* the source's messages have an order to be kept */
	__u64 target;		/* its cookie, if there is a bound */
	__u64 gate;		/* REDIRECTION_HELD, and above it the bytes that were passed: both change at once */
	__u64 messages;		/* redirected */
	__u64 bytes;		/* of them */
	__u64 passed[REDIRECTION_PASSES];	/* messages left to the source's own reader */
	__u64 passed_bytes;	/* of them */
	__u64 empty;		/* empty datagrams, which were dropped */
};

/* In `gate`: everything is passed until user space says that it has seen what was passed. */
#define REDIRECTION_HELD 1ULL

/* What is outstanding at one target, whoever has redirected it. */
struct redirection_bound {
	__u64 socket;		/* the target, to be read; 0 until it is known */
	__u64 most_bytes;
	__u64 redirected;	/* bytes, all of them */
	__u64 gone;		/* as many of them had gone when the target was last looked at; of TCP's egress, when it was last seen empty */
	__u32 base;		/* TCP's number of the next byte at that time, less `redirected` */
	__u32 is_tcp;
};

/* What is asked of `look`. */
enum redirections_verb {
	REDIRECTIONS_LOOK,
	REDIRECTIONS_AIM,	/* tell the bound where the target is */
	REDIRECTIONS_RESUME,	/* redirect again, if user space has seen all that was passed */
};

/* What user space sets before it loads the programs. */
struct redirections_setting {
	__u32 is_hash;		/* the maps are SOCKHASHes with cookies as keys, not SOCKMAPs */
	__u32 to_local;		/* to the target's reader, not to its peer */
	__u32 only;		/* there is one source, with 0 as its key */
	__u32 is_sent;		/* what the source sends is redirected, not what it receives */
	__u32 raw;		/* answer what the helper answers: what it refuses is lost */
};

/* What `look` tells of a member of the map of targets. */
struct redirections_look {
	__u64 key;		/* in: of a SOCKHASH */
	__u32 slot;		/* in: of a SOCKMAP */
	__u32 found;		/* out: 1 if there is such a member */
	__u32 backlog;		/* out: messages that wait for the kernel's worker */
	__u32 unread;		/* out: 1 if its psock holds bytes for its reader */
	__u64 bound;		/* in: the cookie of the target, if there is a bound */
	__u64 outstanding;	/* out: bytes, if there is one */
	__u64 seen;		/* in: how many passed bytes user space has seen */
	__u32 verb;		/* in */
	__u32 resumed;		/* out */
};

/* What has no source to be counted for. */
struct redirections_unknown {
	__u64 passed;		/* messages of a socket that is a member of the sources, and whose link has gone */
};

#endif
