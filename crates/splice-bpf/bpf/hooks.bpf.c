// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Tells user space which filters the kernel calls for packets: its own list of registered
 * netfilter hooks, which also has those that no rule set shows (BPF links, modules of others).
 * Never attached: user space runs it with BPF_PROG_RUN and the question as the packet. It is a tc
 * program since that type can be run this way and may read kernel memory.
 *
 * A test run happens within the system call, so the current task is the caller, and its namespace
 * the one that is meant. The kernel runs it in an RCU read-side section: what is found there is
 * not freed meanwhile.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "hooks_core.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Buckets of net->dev_index_head (NETDEV_HASHENTRIES in linux/netdevice.h) */
#define DEVICE_BUCKETS 256
/* Indices are given in a row, so it takes 8 000 devices for a bucket of this length. */
#define MOST_IN_BUCKET 32

static __always_inline struct net *current_net(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, nsproxy, net_ns);
}

/*
 * Functions with a loop are global, so that the verifier looks at each once, and not again for every
 * number of turns of the loops before it. They take and return the kernel's pointers as numbers.
 */
__noinline __u64 device_of(__u64 namespace, __u32 index)
{
	struct net *net = (void *)namespace;
	struct hlist_head *buckets;
	struct hlist_node *node;
	int i;

	if (!index || !bpf_core_field_exists(net->dev_index_head))
		return 0;
	buckets = BPF_CORE_READ(net, dev_index_head);
	node = BPF_CORE_READ(&buckets[index % DEVICE_BUCKETS], first);
	for (i = 0; i < MOST_IN_BUCKET && node; i++) {
		struct net_device *device =
			(void *)node - bpf_core_field_offset(struct net_device, index_hlist);

		if ((__u32)BPF_CORE_READ(device, ifindex) == index)
			return (__u64)device;
		node = BPF_CORE_READ(node, next);
	}
	return 0;
}

/* What is registered at a place; NULL when that is nothing. */
static __always_inline struct nf_hook_entries *entries_at(struct net *net, struct net_device *device,
							  int place)
{
	if (place >= HOOKS_INGRESS) {
		if (!device)
			return NULL;
		/* A kernel without the field has no such hooks. */
		if (place == HOOKS_INGRESS)
			return bpf_core_field_exists(device->nf_hooks_ingress) ?
				       BPF_CORE_READ(device, nf_hooks_ingress) :
				       NULL;
		return bpf_core_field_exists(device->nf_hooks_egress) ?
			       BPF_CORE_READ(device, nf_hooks_egress) :
			       NULL;
	}
	if (!bpf_core_field_exists(net->nf))
		return NULL;
	if (place >= HOOKS_IPV6)
		return BPF_CORE_READ(net, nf.hooks_ipv6[place - HOOKS_IPV6]);
	return BPF_CORE_READ(net, nf.hooks_ipv4[place]);
}

/* Large and odd, so that the sum of different entries is different (2^64 divided by the golden ratio). */
#define SPREAD 0x9e3779b97f4a7c15ULL

__noinline __u64 functions_of(__u64 registered, __u32 place)
{
	struct nf_hook_entries *entries = (void *)registered;
	__u64 functions = 0;
	__u16 count, i;

	count = BPF_CORE_READ(entries, num_hook_entries);
	for (i = 0; i < HOOKS_LISTED && i < count; i++)
		functions += ((__u64)BPF_CORE_READ(entries, hooks[i].hook) + place) * SPREAD;
	return functions;
}

/* Writes one registered entry into the answer, as its entry number `at`; false where it cannot. */
__noinline int list_entry(struct __sk_buff *skb, __u64 registered, __u32 place, __u32 index, __u32 at)
{
	struct nf_hook_entries *entries = (void *)registered;
	/* struct nf_hook_ops *[], after the entries (nf_hook_entries_get_hook_ops) */
	struct nf_hook_ops **all = (void *)&entries->hooks[BPF_CORE_READ(entries, num_hook_entries)];
	struct hooks_entry entry = { .place = place, .kind = HOOKS_KIND_UNTOLD };
	struct nf_hook_ops *ops = NULL;
	__u64 function;

	if (at >= HOOKS_LISTED)
		return 0;
	function = (__u64)BPF_CORE_READ(entries, hooks[index].hook);
	BPF_SNPRINTF(entry.function, sizeof(entry.function), "%ps", function);
	bpf_probe_read_kernel(&ops, sizeof(ops), &all[index]);
	entry.priority = BPF_CORE_READ(ops, priority);
	if (bpf_core_field_exists(ops->hook_ops_type))
		entry.kind = BPF_CORE_READ_BITFIELD_PROBED(ops, hook_ops_type);
	return !bpf_skb_store_bytes(skb, sizeof(struct hooks_counts) + at * sizeof(entry), &entry,
				    sizeof(entry), 0);
}

/*
 * Lists the entries of one place. The answer has room for HOOKS_LISTED entries, from `skip` on in the
 * order of all; the first of this place is `first` in it. How many the place has.
 */
__noinline __u32 list(struct __sk_buff *skb, __u64 registered, __u32 place, __u32 first, __u32 skip)
{
	struct nf_hook_entries *entries = (void *)registered;
	__u16 count, i;

	count = BPF_CORE_READ(entries, num_hook_entries);
	/* What comes before `skip` wraps around and is out of bounds. */
	for (i = 0; i < HOOKS_LISTED && i < count; i++)
		list_entry(skb, registered, place, i, first + i - skip);
	return count;
}

/* Answers, with `lists` by the entries, too. */
static __always_inline int ask(struct __sk_buff *skb, bool lists)
{
	struct nf_hook_entries *entries;
	struct hooks_counts answer;
	struct net_device *device;
	struct net *net = current_net();
	__u32 first = 0;
	int place;

	if (bpf_skb_load_bytes(skb, 0, &answer, sizeof(answer)))
		return 0;
	device = (void *)device_of((__u64)net, answer.device);
	answer.device_known = !!device;
	for (place = 0; place < HOOKS_PLACES; place++) {
		/* Another array takes its place when one comes or goes: count and list are of one moment. */
		entries = entries_at(net, device, place);
		if (!entries)
			continue;
		answer.count[place] = BPF_CORE_READ(entries, num_hook_entries);
		answer.functions += functions_of((__u64)entries, place);
		if (lists)
			first += list(skb, (__u64)entries, place, first, answer.skip);
	}
	answer.answered = 1;
	return bpf_skb_store_bytes(skb, 0, &answer, sizeof(answer), 0);
}

SEC("tc")
int hooks_count(struct __sk_buff *skb)
{
	return ask(skb, false);
}

SEC("tc")
int hooks_list(struct __sk_buff *skb)
{
	return ask(skb, true);
}
