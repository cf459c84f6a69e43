//! Whole datagrams, also empty ones. One leaves its source once it is sent.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::ReadOutcome;
use super::buffer::Buffer;

/// How datagrams are to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagrams {
    /// Another process may read the source: what is dropped could be another datagram than that
    /// which was peeked, so it is read before it is sent.
    pub(crate) is_shared: bool,
}

impl Datagrams {
    /// Reads one datagram of at most `at_most` bytes, and sends it to `onward` unless the source is
    /// shared. One of more than `largest_bytes` is not taken.
    pub(crate) fn fill(
        self,
        buffer: &mut Buffer,
        source: BorrowedFd<'_>,
        at_most: usize,
        largest_bytes: usize,
        onward: BorrowedFd<'_>,
    ) -> Result<ReadOutcome, Errno> {
        let space = buffer.space(usize::MAX);
        let flags = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        let size = match recv(source, &mut *space, flags) {
            Ok((_, size)) => size.min(space.len()),
            Err(Errno::AGAIN) => return Ok(ReadOutcome::Empty),
            Err(errno) => return Err(errno),
        };
        if size > at_most {
            return Ok(ReadOutcome::OverLimit);
        }
        if size > largest_bytes {
            return Ok(ReadOutcome::NotTaken(Errno::MSGSIZE));
        }
        if self.is_shared {
            return match recv(source, space, RecvFlags::DONTWAIT) {
                Ok((count, _)) => {
                    buffer.took_datagram(count);
                    Ok(ReadOutcome::Bytes(count))
                }
                Err(Errno::AGAIN) => Ok(ReadOutcome::Empty),
                Err(errno) => Err(errno),
            };
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Err(errno) = send(onward, &space[..size], flags) {
            return Ok(ReadOutcome::NotTaken(errno));
        }
        // A datagram is dropped as a whole, however little of it is read.
        match recv(source, &mut [0u8; 1], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
        buffer.took_datagram(size);
        buffer.wrote(Ok(size as u32));
        Ok(ReadOutcome::Bytes(size))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::carrier::buffer::{Buffers, Size};

    /// Without bytes, too, it is in flight until the destination has it.
    #[test]
    fn an_empty_datagram_of_a_shared_source_waits_for_room() {
        let (client, source) = UnixDatagram::pair().unwrap();
        let (destination, server) = UnixDatagram::pair().unwrap();
        destination.set_nonblocking(true).unwrap();
        let shared = Datagrams { is_shared: true };
        let mut buffer = Buffers::default().take(Size::OF_DATAGRAM);
        let earlier = std::iter::repeat_with(|| destination.send(b"earlier"))
            .take_while(Result::is_ok)
            .count();
        client.send(b"").unwrap();
        let (from, to) = (source.as_fd(), destination.as_fd());
        assert_eq!(
            shared.fill(&mut buffer, from, 9, 9, to),
            Ok(ReadOutcome::Bytes(0))
        );
        assert_eq!(buffer.drain(to), Err(Errno::AGAIN));
        assert!(!buffer.is_empty());
        for _ in 0..earlier {
            assert_eq!(server.recv(&mut [0; 9]).unwrap(), 7);
        }
        assert_eq!(buffer.drain(to), Ok(0));
        assert!(buffer.is_empty());
        assert_eq!(server.recv(&mut [0; 9]).unwrap(), 0);
    }
}
