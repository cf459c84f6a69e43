/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What clock.bpf.c and src/clock.rs say to each other. */
#ifndef CLOCK_H
#define CLOCK_H

/* A packet is no shorter than an Ethernet header. */
struct clock_reading {
	__u8 ethernet[14];
	__u8 reserved[2];
	__u64 now_ns;
};

#endif
