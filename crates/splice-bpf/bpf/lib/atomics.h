/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Order between what user space writes and what a program reads without a lock.
 *
 * x86 and s390x keep loads in order, and stores. Another CPU may load the numbers that belong to a state
 * before the state, and find the new state with old numbers. A load that keeps later ones after it
 * (BPF_LOAD_ACQ) does not do: an object that has one is refused by kernels before it (2025). But an atomic
 * operation that returns the old value is a full barrier on all of them (Documentation/atomic_t.txt: "RMW
 * operations that have a return value are fully ordered"; of cmpxchg, those that succeed). It works on the
 * program's own stack, so CPUs do not contend for it.
 */
#ifndef ATOMICS_H
#define ATOMICS_H

#include <stdbool.h>

#include "lib/tcp.h"

/*
 * One read or write of the memory, as in the kernel: the compiler neither repeats it nor leaves it out.
 * @x: the variable. READ_ONCE gives its value.
 */
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

/*
 * Set by user space before the object is loaded (src/load.rs). The map is read-only then, so where it
 * is false the verifier takes the whole fence away.
 */
const volatile bool weakly_ordered SEC(".rodata.order") = false;

/* A full barrier: what was read or written before this comes before what is read or written after it. */
static __always_inline void fence(void)
{
	if (weakly_ordered) {
		__u32 word = 0;

		__sync_val_compare_and_swap((volatile __u32 *)&word, 0, 1);
	}
}

/*
 * Reads what another CPU, or user space, has published. All that is read after this is at least as new.
 * @word: where it was published. The value.
 */
static __always_inline __u32 load_acquire(const __u32 *word)
{
	__u32 value = READ_ONCE(*word);

	fence();
	return value;
}

/*
 * Moves a mark in a sequence space forward, never back: segments of one peer come in on several CPUs, and
 * what is acknowledged beyond a mark that fell back would count as untrue for ever.
 * @mark: the mark. @to: where to, if that lies ahead.
 */
static __always_inline void raise(__u32 *mark, __u32 to)
{
	__u32 old = READ_ONCE(*mark);
	int i;

	for (i = 0; i < 16 && after(to, old); i++) {
		__u32 found = __sync_val_compare_and_swap(mark, old, to);

		if (found == old)
			return;
		old = found;
	}
}

#endif
