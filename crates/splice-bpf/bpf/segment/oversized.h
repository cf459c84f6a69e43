/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Segments that are too long for the relay's own device. bpf_redirect_neigh sends without a look at the MTU. So a pair
 * goes back to its sockets, and for a forwarded connection the ICMP error is made here that a router would send.
 */
#ifndef SEGMENT_OVERSIZED_H
#define SEGMENT_OVERSIZED_H

#include "segment/icmp.h"

/* No device takes less (RFC 791, 3.2), so shorter segments need not be compared with its MTU. */
#define LEAST_MTU 68

/* The TTL of what this host sends (IPDEFTTL) */
#define OWN_HOPS 64

/* What an error that is made here quotes. */
struct icmp_made_tcp {
	struct icmp_quote quote;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__sum16 check;
	__be16 balance;
};

struct icmp_made_v4 {
	struct iphdr ip;
	struct icmp_header icmp;
	struct iphdr quoted;
	struct icmp_made_tcp tcp;
};

struct icmp_made_v6 {
	struct ipv6hdr ip;
	struct icmp_header icmp;
	struct ipv6hdr quoted;
	struct icmp_made_tcp tcp;
};

_Static_assert(sizeof(struct icmp_made_v6) <= sizeof(struct scratch), "the stack has no room for it");

/*
 * Where the segment's checksum is still to be computed (CHECKSUM_PARTIAL), the device that the error leaves on may
 * write it into the quoted header. So the quoted TCP header has the sum 0, before that and after it.
 */
static __always_inline void quote(struct icmp_made_tcp *tcp)
{
	tcp->offset = sizeof(*tcp) / 4 << 4;
	tcp->flags = ACK;
	tcp->balance = csum_fold(SUM_OF(tcp, sizeof(*tcp), 0));
}

/* Makes an error about a segment. @mtu: what would not be too long. Its bytes; 0 if it fails. */
static __always_inline __u32 make_error_v4(struct __sk_buff *skb, struct icmp_made_v4 *p, __u32 mtu)
{
	const __u32 quoted = sizeof(p->icmp) + sizeof(p->quoted) + sizeof(p->tcp);

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &p->quoted, sizeof(p->quoted) + sizeof(p->tcp.quote)))
		return 0;
	quote(&p->tcp);
	p->icmp.type = ICMP_UNREACHABLE;
	p->icmp.code = ICMP_TOO_BIG_CODE;
	p->icmp.rest = bpf_htonl(mtu);
	p->icmp.check = csum_fold(SUM_OF(&p->icmp, quoted, 0));
	p->ip.version = 4;
	p->ip.ihl = sizeof(p->ip) / 4;
	p->ip.tot_len = bpf_htons(sizeof(*p));
	p->ip.ttl = OWN_HOPS;
	p->ip.protocol = IPPROTO_ICMP;
	p->ip.saddr = p->quoted.daddr;
	p->ip.daddr = p->quoted.saddr;
	p->ip.check = csum_fold(SUM_OF(&p->ip, sizeof(p->ip), 0));
	return sizeof(*p);
}

/* The same for IPv6. */
static __always_inline __u32 make_error_v6(struct __sk_buff *skb, struct icmp_made_v6 *p, __u32 mtu)
{
	const __u32 quoted = sizeof(p->icmp) + sizeof(p->quoted) + sizeof(p->tcp);

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &p->quoted, sizeof(p->quoted) + sizeof(p->tcp.quote)))
		return 0;
	quote(&p->tcp);
	p->ip.version = 6;
	p->ip.payload_len = bpf_htons(quoted);
	p->ip.nexthdr = IPPROTO_ICMPV6;
	p->ip.hop_limit = OWN_HOPS;
	p->ip.saddr = p->quoted.daddr;
	p->ip.daddr = p->quoted.saddr;
	p->icmp.type = ICMPV6_TOO_BIG;
	p->icmp.rest = bpf_htonl(mtu);
	p->icmp.check = csum_fold(SUM_OF(&p->icmp, quoted, pseudo_sum_v6(&p->ip)));
	return sizeof(*p);
}

/* Whether a segment may be too long for a device: only then refuse_size() has to be asked. */
static __always_inline bool is_long(const struct __sk_buff *skb)
{
	return skb->len > ETH_HLEN + LEAST_MTU;
}

/*
 * Drops a segment that is too long for a device, or a super-packet of such segments. A pair goes back to its sockets; of
 * a forwarded connection it becomes the error that quotes it, and goes back to its sender.
 * @s: the segment, not written yet. @slot, @from: index of its flow, and the side of its sender. @device: the device.
 * The verdict; NEXT if it is not too long.
 */
__noinline int refuse_size(struct __sk_buff *skb, struct segment *s, __u32 slot, __u32 from, __u32 device)
{
	struct segment_flow *flow = bpf_map_lookup_elem(&segment_flows, &slot);
	struct scratch *b = scratch();
	__u32 headers, made, mtu = 0;
	bool ok;

	if (bpf_check_mtu(skb, device, &mtu, 0, BPF_MTU_CHK_SEGS) <= 0)
		return NEXT;
	/* It counts the option of a super-packet, which the segments of that do not have (ipv6_gso_segment). */
	if (s && s->jumbo && sizeof(struct ipv6hdr) + s->header + skb->gso_size <= mtu)
		return NEXT;
	count(SEGMENT_TOO_BIG);
	/* Who forges one changes nothing. */
	if (!s || !b || !flow || !s->is_acceptable)
		return DROP;
	if (!is_forwarded(flow)) {
		hold(flow, slot, &flow->side[from & 1], SEGMENT_NARROW);
		return DROP;
	}
	/* One that has an option in between is dropped only: its sender repeats it in shorter ones. */
	if (s->jumbo || !may_send_error(slot, from))
		return DROP;
	__builtin_memset(b, 0, sizeof(*b));
	headers = s->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	made = s->ipv6 ? make_error_v6(skb, (void *)b, mtu) : make_error_v4(skb, (void *)b, mtu);
	ok = made && !bpf_skb_change_tail(skb, ETH_HLEN + headers + sizeof(struct icmp_made_tcp), 0) &&
	     !bpf_skb_adjust_room(skb, headers + sizeof(struct icmp_header), BPF_ADJ_ROOM_MAC, 0);
	if (ok && s->ipv6)
		ok = !bpf_skb_store_bytes(skb, ETH_HLEN, b, sizeof(struct icmp_made_v6), BPF_F_RECOMPUTE_CSUM);
	else if (ok)
		ok = !bpf_skb_store_bytes(skb, ETH_HLEN, b, sizeof(struct icmp_made_v4), BPF_F_RECOMPUTE_CSUM);
	if (!ok) {
		count(SEGMENT_UNWRITABLE);
		return DROP;
	}
	return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
}

#endif
