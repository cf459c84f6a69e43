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
	SEGMENT_MALFORMED,	/* left to the stack: headers that make no sense, or that settings of the host decide about */
	SEGMENT_UNWRITABLE,	/* dropped: out of memory */
	SEGMENT_RST_REFUSED,	/* translated, but no end of the flow: a reset at an unlikely place */
	SEGMENT_SILENCED,		/* dropped: a socket that sleeps has sent it */
	SEGMENT_GONE,		/* dropped, or made the acknowledgement that got lost: a reset of a peer that has ended in order,
				   while its stream is still being forwarded */
	SEGMENT_NO_ROOM,	/* translated, though the receiver had not announced so much room */
	SEGMENT_FORWARD_OPENED,	/* translated: a SYN that opens a forwarded connection */
	SEGMENT_FORWARD_REOPENED,	/* translated: the same, from a port whose last connection is over */
	SEGMENT_FORWARD_UNKNOWN,	/* left to the socket: a SYN that this program does not understand */
	SEGMENT_FORWARD_CROWDED,	/* left to the socket: too many connections wait for their server */
	SEGMENT_FORWARD_NO_PORT,	/* left to the socket: all ports towards the server are in use */
	SEGMENT_FORWARD_TAKEN,	/* left to the socket: the port is in use by a socket of the host */
	SEGMENT_FORWARD_LATE,	/* left to the socket: nobody looks after forwarded connections now */
	SEGMENT_FORWARD_LOST,	/* dropped: of a forwarded connection, and the stack would reset it */
	SEGMENT_ICMP_PASSED,	/* passed on: an ICMP error about a segment of a forwarded connection */
	SEGMENT_ICMP_REFUSED,	/* dropped: the same, but no such segment is on its way, or there are too many */
	SEGMENT_TOO_BIG,	/* not sent on: longer than the device beyond takes */
	SEGMENT_DAMAGED,	/* translated, though its checksum is wrong: nothing is learned from it */
	SEGMENT_UNACCEPTABLE,	/* translated, though its receiver will not take it: the same */
	SEGMENT_HELD_BACK,	/* dropped: the relay's sockets take the connection up again at this moment */
	SEGMENT_CHALLENGED,	/* answered: a SYN on a connection that lives */
	SEGMENT_NO_WAY,		/* dropped: the stack would not take it from its sender now, or has no way to its receiver */
	SEGMENT_REASONS,
};

#endif
