//! The ring of completions, which the kernel maps into the process.

use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// What the mapped ring begins with, `struct aio_ring`.
#[repr(C)]
pub(super) struct RingHeader {
    pub(super) _id: u32,
    pub(super) slots: u32,
    pub(super) head: AtomicU32,
    pub(super) tail: AtomicU32,
    pub(super) magic: u32,
    pub(super) _compatible: u32,
    pub(super) incompatible: u32,
    pub(super) header_bytes: u32,
}

pub(super) const RING_MAGIC: u32 = 0xa10a_10a1;

impl RingHeader {
    pub(super) fn is_known(&self) -> bool {
        self.magic == RING_MAGIC
            && self.incompatible == 0
            && self.header_bytes as usize == size_of::<Self>()
    }
}

/// What a request came to, `struct io_event`; the ring's header is followed by them.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Completion {
    pub(super) data: AtomicU64,
    pub(super) obj: AtomicU64,
    pub(super) res: AtomicI64,
    _res2: AtomicI64,
}

const _: () = assert!(size_of::<RingHeader>() == 32 && size_of::<Completion>() == 32);

/// The ring of a context.
#[derive(Debug)]
pub(super) struct CompletionRing {
    /// What the kernel knows the context by: the address of its ring (`ioctx_alloc`).
    id: usize,
}

impl CompletionRing {
    /// The ring of the context `id`.
    ///
    /// # Safety
    /// The context is not destroyed as long as this exists.
    pub(super) unsafe fn of(id: usize) -> Self {
        Self { id }
    }

    pub(super) fn id(&self) -> usize {
        self.id
    }

    /// It has the shape that is known here.
    pub(super) fn is_known(&self) -> bool {
        self.header().is_known()
    }

    /// Where the next completion is going to be.
    pub(super) fn next_slot(&self) -> &Completion {
        self.slot(self.header().tail.load(Ordering::Acquire))
    }

    /// The oldest completion that is there: which request, and its result.
    pub(super) fn take(&mut self) -> Option<(u64, i64)> {
        let header = self.header();
        let head = header.head.load(Ordering::Relaxed);
        if head == header.tail.load(Ordering::Acquire) {
            return None;
        }
        let slot = self.slot(head);
        let completion = (
            slot.data.load(Ordering::Relaxed),
            slot.res.load(Ordering::Relaxed),
        );
        let next = if head + 1 < header.slots { head + 1 } else { 0 };
        header.head.store(next, Ordering::Release);
        Some(completion)
    }

    fn header(&self) -> &RingHeader {
        // SAFETY: the ring is mapped at the context's id, a page at least, until the context is
        // destroyed, which outlives `self`. What the kernel changes in the header is atomic here.
        unsafe { &*ptr::with_exposed_provenance(self.id) }
    }

    fn slot(&self, index: u32) -> &Completion {
        assert!(index < self.header().slots);
        let behind_header = self.id + size_of::<RingHeader>();
        let address = behind_header + index as usize * size_of::<Completion>();
        // SAFETY: the ring has `slots` completions behind its header, and all of it is mapped as
        // long as `self`. Every field is atomic.
        unsafe { &*ptr::with_exposed_provenance(address) }
    }
}
