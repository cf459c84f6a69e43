/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What disorder.bpf.c is told, in ten-thousandths of all packets. */
#ifndef DISORDER_H
#define DISORDER_H

struct disorder {
	__u32 lost;
	__u32 doubled;
	__u32 late;
	__u32 reserved;
	__u64 losses;
	/* the state of its random numbers: a seed at first */
	__u64 dice;
};

#endif
