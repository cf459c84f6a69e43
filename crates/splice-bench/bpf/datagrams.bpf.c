// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Datagrams of many clients at a rate, and what arrives of them behind a relay: both ends of a measurement
 * in which the relay is to be what costs most.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The begin of each frame: user space fills in all but the port and the numbers. */
struct frame {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct udphdr udp;
	__u32 step;
	__u32 sequence;
	/* When it was sent (bpf_ktime_get_ns). */
	__u64 sent_ns;
} __attribute__((packed));

/* What is to be sent; user space writes the first five and zeroes the others. */
struct plan {
	__u64 per_second;
	__u64 window_ns;
	__u64 step;
	__u64 clients;
	__u64 first_port;
	__u64 began_ns;
	/* How long it has sent, at most the window. */
	__u64 took_ns;
	__u64 sent;
	/* Not sent, because the sender had been held up. */
	__u64 skipped;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct plan);
	__uint(max_entries, 1);
} plan SEC(".maps");

struct sink {
	/* Datagrams of this step are counted and dropped; all others reach the server's socket. */
	__u64 step;
	__u64 counted;
	/* Bytes of UDP payload in each; others are in `changed`. */
	__u64 bytes;
	__u64 changed;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct sink);
	__uint(max_entries, 1);
} sink SEC(".maps");

/*
 * How long datagrams took from the relay's device to the server's, in ns: how many took about as long. Up to 2^SUB_BITS
 * each time has a slot; beyond that, each power of two has 2^SUB_BITS of them.
 */
#define SUB_BITS 5
#define SLOTS 1024

struct delays {
	__u64 slots[SLOTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct delays);
	__uint(max_entries, 1);
} delays SEC(".maps");

#define NS_PER_SECOND 1000000000ULL

/*
 * A sender that was held up makes up for no more than this: what is left over would come as a burst that
 * no receive buffer holds.
 */
#define LATE_MOST 256

/*
 * Runs for one frame after another (BPF_F_TEST_XDP_LIVE_FRAMES), as if a device had received it. Passes one
 * on whenever one is due.
 */
SEC("xdp")
int send(struct xdp_md *context)
{
	struct frame *frame = (void *)(long)context->data;
	__u32 zero = 0;
	struct plan *to_do = bpf_map_lookup_elem(&plan, &zero);
	__u64 elapsed, due, done;

	if (!to_do || (void *)(frame + 1) > (void *)(long)context->data_end)
		return XDP_ABORTED;
	elapsed = bpf_ktime_get_ns();
	if (!to_do->began_ns)
		to_do->began_ns = elapsed;
	elapsed -= to_do->began_ns;
	if (elapsed >= to_do->window_ns) {
		to_do->took_ns = to_do->window_ns;
		return XDP_DROP;
	}
	to_do->took_ns = elapsed;
	due = elapsed * to_do->per_second / NS_PER_SECOND;
	done = to_do->sent + to_do->skipped;
	if (done >= due)
		return XDP_DROP;
	if (due - done > LATE_MOST)
		to_do->skipped += due - done - LATE_MOST;
	if (!to_do->clients)
		return XDP_ABORTED;
	frame->udp.source = bpf_htons(to_do->first_port + to_do->sent % to_do->clients);
	frame->step = to_do->step;
	frame->sequence = to_do->sent;
	frame->sent_ns = bpf_ktime_get_ns();
	to_do->sent++;
	return XDP_PASS;
}

static __always_inline __u32 slot_of(__u64 ns)
{
	__u32 exponent = 0;
	__u64 rest = ns;

	for (__u32 half = 32; half; half /= 2) {
		if (rest >> half) {
			rest >>= half;
			exponent += half;
		}
	}
	if (exponent < SUB_BITS)
		return ns;
	exponent -= SUB_BITS;
	return ((exponent + 1) << SUB_BITS) + ((ns >> exponent) & ((1 << SUB_BITS) - 1));
}

static __always_inline void note_delay(__u64 ns, __u64 many)
{
	__u32 zero = 0, slot = slot_of(ns);
	struct delays *all = bpf_map_lookup_elem(&delays, &zero);

	if (slot >= SLOTS)
		slot = SLOTS - 1;
	if (all)
		__sync_fetch_and_add(&all->slots[slot], many);
}

/* On the server's device: the server costs the relay's CPU as little as one on another machine. */
SEC("tc")
int count(struct __sk_buff *packet)
{
	__u32 zero = 0, step, protocol_at = offsetof(struct frame, ip.protocol);
	struct sink *here = bpf_map_lookup_elem(&sink, &zero);
	__u64 many = packet->gso_segs;
	__u64 bytes = packet->len - offsetof(struct frame, step);
	__u64 sent_ns;
	__u8 protocol;

	if (!here || !here->step || packet->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(packet, protocol_at, &protocol, sizeof(protocol)) ||
	    protocol != IPPROTO_UDP ||
	    bpf_skb_load_bytes(packet, offsetof(struct frame, step), &step, sizeof(step)) ||
	    bpf_skb_load_bytes(packet, offsetof(struct frame, sent_ns), &sent_ns, sizeof(sent_ns)))
		return TC_ACT_OK;
	if (step != here->step)
		return TC_ACT_OK;
	if (!many)
		many = 1;
	note_delay(bpf_ktime_get_ns() - sent_ns, many);
	if (bytes == many * here->bytes)
		__sync_fetch_and_add(&here->counted, many);
	else
		__sync_fetch_and_add(&here->changed, many);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
