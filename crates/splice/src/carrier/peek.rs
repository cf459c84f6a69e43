//! `copy` and `pipe` for a source that its owner may take back at any byte.
//!
//! Bytes leave the source only once the destination has them, so whoever takes the sockets back
//! finds every byte that was not moved still in the source:
//!
//! - Small amounts are peeked, sent, and then dropped from the source: as many as were sent.
//! - Bulk goes through a pipe, if the destination's buffer has room for all of it.
//!
//! If another process may read the source, bytes are read before they are sent, so that other
//! readers get other bytes: as many as the destination surely takes, or a few.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use splice_base::socket_option;

use super::ReadOutcome;
use super::buffer::Buffer;

/// The room that a send buffer must have beyond what is put into the pipe. Each packet of up to 17
/// pieces (`MAX_SKB_FRAGS`) is charged some 1.3 KiB of its own (`tcp_stream_alloc_skb`), and a full
/// pipe has 256 pieces.
const MARGIN_BYTES: usize = 64 << 10;

/// Less is not worth a pipe.
const PIPED_LEAST_BYTES: usize = 64 << 10;

/// The least that is peeked of bulk, in bytes.
const PEEKED_LEAST_BYTES: usize = 16 << 10;

/// The most that is read from a source that another process may read, in bytes, if the destination
/// may not take it at once: it cannot be put back.
const HELD_MOST_BYTES: usize = 4 << 10;

/// What is known of a source that its owner may take back, and of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peeking {
    /// The source drops bytes without a copy (`MSG_TRUNC`, tcp(7)).
    pub(crate) can_truncate: bool,
    /// The destination takes what its buffer has room for: beyond its mark for unsent bytes a
    /// socket takes nothing, whatever room there is.
    pub(crate) has_known_room: bool,
    /// An urgent byte that the source has inline is sent as one.
    pub(crate) passes_on_urgent: bool,
    /// The thread that moves may use splice(2), which raises `SIGPIPE`.
    pub(crate) may_pipe: bool,
    /// Another process may read the source: what was peeked may be gone when it is to be dropped.
    pub(crate) is_shared: bool,
}

impl Peeking {
    /// Whether the next read may go through a pipe, and the most that it may take, in bytes: 0 if
    /// the destination has no room.
    pub(crate) fn next_read(
        self,
        source: BorrowedFd<'_>,
        destination: BorrowedFd<'_>,
        by_pipe: bool,
    ) -> (bool, usize) {
        let by_pipe = by_pipe && self.may_pipe && self.has_known_room;
        let room_bytes = match self.has_known_room && (by_pipe || self.is_shared) {
            true => room_bytes(destination),
            false => 0,
        };
        if by_pipe && room_bytes >= PIPED_LEAST_BYTES && self.never_blocks(source, destination) {
            return (true, room_bytes);
        }
        let most_bytes = match self.is_shared {
            true if !has_room(destination, 0) => 0,
            true => room_bytes.max(HELD_MOST_BYTES),
            // To peek what is not sent is in vain.
            false if by_pipe => room_bytes.max(PEEKED_LEAST_BYTES),
            false => usize::MAX,
        };
        (false, most_bytes)
    }

    /// Whether splice(2) blocks on neither socket, for which it has no flag. A read of what is there
    /// does not block, whatever the source's flags are, if nobody else takes it (`tcp_splice_read`).
    /// The program may change the flags at any time.
    fn never_blocks(self, source: BorrowedFd<'_>, destination: BorrowedFd<'_>) -> bool {
        let is_non_blocking =
            |fd| fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        is_non_blocking(destination)
            && (!self.is_shared || is_non_blocking(source))
            && ioctl_fionread(source).is_ok_and(|bytes| bytes > 0)
    }

