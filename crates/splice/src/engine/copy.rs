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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::{Buffers, KEPT_OF_EACH_SIZE, SIZES_BYTES, Size};
    use crate::engine::{Carrier, Filled};

    #[test]
    fn a_read_that_fills_its_buffer_makes_the_next_one_larger() {
        let (mut peer, source) = UnixStream::pair().unwrap();
        let mut buffers = Buffers::default();
        let mut size = Size::default();
        // Each fits into the stream's own buffer, so writing it does not block.
        for (filled_bytes, next_bytes) in [
            (4 << 10, 16 << 10),
            (16 << 10, 64 << 10),
            (64 << 10, 256 << 10),
        ] {
            let mut buffer = buffers.take(size);
            peer.write_all(&vec![7; filled_bytes]).unwrap();
            let filled = buffer.fill(source.as_fd(), usize::MAX).unwrap();
            assert_eq!(filled, Filled::Some(filled_bytes));
            size = buffer.next_size();
            buffers.give_back(buffer);
            assert_eq!(SIZES_BYTES[usize::from(size.0)], next_bytes);
        }
        assert_eq!(size.larger(), size, "it grows no further");
        let mut buffer = buffers.take(Size::default());
        peer.write_all(b"short").unwrap();
        let filled = buffer.fill(source.as_fd(), usize::MAX).unwrap();
        assert_eq!(filled, Filled::Last(5));
        assert_eq!(buffer.next_size(), Size::default());
    }

    #[test]
    fn a_loop_keeps_a_few_buffers_and_no_more() {
        let mut buffers = Buffers::default();
        let taken: Vec<_> = (0..100).map(|_| buffers.take(Size::default())).collect();
        taken
            .into_iter()
            .for_each(|buffer| buffers.give_back(buffer));
        assert_eq!(buffers.free[0].len(), KEPT_OF_EACH_SIZE);
    }
}
