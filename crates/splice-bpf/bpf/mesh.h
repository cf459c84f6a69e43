/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs of a mesh and user space share. */
#ifndef MESH_H
#define MESH_H

/* An unsigned integer in the header of a frame. */
struct mesh_field {
	__u32 offset;
	__u32 bytes;		/* 1 to 8 */
	__u32 little_endian;	/* 0 or 1 */
	__u32 reserved;
};

/* How frames look, the same for all members; written before the first joins. */
struct mesh_framing {
	struct mesh_field length;
	struct mesh_field destination;
	__u32 added_bytes;	/* what the length does not count */
	__u32 header_bytes;	/* up to the end of the later field: no frame is shorter */
	__u32 most_bytes;	/* no frame is longer */
	__u32 member_bytes;	/* what may be on its way to a member */
	__u32 is_delimited;	/* 1: there is no length, and the first such byte after the header ends a frame */
	__u32 delimiter;
	__u64 passed_from;	/* user space gets frames to this destination and those above, and to 0 */
	__u32 passes;		/* 0: it gets none */
	__u32 member_parts;	/* how many parts of one sender may wait there */
};

/*
 * A part of a frame for user space. Several members' parts may alternate; those of one member follow one
 * another. A frame whose parts end early was refused after all.
 */
enum mesh_size {
	MESH_SIZE_PART = 1000,		/* with the other fields and the ring's header: 1 KiB */
	MESH_SIZE_PARTS = 66,		/* of the longest frame, 64 KiB */
	MESH_SIZE_HEARD = 1 << 20,	/* of the ring, in bytes */
};

struct mesh_part {
	__u32 source;		/* place of the sender */
	__u32 frame_bytes;
	__u32 offset;		/* of the part in the frame */
	__u32 reserved;
	__u8 content[MESH_SIZE_PART];	/* what the frame does not fill is undefined */
};

/* What a place in the table of members is. */
enum mesh_role {
	MESH_NOBODY,
	MESH_NEWCOMER,	/* a member that has not got its first notice: nothing else goes to it */
	MESH_MEMBER,
	MESH_LEAVING,	/* nothing more goes to it */
	MESH_NOTICES,	/* user space's own socket: its frames to 0 name the receiver after the header */
};

/* What happened to a frame, or to a member for good. */
enum mesh_reason {
	MESH_REASON_NONE,
	MESH_REASON_UNKNOWN,	/* there is no such destination */
	MESH_REASON_FULL,	/* too much is on its way to the destination */
	MESH_REASON_TOO_LONG,	/* the frame would be longer than the limit: nothing after it is read */
	MESH_REASON_TOO_SHORT,	/* the length is less than that of the header: the same */
};

/* What user space has to answer. */
struct mesh_record {
	__u32 source;		/* place of the sender */
	__u32 reason;		/* enum mesh_reason */
	__u64 destination;	/* of a frame that was refused; else the length that was read */
};

/* One member, in an array that user space has mapped. */
struct mesh_member {
	/* Written under the member's socket lock, when frames come from it. */
	__u64 taken_bytes;	/* of all frames that had their verdict */
	__u64 sent_frames;	/* redirected to somebody */
	__u64 unknown_frames;	/* refused: unknown destination */
	__u64 full_frames;	/* refused: too much on the way to the destination */
	__u64 unreported;	/* records that did not fit the ring */
	__u32 fault;		/* MESH_REASON_TOO_LONG or MESH_REASON_TOO_SHORT, for good */
	__u32 searched;		/* bytes of the frame at hand that have no delimiter */
	__u64 passed_frames;	/* for user space */
	__u64 passed_parts;	/* of these */

	/* Written by every CPU that sends something to the member, by atomic operations. */
	__u64 redirected;	/* bytes handed to the member */
	__u64 received_frames;	/* without notices */
	__u64 notices;		/* frames from user space */

	/* Written by user space; the first of NEWCOMER's notices makes it MEMBER. */
	__u32 role;		/* enum mesh_role */
	__u32 write_base;	/* write_seq when it joined */
	__u32 read_base;	/* copied_seq when it joined */
	__u32 reserved_word;
	__u64 heard_parts;	/* of passed_parts, those that user space has done with */
	__u32 reserved_line[4];
};

_Static_assert(sizeof(struct mesh_member) == 128, "no padding");

/* What mesh_inspect tells of a member. */
struct mesh_inspection {
	__u64 id;		/* in */
	__u32 found;		/* out: 1 when there is such a socket */
	__u32 write_seq;	/* out: after the last byte given to its send function */
	__u32 copied_seq;	/* out: after the last byte that was taken out of it */
	__u32 rcv_nxt;		/* out: after the last byte (or end of stream) that came */
	__u32 wmem_queued;	/* out: memory of its send queue, in bytes */
	__u32 queued_skbs;	/* out: redirected to it, not yet given to its send function */
};

#endif