    /// Peeks, sends to `onward`, and drops from the source what was sent. With `may_be_urgent` the
    /// source may have an urgent mark.
    pub(crate) fn fill(
        self,
        buffer: &mut Buffer,
        source: BorrowedFd<'_>,
        at_most: usize,
        onward: BorrowedFd<'_>,
        may_be_urgent: bool,
    ) -> Result<ReadOutcome, Errno> {
        // A read stops before the mark, and does not stop after it.
        let is_at_mark = may_be_urgent
            && self.passes_on_urgent
            && socket_option::is_at_mark(source).unwrap_or(false)
            // Out of line, the mark is passed over with the next byte.
            && sockopt::socket_oobinline(source).unwrap_or(false);
        let space = buffer.space(if is_at_mark { 1 } else { at_most });
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = match recv(source, &mut *space, flags) {
            Ok((0, _)) => return Ok(ReadOutcome::EndOfStream),
            Ok((count, _)) => count,
            Err(Errno::AGAIN) => return Ok(ReadOutcome::Empty),
            Err(errno) => return Err(errno),
        };
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::OOB, is_at_mark);
        let sent = match send(onward, &space[..peeked], flags) {
            Ok(count) => count,
            Err(errno) => return Ok(ReadOutcome::NotTaken(errno)),
        };
        drop_bytes(source, &mut space[..sent], self.can_truncate)?;
        let was_last = sent == peeked && peeked < space.len() && !is_at_mark;
        buffer.took(sent);
        buffer.wrote(Ok(sent as u32));
        Ok(match was_last {
            true => ReadOutcome::LastBytes(sent),
            false => ReadOutcome::Bytes(sent),
        })
    }
}

/// How many bytes the destination surely takes at once.
fn room_bytes(destination: BorrowedFd<'_>) -> usize {
    let memory = socket_option::memory(destination).unwrap_or_default();
    memory
        .send_limit_bytes
        .saturating_sub(memory.send_bytes)
        .saturating_sub(MARGIN_BYTES)
}

/// Drops bytes that were peeked.
fn drop_bytes(source: BorrowedFd<'_>, bytes: &mut [u8], can_truncate: bool) -> Result<(), Errno> {
    let mut flags = RecvFlags::DONTWAIT;
    flags.set(RecvFlags::TRUNC, can_truncate);
    let mut left = bytes.len();
    while left > 0 {
        match recv(source, &mut bytes[..left], flags) {
            // Somebody else has read them meanwhile.
            Ok((_, 0)) | Err(Errno::AGAIN) => return Ok(()),
            // With `MSG_TRUNC` rustix returns the bytes dropped second.
            Ok((_, count)) => left -= count.min(left),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Whether the destination has room, or gets some within `most_s` seconds.
pub(crate) fn has_room(destination: BorrowedFd<'_>, most_s: i64) -> bool {
    let mut fds = [PollFd::new(&destination, PollFlags::OUT)];
    let most = Timespec {
        tv_sec: most_s,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&most)).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::carrier::buffer::{Buffers, Size};

    #[test]
    fn what_the_destination_does_not_take_stays_in_the_source() {
        let (mut client, mut source) = UnixStream::pair().unwrap();
        let (mut destination, mut server) = UnixStream::pair().unwrap();
        destination.set_nonblocking(true).unwrap();
        let peeking = Peeking {
            can_truncate: false,
            has_known_room: false,
            passes_on_urgent: false,
            may_pipe: false,
            is_shared: false,
        };
        let mut buffer = Buffers::default().take(Size::default());
        let mut fill = |source: &UnixStream, destination: &UnixStream| {
            let (from, to) = (source.as_fd(), destination.as_fd());
            let filled = peeking.fill(&mut buffer, from, usize::MAX, to, false);
            let drained = (!buffer.is_empty()).then(|| buffer.drain(to));
            (filled, drained)
        };
        client.write_all(b"taken").unwrap();
        let taken = (Ok(ReadOutcome::LastBytes(5)), Some(Ok(5)));
        assert_eq!(fill(&source, &destination), taken);
        let mut received = [0; 5];
        server.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"taken");

        while destination.write(&[0; 4096]).is_ok() {}
        client.write_all(b"stays").unwrap();
        let not_taken = (Ok(ReadOutcome::NotTaken(Errno::AGAIN)), None);
        assert_eq!(fill(&source, &destination), not_taken);
        source.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"stays");
    }
}
