//! Buffers that are provided to the kernel, which picks one when bytes have come.
//!
//! ```text
//! free ──refill──▶ provided (the kernel may write) ──completion names it──▶ piece ──sent──▶ free
//! ```
//!
//! A buffer that was picked leaves the group as a [`Piece`] and another one takes its place at
//! once: however many buffers slow receivers hold, the others find the ring full. Buffers are used
//! again last first, so that the next one is in the CPU's cache.
//!
//! The kernel picks buffers in the order of the ring, but completions may come in another order. A
//! receive that a worker of the kernel (io-wq) has taken picks its buffer when it begins to wait
//! (`io_ring_buffer_select` with `IO_URING_F_UNLOCKED`) and names it when bytes come, perhaps never.
//! It gets to a worker when the kernel has no memory to poll the socket with, or after 128 wake-ups
//! for nothing (`io_req_alloc_apoll`, 6.18). So a completion is looked up by the number of its buffer,
//! and a buffer counts as picked as soon as a later one was: nobody waits for it to be replaced.
//!
//! The completion of a bundle names its first buffer only. The others follow in the order of the ring, but
//! a worker that has filled its buffer goes on where the ring stands by then (`io_recv_finish`, seen on
//! 6.18). Where that leaves a doubt, the bytes are lost and their pair ends ([`Taken::Lost`]); once a worker
//! has shown there are no bundles any more.

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
#[derive(Debug)]
pub(super) struct BufferGroup {
    number: u16,
    buffer_bytes: u32,
    entries: NonNull<BufRingEntry>,
    /// How many entries the ring has, a power of two.
    count: u16,
    mapped_bytes: usize,
    /// What is the kernel's, by the number of the buffer.
    provided: Vec<Option<Provided>>,
    /// Numbers that no buffer has.
    numbers: Vec<u16>,
    /// How many buffers have ever been provided.
    tail: u64,
    /// How many of them the kernel has picked, as far as completions tell.
    head: u64,
    free: Vec<Memory>,
}

/// A buffer that is the kernel's until a completion names it.
#[derive(Debug)]
struct Provided {
    memory: Memory,
    /// Its turn: as many buffers were provided before it.
    turn: u64,
}

/// What a completion has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    InTurn,
    /// Others that were provided later have come before.
    Late,
    /// Nobody can tell which buffers belong to it, or where its rest is.
    Lost,
}

impl BufferGroup {
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
            count,
            mapped_bytes,
            provided: Vec::new(),
            numbers: Vec::new(),
            tail: 0,
            head: 0,
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
        usize::from(self.count) * self.buffer_bytes()
    }

    /// Takes what the kernel has put into buffers, the first of which has the number `first`; gives the
    /// pieces to `each`. It takes one buffer at least.
    pub(super) fn take(&mut self, first: u16, bytes: usize, mut each: impl FnMut(Piece)) -> Taken {
        let (mut number, mut left) = (first, bytes);
        let mut taken = Taken::InTurn;
        loop {
            let provided = self.provided.get_mut(usize::from(number));
            let Some(provided) = provided.and_then(Option::take) else {
                return Taken::Lost;
            };
            self.numbers.push(number);
            let is_late = provided.turn < self.head;
            let count = left.min(self.buffer_bytes());
            left -= count;
            if is_late {
                taken = Taken::Late;
                // A worker has put the rest where the ring stood by then. Others that were passed over
                // may be those, or another worker's.
                if left > 0 && self.passed_over().next().is_some() {
                    return Taken::Lost;
                }
            }
            self.head = self.head.max(provided.turn + 1);
            let (memory, start, end) = (provided.memory, 0, count as u32);
            each(Piece { memory, start, end });
            if left == 0 {
                return taken;
            }
            let Some(next) = self.next_after(provided.turn) else {
                return Taken::Lost;
            };
            number = next;
        }
    }

    /// The buffer behind one, of those that the kernel still has.
    fn next_after(&self, turn: u64) -> Option<u16> {
        let provided = self.provided.iter().zip(0..);
        let turns =
            provided.filter_map(|(provided, number)| Some((provided.as_ref()?.turn, number)));
        let behind = turns.filter(|(other, _)| *other > turn);
        behind.min().map(|(_, number)| number)
    }

    /// What the kernel has picked and no completion has named yet.
    fn passed_over(&self) -> impl Iterator<Item = &Provided> {
        let provided = self.provided.iter().flatten();
        provided.filter(|provided| provided.turn < self.head)
    }

    /// Takes a buffer back.
    pub(super) fn give_back(&mut self, piece: Piece) {
        if self.free.len() < KEPT {
            self.free.push(piece.memory);
        }
    }

    /// Provides buffers in place of those that were picked.
    pub(super) fn refill(&mut self) {
        let before = self.tail;
        while self.tail - self.head < self.count.into() {
            let Some(number) = self.unused_number() else {
                break;
            };
            let memory = self
                .free
                .pop()
                .unwrap_or_else(|| Memory::new(self.buffer_bytes));
            let position = self.tail as usize & (usize::from(self.count) - 1);
            // SAFETY: `position` is below the number of entries of the mapping.
            let mut entry = unsafe { self.entries.add(position) };
            // SAFETY: the kernel has picked what was provided here before, and does not look at this
            // entry before the tail has passed it.
            let entry = unsafe { entry.as_mut() };
            entry.set_addr(memory.start.as_ptr() as u64);
            entry.set_len(memory.bytes);
            entry.set_bid(number);
            self.provided[usize::from(number)] = Some(Provided {
                memory,
                turn: self.tail,
            });
            self.tail += 1;
        }
        if self.tail != before {
            // SAFETY: the mapping begins with an entry, in which the ring's tail lies.
            let tail = unsafe { BufRingEntry::tail(self.entries.as_ptr()) };
            // SAFETY: the tail is an aligned u16 within the mapping, which the kernel only reads.
            let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
            // What was written into the entries is seen first.
            tail.store(self.tail as u16, Ordering::Release);
        }
    }

    /// A number for a buffer; `None` when the kernel has one of each.
    fn unused_number(&mut self) -> Option<u16> {
        if let Some(number) = self.numbers.pop() {
            return Some(number);
        }
        let number = u16::try_from(self.provided.len()).ok()?;
        self.provided.push(None);
        Some(number)
    }

    /// How many buffers the kernel has picked that no completion has named yet.
    #[cfg(test)]
    pub(super) fn kept_by_workers(&self) -> usize {
        self.passed_over().count()
    }
}

impl Drop for BufferGroup {
    fn drop(&mut self) {
        // SAFETY: the mapping is the group's own, nobody holds a reference into it, and the ring
        // that knew it is gone. A failure leaves it mapped, which does no harm.
        let _ = unsafe { munmap(self.entries.as_ptr().cast(), self.mapped_bytes) };
    }
}
