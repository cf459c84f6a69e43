//! Buffers that are provided to the kernel, which picks one when bytes have come.
//!
//! ```text
//! free ──refill──▶ provided (the kernel may write) ──completion names it──▶ piece ──sent──▶ free
//! ```
//!
//! A buffer that was picked leaves the group as a [`Piece`] and another one takes its place at
//! once: however many buffers slow receivers hold, the others find the ring full. Buffers are used
//! again last first, so that the next one is in the CPU's cache.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// How many buffers a group keeps beside the provided ones.
const KEPT: usize = 64;

/// Memory that the kernel writes and reads. This process never looks into it, so there is no
/// reference that the kernel's writes could break.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    bytes: u32,
}

impl Memory {
    fn new(bytes: u32) -> Self {
        let memory = Box::<[u8]>::new_uninit_slice(bytes as usize);
        Self {
            start: NonNull::from(Box::leak(memory)).cast(),
            bytes,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let slice = NonNull::slice_from_raw_parts(self.start, self.bytes as usize);
        // SAFETY: `start` and `bytes` are those of the box that `new` leaked, and no request names
        // the memory any more: a group and a piece are let go only then.
        drop(unsafe { Box::from_raw(slice.as_ptr()) });
    }
}

/// Bytes that have come, in a buffer that is no longer the kernel's.
#[derive(Debug)]
pub(super) struct Piece {
    memory: Memory,
    start: u32,
    end: u32,
}

impl Piece {
    pub(super) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// What the piece occupies, in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.memory.bytes as usize
    }

    /// Where its first byte lies. The address is good as long as the piece is kept.
    pub(super) fn address(&self) -> *mut u8 {
        self.memory.start.as_ptr().wrapping_add(self.start as usize)
    }

    /// Takes away bytes that were sent; `count` is at most [`len`](Self::len).
    pub(super) fn advance(&mut self, count: usize) {
        debug_assert!(count <= self.len());
        self.start += count as u32;
    }
}

/// A ring of provided buffers of one size.
///
/// The buffer at position `p` of the ring always has the number `p`, since the kernel takes them in
/// the order of the ring and they are replaced in that order.
#[derive(Debug)]
pub(super) struct Group {
    number: u16,
    buffer_bytes: u32,
    entries: NonNull<BufRingEntry>,
    mapped_bytes: usize,
    /// By position; `None` where one was picked and not yet replaced.
    provided: Box<[Option<Memory>]>,
    tail: u16,
    free: Vec<Memory>,
}

impl Group {
    /// Provides `count` buffers, a power of two.
    pub(super) fn new(
        ring: &IoUring,
        number: u16,
        count: u16,
        buffer_bytes: u32,
    ) -> Result<Self, Errno> {
        debug_assert!(count.is_power_of_two());
        let mapped_bytes = usize::from(count) * size_of::<BufRingEntry>();
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let entries = NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)?;
        let mut group = Self {
            number,
            buffer_bytes,
            entries,
            mapped_bytes,
            provided: (0..count).map(|_| None).collect(),
            tail: 0,
            free: Vec::new(),
        };
        // SAFETY: the mapping is as long as `count` entries, begins on a page, and lives as long as
        // the group, which its owner drops after the ring.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(entries.as_ptr() as u64, count, number, 0)
        }
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
        group.refill();
        Ok(group)
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes as usize
    }

    /// Leaves what is provided to the kernel for good.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.provided));
    }

    /// What the kernel can fill before the next [`refill`](Self::refill), in bytes.
    pub(super) fn stock_bytes(&self) -> usize {
        self.provided.len() * self.buffer_bytes()
    }

    /// Takes what the kernel has put into the buffers from number `first` on; gives the pieces to
    /// `each`. It takes one buffer at least.
    pub(super) fn take(&mut self, first: u16, bytes: usize, mut each: impl FnMut(Piece)) {
        let mask = self.provided.len() as u16 - 1;
        let (mut number, mut left) = (first & mask, bytes);
        loop {
            let count = left.min(self.buffer_bytes());
            if let Some(memory) = self.provided[usize::from(number)].take() {
                let (start, end) = (0, count as u32);
                each(Piece { memory, start, end });
            }
            left -= count;
            number = (number + 1) & mask;
            if left == 0 {
                break;
            }
        }
    }

    /// Takes a buffer back.
    pub(super) fn give_back(&mut self, piece: Piece) {
        if self.free.len() < KEPT {
            self.free.push(piece.memory);
        }
    }

    /// Provides buffers in place of those that were taken.
    pub(super) fn refill(&mut self) {
        let mask = self.provided.len() as u16 - 1;
        let before = self.tail;
        loop {
            let position = self.tail & mask;
            let slot = &mut self.provided[usize::from(position)];
            if slot.is_some() {
                break;
            }
            let memory = self
                .free
                .pop()
                .unwrap_or_else(|| Memory::new(self.buffer_bytes));
            // SAFETY: `position` is below the number of entries of the mapping.
            let mut entry = unsafe { self.entries.add(usize::from(position)) };
            // SAFETY: the kernel does not look at this entry before the tail has passed it.
            let entry = unsafe { entry.as_mut() };
            entry.set_addr(memory.start.as_ptr() as u64);
            entry.set_len(memory.bytes);
            entry.set_bid(position);
            *slot = Some(memory);
            self.tail = self.tail.wrapping_add(1);
        }
        if self.tail != before {
            // SAFETY: the mapping begins with an entry, in which the ring's tail lies.
            let tail = unsafe { BufRingEntry::tail(self.entries.as_ptr()) };
            // SAFETY: the tail is an aligned u16 within the mapping, which the kernel only reads.
            let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
            // What was written into the entries is seen first.
            tail.store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: the mapping is the group's own, nobody holds a reference into it, and the ring
        // that knew it is gone. A failure leaves it mapped, which does no harm.
        let _ = unsafe { munmap(self.entries.as_ptr().cast(), self.mapped_bytes) };
    }
}
