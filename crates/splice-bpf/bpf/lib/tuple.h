/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A connection's addresses and ports, in the forms that programs and the kernel's functions have. */
#ifndef LIB_TUPLE_H
#define LIB_TUPLE_H

#include <stdbool.h>

#include "segment/shared.h"

/* @tuple: addresses, where IPv4 is mapped into IPv6 (RFC 4291, 2.5.5.2). Whether it is IPv4. */
static __always_inline bool is_ipv4(const struct segment_tuple *tuple)
{
	return !tuple->source[0] && !tuple->source[1] && tuple->source[2] == bpf_htonl(0xffff);
}

/*
 * Fills in the key that the kernel looks sockets and tracked connections up by.
 * @key: zeroes, to be filled in. @tuple: the connection. The bytes of the key that count.
 */
static __always_inline __u32 socket_key(struct bpf_sock_tuple *key, const struct segment_tuple *tuple)
{
	if (is_ipv4(tuple)) {
		key->ipv4.saddr = tuple->source[3];
		key->ipv4.daddr = tuple->destination[3];
		key->ipv4.sport = tuple->source_port;
		key->ipv4.dport = tuple->destination_port;
		return sizeof(key->ipv4);
	}
	__builtin_memcpy(key->ipv6.saddr, tuple->source, 16);
	__builtin_memcpy(key->ipv6.daddr, tuple->destination, 16);
	key->ipv6.sport = tuple->source_port;
	key->ipv6.dport = tuple->destination_port;
	return sizeof(key->ipv6);
}

/* @tuple: as segments of one end carry it. @reversed: the same as those of the other end do. */
static __always_inline void reverse(const struct segment_tuple *tuple, struct segment_tuple *reversed)
{
	__builtin_memcpy(reversed->source, tuple->destination, 16);
	__builtin_memcpy(reversed->destination, tuple->source, 16);
	reversed->source_port = tuple->destination_port;
	reversed->destination_port = tuple->source_port;
}

#endif
