/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Programs that are pinned outlive their owner. Its heartbeat tells them whether it lives. */
#ifndef LEASE_H
#define LEASE_H

/* An owner writes its heartbeat every few milliseconds. */
struct lease {
	__u64 heartbeat_ns;	/* CLOCK_MONOTONIC */
	__u64 stale_ns;		/* an older heartbeat is that of a dead owner; 0 if there is no lease */
	__u64 layout;		/* of all that is pinned with it: another process may have another version */
	__u64 lapsed;		/* it was found stale, and that is for good; of a bypass never, since that keeps the order by itself */
};

/* Whether the heartbeat is too old at @now_ns, which may be of a clock that is behind it: the coarse one. */
static __always_inline int is_stale(struct lease *of, __u64 now_ns)
{
	return (__s64)(now_ns - of->heartbeat_ns) > (__s64)of->stale_ns;
}

#endif
