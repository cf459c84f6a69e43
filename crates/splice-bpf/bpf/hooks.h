/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What hooks.bpf.c and src/hooks.rs say to each other. */
#ifndef HOOKS_H
#define HOOKS_H

/* Hooks of one protocol, in the order of enum nf_inet_hooks. */
#define HOOKS_INET 5

/*
 * A place at which the kernel calls filters: the five of IPv4, the five of IPv6, and the two of a
 * device.
 */
enum hooks_place {
	HOOKS_IPV4 = 0,
	HOOKS_IPV6 = HOOKS_IPV4 + HOOKS_INET,
	HOOKS_INGRESS = HOOKS_IPV6 + HOOKS_INET,
	HOOKS_EGRESS,
	HOOKS_PLACES,
};

enum hooks_limit {
	/*
	 * Entries in one answer, and looked at in one place. The kernel limits the packet of a test run to a
	 * page without the room for struct skb_shared_info (bpf_prog_test_run_skb), some 3.7 kB.
	 */
	HOOKS_LISTED = 64,
	HOOKS_NAME_BYTES = 44,
	/* The kernel does not say who registered an entry: nf_hook_ops.hook_ops_type is new in 5.14. */
	HOOKS_KIND_UNTOLD = 255,
};

struct hooks_entry {
	char function[HOOKS_NAME_BYTES];	/* as %ps writes it, cut at the end */
	__s32 priority;
	__u8 place;
	__u8 kind;		/* enum nf_hook_ops_type, or HOOKS_KIND_UNTOLD */
	__u8 reserved[2];
};

/* The packet that hooks_count is run on, and the beginning of the one for hooks_list. But for what is
   asked it holds zeroes. */
struct hooks_counts {
	__u8 ethernet[14];
	__u8 device_known;	/* the counts of ingress and egress are those of the device */
	__u8 answered;
	__u32 device;		/* asked for: its index in the namespace of the caller */
	__u32 skip;		/* asked of hooks_list: entries that were listed before */
	__u64 functions;	/* a sum over the place and the function of each entry: tells other ones */
	__u16 count[HOOKS_PLACES];
};

struct hooks_list {
	struct hooks_counts counts;
	struct hooks_entry entry[HOOKS_LISTED];
};


#endif
