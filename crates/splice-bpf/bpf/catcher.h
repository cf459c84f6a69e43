/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What catcher.bpf.c, admit.bpf.c and user space share. */
#ifndef CATCHER_H
#define CATCHER_H

/* A connection that was caught when it became ESTABLISHED. */
struct caught_connection {
	__u64 cookie;
	__u8 local[16];		/* an IPv4 address has the first 4 bytes */
	__u8 remote[16];
	__u32 local_port;
	__u32 remote_port;
	__u32 is_ipv6;
	__u32 is_active;	/* connect(2) made it, and not accept(2) */
};

/* Which connections are caught. What is 0 does not matter. */
struct catcher_filter {
	__u32 local[4];		/* in network byte order; an IPv4 address is mapped (RFC 4291) */
	__u32 remote[4];
	__u32 local_port;
	__u32 remote_port;
	__u32 has_local;
	__u32 has_remote;
};

/* The question to admit, and its answer. */
struct admission {
	__u64 source;		/* in: cookies */
	__u64 target;
	__u32 slot;		/* in: the index, if the maps are arrays */
	__u32 is_received;	/* in: the redirect is of what the source receives */
	__u32 is_resumed;	/* in: the target is in, and the source was withdrawn: it goes in again as it is */
	__u32 reserved;
	__u32 stage;		/* out: an admission_stage */
	__u32 error;		/* out: errno of the kernel, if it did not take a socket */
};

/* How far an admission came. */
enum admission_stage {
	ADMISSION_NO_TARGET,		/* the target was not caught, or is closed */
	ADMISSION_NO_SOURCE,
	ADMISSION_NOT_ACCEPTED,		/* nobody has accepted the target yet */
	ADMISSION_BYTES_WAIT,		/* the source has bytes that came before */
	ADMISSION_UNREAD,		/* the target has not read all that the source, its peer, has sent */
	ADMISSION_TARGET_REFUSED,
	ADMISSION_SOURCE_REFUSED,
	ADMISSION_WITHDRAWN,		/* the same as BYTES_WAIT, but the source was a member for a moment */
	ADMISSION_DONE,
};

#endif
