// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For tests: somebody else's program on a device. It counts what comes by, may keep it from who
 * comes after, and may give a port another number, as a balancer would.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "foreign_tc.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NEXT -1
#define CHECK_AT (ETH_HLEN + sizeof(struct iphdr) + offsetof(struct tcphdr, check))

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct foreign_tc);
} foreign_tcs SEC(".maps");

SEC("tc")
int foreign_tc(struct __sk_buff *skb)
{
	__u32 zero = 0, at = ETH_HLEN + sizeof(struct iphdr);
	struct foreign_tc *me = bpf_map_lookup_elem(&foreign_tcs, &zero);
	__u16 ports[2], from, to;
	int verdict;
	__u8 protocol;

	if (!me)
		return NEXT;
	verdict = (int)me->verdict - 1;
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return verdict;
	if (skb->protocol != bpf_htons(ETH_P_IP))
		return NEXT;
	__sync_fetch_and_add(&me->packets, 1);
	if (!me->outer_port ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, protocol), &protocol, 1) ||
	    protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return verdict;
	if (ports[1] == me->outer_port) {
		from = ports[1];
		to = me->inner_port;
		at += offsetof(struct tcphdr, dest);
	} else if (ports[0] == me->inner_port) {
		from = ports[0];
		to = me->outer_port;
	} else {
		return verdict;
	}
	bpf_l4_csum_replace(skb, CHECK_AT, from, to, sizeof(to));
	bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
	__sync_fetch_and_add(&me->rewritten, 1);
	return verdict;
}
