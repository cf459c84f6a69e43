/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Order between what user space writes and what a program reads without a lock.
 *
 * x86 and s390x keep loads in order, and stores. Another CPU may load the numbers that belong to a state
 * before the state, and find the new state with old numbers. A load that keeps later ones behind it
 * (BPF_LOAD_ACQ) does not do: an object that has one is refused by kernels before it (2025). But an atomic
 * operation that returns the old value is a full barrier on all of them (Documentation/atomic_t.txt: "RMW
 * operations that have a return value are fully ordered"; of cmpxchg, those that succeed). It works on the
 * program's own stack, so CPUs do not contend for it.
 */
#ifndef FENCE_H
#define FENCE_H

#include <stdbool.h>

/*
 * Set by user space before the object is loaded (src/bpf_object.rs). The map is read-only then, so where it
 * is false the verifier takes the whole fence away.
 */
const volatile bool weakly_ordered SEC(".rodata.order") = false;

/* What was read or written before this comes before what is read or written after it. */
static __always_inline void fence(void)
{
	if (weakly_ordered) {
		__u32 word = 0;

		__sync_val_compare_and_swap((volatile __u32 *)&word, 0, 1);
	}
}

#endif
