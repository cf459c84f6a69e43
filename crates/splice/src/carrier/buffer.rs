//! A buffer, which holds a direction's bytes where they pass through the process's memory.
//!
//! A direction owns a buffer only while bytes are in it. The loop keeps a few and lends the one
//! used last first, since it is still in the CPU's cache.

use rustix::io::Errno;

/// How much a direction reads at a time, in bytes. It begins with the first size and takes the next
/// one when a read fills the buffer. 4 KiB is the page that a short message touches. Beyond 256 KiB
/// a buffer does not fit the second-level cache of common CPUs. The last size is for messages, of which one is read whole.
/// The kernel makes no longer one out of one piece of memory (`KMALLOC_MAX_SIZE`, 4 MiB on x86-64), and a UNIX socket sends
/// hardly more than such a piece (`unix_dgram_sendmsg`).
const SIZES_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 4 << 20];

/// The largest size that a stream reads at a time.
const LARGEST_OF_STREAM: u8 = 3;

/// How many free buffers of each size a loop keeps. A turn uses one at a time; the others come back
/// from receivers that have just become ready again. Of those for messages none does: see [`Buffers::trim`].
const KEPT_OF_EACH_SIZE: [usize; SIZES_BYTES.len()] = [4, 4, 4, 4, 1];

/// A loop's free buffers.
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
            state: State::Nothing,
        }
    }

    pub(crate) fn give_back(&mut self, buffer: Buffer) {
        if buffer.is_whole() {
            self.keep(buffer.size(), buffer.memory);
        }
    }

    /// Leaves `buffer` memory for the bytes in flight only, and takes back what it had. It is not used for another read.
    pub(crate) fn trim(&mut self, buffer: &mut Buffer) {
        if buffer.is_whole() {
            let (size, held) = (buffer.size(), Box::from(buffer.bytes()));
            (buffer.start, buffer.end) = (0, buffer.end - buffer.start);
            let memory = std::mem::replace(&mut buffer.memory, held);
            self.keep(size, memory);
        }
    }

    fn keep(&mut self, size: Size, memory: Box<[u8]>) {
        let free = &mut self.free[size.0 as usize];
        if free.len() < KEPT_OF_EACH_SIZE[size.0 as usize] {
            free.push(memory);
        }
    }
}

/// How much a direction reads at a time: an index into `SIZES_BYTES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size(u8);

impl Size {
    /// The largest datagram of UDP, 64 KiB.
    pub(crate) const OF_DATAGRAM: Self = Self(2);

    /// The longest message, 4 MiB.
    pub(crate) const OF_MESSAGE: Self = Self(LARGEST_OF_STREAM + 1);

    fn larger(self) -> Self {
        Self((self.0 + 1).min(LARGEST_OF_STREAM.max(self.0)))
    }
}

/// A buffer and the bytes in it. Small, since each direction has room for one.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Box<[u8]>,
    start: u32,
    end: u32,
    state: State,
}

/// What is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Nothing,
    /// The bytes, or a datagram without any.
    Held,
    /// The same; a write was made together with the read, and has still to be reported.
    Written(u32),
    NotWritten(Errno),
}

impl Buffer {
    /// Whether it has the size for the next read of a stream.
    pub(crate) fn suits_next(&self) -> bool {
        self.is_whole() && self.next_size() == self.size()
    }

    /// Whether it is of this size. A trimmed one may be by chance, but of a smaller size than it was.
    pub(crate) fn has(&self, size: Size) -> bool {
        self.memory.len() == SIZES_BYTES[size.0 as usize]
    }

    /// Whether it has memory of one of the sizes that are lent: what it was lent with, unless it was trimmed.
    fn is_whole(&self) -> bool {
        SIZES_BYTES.contains(&self.memory.len())
    }

    fn size(&self) -> Size {
        let fits = |bytes: &usize| *bytes >= self.memory.len();
        let place = SIZES_BYTES.iter().position(fits);
        Size(place.unwrap_or(SIZES_BYTES.len() - 1) as u8)
    }

    /// Where the next read may write: at most `at_most` bytes. Nothing is in flight then.
    pub(crate) fn space(&mut self, at_most: usize) -> &mut [u8] {
        let wanted = at_most.min(self.memory.len());
        &mut self.memory[..wanted]
    }

    /// Records that a read has returned this many bytes.
    pub(crate) fn took(&mut self, count: usize) {
        (self.start, self.end) = (0, count as u32);
        self.state = match count {
            0 => State::Nothing,
            _ => State::Held,
        };
    }

    /// The same for a datagram, which may have no bytes.
    pub(crate) fn took_datagram(&mut self, count: usize) {
        self.took(count);
        self.state = State::Held;
    }

    /// Records the result of a write that was made together with the read.
    pub(crate) fn wrote(&mut self, written: Result<u32, Errno>) {
        self.state = written.map_or_else(State::NotWritten, State::Written);
    }

    /// Reports the write that was made together with the read, or else writes.
    pub(crate) fn drain_by(
        &mut self,
        write: impl FnOnce(&[u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let count = match std::mem::replace(&mut self.state, State::Held) {
            State::Written(count) => count as usize,
            State::NotWritten(errno) => return Err(errno),
            State::Held | State::Nothing => write(self.bytes())?,
        };
        self.start += count as u32;
        if self.start == self.end {
            self.state = State::Nothing;
        }
        Ok(count)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state == State::Nothing
    }

    /// The bytes in flight.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start as usize..self.end as usize]
    }

    /// The size for the next read.
    pub(crate) fn next_size(&self) -> Size {
        if self.end as usize == self.memory.len() {
            self.size().larger()
        } else {
            self.size()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffers, KEPT_OF_EACH_SIZE, Size};

    #[test]
    fn the_largest_size_has_no_larger_one() {
        let largest = (0..10).fold(Size::default(), |size, _| size.larger());
        assert_eq!(largest.larger(), largest);
    }

    #[test]
    fn a_loop_keeps_a_few_buffers_and_no_more() {
        let mut buffers = Buffers::default();
        let taken: Vec<_> = (0..100).map(|_| buffers.take(Size::default())).collect();
        taken
            .into_iter()
            .for_each(|buffer| buffers.give_back(buffer));
        assert_eq!(buffers.free[0].len(), KEPT_OF_EACH_SIZE[0]);
    }
}
