// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A filter on a clsact qdisc stays when its process has died, and what it translates then belongs
 * to nobody. So this stands there in the program's place and calls it by a table that the kernel
 * empties when the last process has closed it (`prog_array_map_release_uref`): from then on every
 * packet goes on untouched.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NEXT -1

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} callees SEC(".maps");

SEC("tc")
int caller(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &callees, 0);
	return NEXT;
}
