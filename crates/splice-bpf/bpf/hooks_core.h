/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fields of kernel structures on the way to the registered hooks. Only names and types count
 * here; libbpf finds the offsets in the running kernel's BTF.
 */
#ifndef HOOKS_CORE_H
#define HOOKS_CORE_H

#include "hooks.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

enum nf_hook_ops_type {
	NF_HOOK_OP_UNDEFINED,
};

struct nf_hook_ops {
	enum nf_hook_ops_type hook_ops_type : 8;
	int priority;
};

struct nf_hook_entry {
	void *hook;
	void *priv;
};

struct nf_hook_entries {
	__u16 num_hook_entries;
	struct nf_hook_entry hooks[];
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct net_device {
	struct hlist_node index_hlist;
	int ifindex;
	struct nf_hook_entries *nf_hooks_ingress;
	struct nf_hook_entries *nf_hooks_egress;
};

struct netns_nf {
	struct nf_hook_entries *hooks_ipv4[HOOKS_INET];
	struct nf_hook_entries *hooks_ipv6[HOOKS_INET];
};

struct net {
	struct hlist_head *dev_index_head;
	struct netns_nf nf;
};

struct nsproxy {
	struct net *net_ns;
};

struct task_struct {
	struct nsproxy *nsproxy;
};

#pragma clang attribute pop

#endif
