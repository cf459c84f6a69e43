// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For tests: a bad path. Attached to what comes in on a device, it loses, doubles and reorders
 * TCP segments, since not every kernel has netem.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "disorder.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NEXT -1
#define DROP 2

/* skb->mark of what came round once already */
#define AGAIN 0x53504c44

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct disorder);
} disorders SEC(".maps");

/* SplitMix64 (Steele, Lea, Flood 2014), so that a seed repeats a run's dice. */
static __always_inline __u64 throw_dice(struct disorder *wanted)
{
	const __u64 step = 0x9e3779b97f4a7c15;
	__u64 z = __sync_fetch_and_add(&wanted->dice, step) + step;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

SEC("tc")
int disorder_ingress(struct __sk_buff *skb)
{
	__u32 zero = 0, dice;
	struct disorder *wanted = bpf_map_lookup_elem(&disorders, &zero);

	if (!wanted || (skb->protocol != bpf_htons(ETH_P_IP) &&
			skb->protocol != bpf_htons(ETH_P_IPV6)))
		return NEXT;
	if (skb->mark == AGAIN) {
		skb->mark = 0;
		return NEXT;
	}
	/* A copy that a program hands to a socket here was on no wire. */
	if (skb->mark)
		return NEXT;
	dice = throw_dice(wanted) % 10000;
	if (dice < wanted->lost) {
		__sync_fetch_and_add(&wanted->losses, 1);
		return DROP;
	}
	dice -= wanted->lost;
	if (dice < wanted->doubled || dice < wanted->doubled + wanted->late) {
		/* After what waits already. */
		skb->mark = AGAIN;
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
		skb->mark = 0;
		return dice < wanted->doubled ? NEXT : DROP;
	}
	return NEXT;
}
