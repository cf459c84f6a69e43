//! `copy`: `recv(2)` into a buffer, `send(2)` from it.
//!
//! ```text
//! socket a ──recv──▶ buffer ──send──▶ socket b
//! ```
//!
//! A buffer belongs to a direction only while bytes are in it. The loop keeps a few to hand out,
//! the one used last first, since it is still in the CPU's cache.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{Carrier, Filled};

/// What a direction reads at a time, in bytes: it begins with the first and goes up one when a
/// read fills the buffer. 4 KiB is the page that a short message touches; beyond 256 KiB the
/// buffer no longer fits the second-level cache of common CPUs.
const SIZES_BYTES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];

/// How many buffers of each size a loop keeps when no direction has bytes in hand: a turn uses
/// one at a time, the others are those of receivers that have just become ready again.
const KEPT_OF_EACH_SIZE: usize = 4;

/// The buffers that a loop has to hand out.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: [Vec<Box<[u8]>>; SIZES_BYTES.len()],
}

impl Buffers {
    pub(crate) fn take(&mut self, size: Size) -> Buffer {
        let memory = self.free[size.0 as usize]
            .pop()
            .unwrap_or_else(|| vec![0; SIZES_BYTES[size.0 as usize]].into_boxed_slice());
        Buffer {
            memory,
            start: 0,
            end: 0,
            size,
        }
    }

    pub(crate) fn give_back(&mut self, buffer: Buffer) {
        let free = &mut self.free[buffer.size.0 as usize];
        if free.len() < KEPT_OF_EACH_SIZE {
            free.push(buffer.memory);
        }
    }
}

/// How much a direction reads at a time: an index into `SIZES_BYTES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size(u8);

impl Size {
    fn larger(self) -> Self {
        Self((self.0 + 1).min(SIZES_BYTES.len() as u8 - 1))
    }
}

/// A buffer with bytes in hand.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Box<[u8]>,
    start: usize,
    end: usize,
    size: Size,
}

impl Buffer {
    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// What to take for the next read.
    pub(crate) fn next_size(&self) -> Size {
        if self.end == self.memory.len() {
            self.size.larger()
        } else {
            self.size
        }
    }
}

impl Carrier for Buffer {
    fn fill(&mut self, source: BorrowedFd<'_>, at_most: usize) -> Result<Filled, Errno> {
        let wanted = at_most.min(self.memory.len());
        match recv(source, &mut self.memory[..wanted], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(Filled::End),
            Ok((count, _)) => {
                (self.start, self.end) = (0, count);
                Ok(if count < wanted {
                    Filled::Last(count)
                } else {
                    Filled::Some(count)
                })
            }
            Err(Errno::AGAIN) => Ok(Filled::Empty),
            Err(errno) => Err(errno),
        }
    }

    fn drain(&mut self, destination: BorrowedFd<'_>) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let count = send(destination, &self.memory[self.start..self.end], flags)?;
        self.start += count;
        Ok(count)
    }

    fn held(&self) -> usize {
        self.end - self.start
    }
}
