/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a TCP header says. */
#ifndef LIB_TCP_H
#define LIB_TCP_H

#include <stdbool.h>

/* The flags in byte 13 of the header */
#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define PSH 0x08
#define ACK 0x10
#define URG 0x20
#define ECE 0x40
#define CWR 0x80

/*
 * Compares in a sequence space, which wraps around (RFC 9293, 3.4).
 * @a, @b: sequence numbers less than 2^31 apart. Whether a comes after b.
 */
static __always_inline bool after(__u32 a, __u32 b)
{
	return (__s32)(b - a) < 0;
}

/* Reads a number in network order. @p: its four bytes, aligned or not. The number. */
static __always_inline __u32 at_be32(const __u8 *p)
{
	return (__u32)p[0] << 24 | (__u32)p[1] << 16 | (__u32)p[2] << 8 | p[3];
}

/* Writes a number in network order. @p: where its four bytes go, aligned or not. @v: the number. */
static __always_inline void put_be32(__u8 *p, __u32 v)
{
	p[0] = v >> 24;
	p[1] = v >> 16;
	p[2] = v >> 8;
	p[3] = v;
}

#endif
