//! The completion ring, which the kernel maps into the process.

use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// The header of the mapped ring, `struct aio_ring`.
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

/// The result of a request, `struct io_event`. The completions follow the ring's header.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Completion {
    pub(super) data: AtomicU64,
    pub(super) obj: AtomicU64,
    pub(super) res: AtomicI64,
    _res2: AtomicI64,
}

const _: () = assert!(size_of::<RingHeader>() == 32 && size_of::<Completion>() == 32);

/// The completion ring of a context.
#[derive(Debug)]
pub(super) struct CompletionRing {
    /// The kernel's id of the context: the address of its ring (`ioctx_alloc`).
    id: usize,
}

impl CompletionRing {
    /// The completion ring of the context `id`.
    ///
    /// # Safety
    /// The context must outlive this.
    pub(super) unsafe fn of(id: usize) -> Self {
        Self { id }
    }

    pub(super) fn id(&self) -> usize {
        self.id
    }

    /// Whether it has the layout that this code knows.
    pub(super) fn is_known(&self) -> bool {
        self.header().is_known()
    }

    /// Where the kernel will put the next completion.
    pub(super) fn next_slot(&self) -> &Completion {
        self.slot(self.header().tail.load(Ordering::Acquire))
    }

    /// The oldest completion: the request's data and its result.
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
        // SAFETY: the ring is mapped at the context's id, for at least a page, until the context is
        // destroyed, which outlives `self`. The fields that the kernel changes are atomic.
        unsafe { &*ptr::with_exposed_provenance(self.id) }
    }

    fn slot(&self, index: u32) -> &Completion {
        assert!(index < self.header().slots);
        let behind_header = self.id + size_of::<RingHeader>();
        let address = behind_header + index as usize * size_of::<Completion>();
        // SAFETY: the ring has `slots` completions after its header, and all of it stays mapped
        // while `self` exists. Every field is atomic.
        unsafe { &*ptr::with_exposed_provenance(address) }
    }
}
