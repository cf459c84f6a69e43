//! Provided buffers: the kernel picks one when bytes arrive.
//!
//! ```text
//! free ──refill──▶ provided (the kernel may write) ──completion names it──▶ piece ──sent──▶ free
//! ```
//!
//! A picked buffer leaves the group as a [`Piece`], and another one takes its place at once. So
//! however many buffers slow receivers hold, the ring is full for the others. The group reuses the
//! last buffer first, since it is in the CPU's cache.
//!
//! The kernel picks buffers in the order of the ring, but completions may come in another order. A
//! receive that a kernel worker (io-wq) has taken picks its buffer when it begins to wait
//! (`io_ring_buffer_select` with `IO_URING_F_UNLOCKED`) and names it when bytes arrive, perhaps
//! never. A worker takes it if the kernel has no memory to poll the socket, or after 128 futile
//! wake-ups (`io_req_alloc_apoll`, 6.18). So a completion is looked up by its buffer's number. A
//! buffer counts as picked as soon as a later one was, and the ring replaces it without waiting.
//!
//! The completion of a bundle names only its first buffer. The others follow in the order of the
//! ring, but a worker that has filled its buffer continues where the ring is by then
//! (`io_recv_finish`, seen on 6.18). If the buffers are in doubt, the bytes are lost and their pair
//! ends ([`Taken::Lost`]). Once a worker has taken a bundle, the ring requests no more bundles.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// How many free buffers a group keeps beside the provided ones.
const KEPT: usize = 64;

/// Memory that the kernel writes and reads. This process never looks into it, so the kernel's
/// writes break no reference.
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
        // SAFETY: `start` and `bytes` are those of the box that `new` leaked. No request names the
        // memory any more: groups and pieces are dropped only then.
        drop(unsafe { Box::from_raw(slice.as_ptr()) });
    }
}

/// Received bytes, in a buffer that the kernel has returned.
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

    /// The size of its buffer, in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.memory.bytes as usize
    }

    /// The address of its first byte, valid while the piece exists.
    pub(super) fn address(&self) -> *mut u8 {
        self.memory.start.as_ptr().wrapping_add(self.start as usize)
    }

    /// Drops bytes that were sent; `count` is at most [`len`](Self::len).
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
    /// The buffers that the kernel has, by number.
    provided: Vec<Option<Provided>>,
    /// Unused numbers.
    numbers: Vec<u16>,
    /// How many buffers have ever been provided.
    tail: u64,
    /// How many of them the kernel has picked, as far as completions show.
    head: u64,
    free: Vec<Memory>,
}

/// A buffer that the kernel has until a completion names it.
#[derive(Debug)]
struct Provided {
    memory: Memory,
    /// How many buffers were provided before it.
    turn: u64,
}

/// How the buffers of a completion compare with the ring's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    InTurn,
    /// Buffers that were provided later have completed before.
    Late,
    /// It is unknown which buffers belong to the completion, or where its rest is.
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
        // SAFETY: the mapping has room for `count` entries, begins at a page, and lives as long as
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

    /// Leaks the provided buffers, since the kernel may still write there.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.provided));
    }

    /// How much the kernel can fill before the next [`refill`](Self::refill), in bytes.
    pub(super) fn stock_bytes(&self) -> usize {
        usize::from(self.count) * self.buffer_bytes()
    }

    /// Takes the bytes of a completion, whose first buffer is `first`, and passes the pieces to
    /// `each`. It takes at least one buffer.
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
                // A worker has put the rest where the ring was by then. Other passed-over buffers
                // may hold it, or may belong to another worker.
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

    /// The next buffer after `turn` that the kernel still has.
    fn next_after(&self, turn: u64) -> Option<u16> {
        let provided = self.provided.iter().zip(0..);
        let turns =
            provided.filter_map(|(provided, number)| Some((provided.as_ref()?.turn, number)));
        let behind = turns.filter(|(other, _)| *other > turn);
        behind.min().map(|(_, number)| number)
    }

    /// Buffers that the kernel has picked and no completion has named yet.
    fn passed_over(&self) -> impl Iterator<Item = &Provided> {
        let provided = self.provided.iter().flatten();
        provided.filter(|provided| provided.turn < self.head)
    }

    /// Returns a piece's buffer to the group.
    pub(super) fn give_back(&mut self, piece: Piece) {
        if self.free.len() < KEPT {
            self.free.push(piece.memory);
        }
    }

    /// Provides buffers in place of picked ones.
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
            // SAFETY: the kernel has picked the buffer that was provided here before, and does not
            // read this entry until the tail has passed it.
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
            // SAFETY: the mapping begins with an entry that contains the ring's tail.
            let tail = unsafe { BufRingEntry::tail(self.entries.as_ptr()) };
            // SAFETY: the tail is an aligned u16 within the mapping, and the kernel only reads it.
            let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
            // Release: the kernel sees the entries before the tail.
            tail.store(self.tail as u16, Ordering::Release);
        }
    }

    /// An unused number for a buffer; `None` if the kernel has a buffer of each number.
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
        // SAFETY: the mapping belongs to the group, nobody holds a reference into it, and the ring
        // that knew it is gone. If this fails, it stays mapped, which does no harm.
        let _ = unsafe { munmap(self.entries.as_ptr().cast(), self.mapped_bytes) };
    }
}
