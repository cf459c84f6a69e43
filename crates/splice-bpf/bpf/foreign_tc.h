/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What foreign_tc.bpf.c and the tests say to each other. */
#ifndef FOREIGN_TC_H
#define FOREIGN_TC_H

struct foreign_tc {
	__u32 verdict;		/* for IPv4: what the program returns, plus 1; 0: whoever is next decides */
	__u16 outer_port;	/* a port that others know `inner_port` by, network order; 0: none */
	__u16 inner_port;
	__u64 packets;		/* that came by */
	__u64 rewritten;
};

#endif
