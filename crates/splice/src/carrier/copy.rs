//! `copy`: `recv(2)` into a buffer, `send(2)` from it.
//!
//! ```text
//! socket a ──recv──▶ buffer ──send──▶ socket b
//! ```

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::ReadOutcome;
use super::buffer::Buffer;

impl Buffer {
    pub(crate) fn fill(
        &mut self,
        source: BorrowedFd<'_>,
        at_most: usize,
    ) -> Result<ReadOutcome, Errno> {
        let space = self.space(at_most);
        let wanted = space.len();
        match recv(source, space, RecvFlags::DONTWAIT) {
            Ok((count, _)) => {
                self.took(count);
                Ok(ReadOutcome::of_read(count, wanted))
            }
            Err(Errno::AGAIN) => Ok(ReadOutcome::Empty),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) fn drain(&mut self, destination: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.send(destination, SendFlags::empty())
    }

    /// Like [`drain`](Self::drain), if EOF follows at once: TCP may hold the bytes back until
    /// then, so that both travel in one segment.
    pub(crate) fn drain_before_end(&mut self, destination: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.send(destination, SendFlags::MORE)
    }

    fn send(&mut self, destination: BorrowedFd<'_>, flags: SendFlags) -> Result<usize, Errno> {
        let flags = flags | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.drain_by(|bytes| send(destination, bytes, flags))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use crate::carrier::ReadOutcome;
    use crate::carrier::buffer::{Buffers, Size};

    #[test]
    fn a_read_that_fills_its_buffer_makes_the_next_one_larger() {
        let (mut peer, source) = UnixStream::pair().unwrap();
        let mut buffers = Buffers::default();
        let mut size = Size::default();
        // Each fits into the stream's own buffer, so the write does not block.
        for (filled_bytes, next_bytes) in [
            (4 << 10, 16 << 10),
            (16 << 10, 64 << 10),
            (64 << 10, 256 << 10),
        ] {
            let mut buffer = buffers.take(size);
            peer.write_all(&vec![7; filled_bytes]).unwrap();
            let filled = buffer.fill(source.as_fd(), usize::MAX).unwrap();
            assert_eq!(filled, ReadOutcome::Bytes(filled_bytes));
            size = buffer.next_size();
            buffers.give_back(buffer);
            assert_eq!(buffers.take(size).space(usize::MAX).len(), next_bytes);
        }
        let mut buffer = buffers.take(Size::default());
        peer.write_all(b"short").unwrap();
        let filled = buffer.fill(source.as_fd(), usize::MAX).unwrap();
        assert_eq!(filled, ReadOutcome::LastBytes(5));
        assert_eq!(buffer.next_size(), Size::default());
    }
}
