/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What programs count; user space shows the counts by the names here, in small letters. */
#ifndef REASONS_H
#define REASONS_H

/* Why a segment went which way. */
enum segment_reason {
	SEGMENT_TRANSLATED,
	SEGMENT_OWN_COPIES,	/* without payload, for the relay's own socket */
	SEGMENT_BY_SOCKET,	/* left to the relay's own socket, which still receives that stream */
	SEGMENT_OTHER_DEVICE,	/* left to the stack: a known tuple on another device */
	SEGMENT_EXPIRED,	/* left to the stack: the owner is gone */
	SEGMENT_REUSED,		/* left to the stack: a SYN on the tuple of a flow that is over */
	SEGMENT_HOPS_EXCEEDED,	/* dropped: TTL, or too many relays are chained */
	SEGMENT_MALFORMED,	/* left to the stack: a known tuple with options that make no sense */
	SEGMENT_UNWRITABLE,	/* dropped: out of memory */
	SEGMENT_RST_REFUSED,	/* translated, but no end of the flow: a reset at an unlikely place */
	SEGMENT_SILENCED,		/* dropped: a socket that sleeps has sent it */
	SEGMENT_GONE,		/* dropped: a reset of a peer that is gone, while its stream is still being forwarded */
	SEGMENT_NO_ROOM,	/* translated, though the receiver had not announced so much room */
	SEGMENT_REASONS,
};

#endif
