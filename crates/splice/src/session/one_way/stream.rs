//! Moves the bytes of a stream so that it can stop at any of them.
//!
//! Bytes leave the source only once the destination has them, so whoever takes the sockets back
//! finds every byte that was not moved still in the source:
//!
//! - Small amounts are peeked, sent, and then dropped from the source: as many as were sent.
//! - Bulk goes through a pipe, if the destination's buffer has room for all of it.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use splice_base::socket_option;

use super::end::{End, Moved, Transport};
use crate::carrier::buffer::Size;
use crate::carrier::pipe::Pipe;
use crate::carrier::{Carrier as _, Carriers, ReadOutcome};
use crate::outcome::Side;

/// A read of this size or more shows bulk, for which a pipe is cheaper: as for a direction.
const BULK_READ_BYTES: usize = 16 << 10;

/// The room that a send buffer must have beyond what is put into the pipe. Each packet of up to 17
/// pieces (`MAX_SKB_FRAGS`) is charged some 1.3 KiB of its own (`tcp_stream_alloc_skb`), and a full
/// pipe has 256 pieces.
const MARGIN_BYTES: usize = 64 << 10;

/// Less is not worth a pipe.
const PIPED_LEAST_BYTES: usize = 64 << 10;

/// The most that is read from a source that another process may read, in bytes, if the destination
/// may not take it at once: it cannot be put back.
const HELD_MOST_BYTES: usize = 4 << 10;

/// How long undoing waits for a destination at a time, in seconds, before it tries again.
const SETTLE_LOOK_S: i64 = 1;

#[derive(Debug)]
pub(super) struct Stream {
    /// The source has an urgent mark, which splice(2) does not get past.
    pub(super) is_urgent: bool,
    passes_on_urgent: bool,
    /// Whether the destination takes what its buffer has room for: beyond its mark for unsent bytes
    /// a socket takes nothing, whatever room there is.
    has_known_room: bool,
    /// Whether the thread that moves may use splice(2), which raises `SIGPIPE`.
    pub(super) may_pipe: bool,
    is_bulk: bool,
    /// Whether a byte went through a pipe.
    pub(super) has_piped: bool,
    size: Size,
    /// A pipe with bytes that the destination has not taken yet: only if the kernel was short of
    /// memory as it filled the send buffer.
    stranded: Option<Pipe>,
    /// Another process may read the source: what was peeked may be gone when it is to be dropped.
    pub(super) is_shared: bool,
    /// What was read from a shared source and not sent yet.
    held: Vec<u8>,
}

impl Stream {
    pub(super) fn new(ends: &[End; 2], passes_on_urgent: bool) -> Self {
        let [_, destination] = ends;
        let mark = socket_option::unsent_low_mark(&destination.fd);
        let has_known_room =
            ends.iter().all(|end| end.transport == Transport::Tcp) && mark == Ok(0);
        Self {
            // A mark may have arrived before; one look shows it.
            is_urgent: passes_on_urgent,
            passes_on_urgent,
            has_known_room,
            may_pipe: false,
            is_bulk: false,
            has_piped: false,
            size: Size::default(),
            stranded: None,
            is_shared: false,
            held: Vec::new(),
        }
    }

    /// Moves once, at most `most_bytes`.
    pub(super) fn step(
        &mut self,
        ends: &[End; 2],
        most_bytes: usize,
        carriers: &mut Carriers,
    ) -> Result<Moved, (Side, Errno)> {
        if let Some(pipe) = self.stranded.take() {
            return self.drain(pipe, ends, carriers);
        }
        if !self.held.is_empty() {
            return self.send_held(ends);
        }
        let mut most_bytes = most_bytes;
        if self.is_bulk && self.has_known_room && self.may_pipe && !self.is_urgent {
            let room_bytes = room_bytes(ends);
            if room_bytes >= PIPED_LEAST_BYTES
                && self.never_blocks(ends)
                && let Ok(pipe) = carriers.pipes.take()
            {
                return self.pipe(pipe, ends, most_bytes.min(room_bytes), carriers);
            }
            // To peek what is not sent is in vain.
            most_bytes = most_bytes.min(room_bytes.max(BULK_READ_BYTES));
        }
        if self.is_shared {
            return self.copy_beside_others(ends, most_bytes, carriers);
        }
        self.copy(ends, most_bytes, carriers)
    }

    /// Whether splice(2) blocks on neither socket, for which it has no flag. A read of what is there
    /// does not block, whatever the source's flags are, if nobody else takes it (`tcp_splice_read`).
    /// The program may change the flags at any time.
    fn never_blocks(&self, [source, destination]: &[End; 2]) -> bool {
        let is_non_blocking =
            |end: &End| fcntl_getfl(&end.fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        is_non_blocking(destination)
            && (!self.is_shared || is_non_blocking(source))
            && ioctl_fionread(&source.fd).is_ok_and(|bytes| bytes > 0)
    }

    fn pipe(
        &mut self,
        mut pipe: Pipe,
        ends: &[End; 2],
        most_bytes: usize,
        carriers: &mut Carriers,
    ) -> Result<Moved, (Side, Errno)> {
        let moved = match pipe.fill(ends[0].fd.as_fd(), most_bytes) {
            Ok(ReadOutcome::Bytes(count) | ReadOutcome::LastBytes(count)) => {
                self.is_bulk = count >= BULK_READ_BYTES / 4;
                self.has_piped = true;
                return self.drain(pipe, ends, carriers);
            }
            Ok(ReadOutcome::Empty) => Ok(Moved::SourceEmpty),
            Ok(ReadOutcome::UrgentMark) => {
                self.is_urgent = true;
                Ok(Moved::Bytes(0))
            }
            Ok(ReadOutcome::EndOfStream) => Ok(Moved::EndOfStream),
            Err(errno) => Err((Side::A, errno)),
        };
        carriers.pipes.give_back(pipe);
        moved
    }

    /// Writes what is in the pipe.
    fn drain(
        &mut self,
        mut pipe: Pipe,
        ends: &[End; 2],
        carriers: &mut Carriers,
    ) -> Result<Moved, (Side, Errno)> {
        let mut moved_bytes = 0;
        while pipe.held() > 0 {
            match pipe.drain(ends[1].fd.as_fd()) {
                Ok(count) => moved_bytes += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.stranded = Some(pipe);
                    return Ok(match moved_bytes {
                        0 => Moved::DestinationFull,
                        _ => Moved::Bytes(moved_bytes),
                    });
                }
                Err(errno) => return Err((Side::B, errno)),
            }
        }
        carriers.pipes.give_back(pipe);
        Ok(Moved::Bytes(moved_bytes))
    }

    fn copy(
        &mut self,
        ends: &[End; 2],
        most_bytes: usize,
        carriers: &mut Carriers,
    ) -> Result<Moved, (Side, Errno)> {
        let mut buffer = carriers.buffers.take(self.size);
        let mut peeked_bytes = 0;
        let moved = self.copy_through(ends, buffer.space(most_bytes), &mut peeked_bytes);
        buffer.took(peeked_bytes);
        self.size = buffer.next_size();
        if peeked_bytes > 0 {
            self.is_bulk = peeked_bytes >= BULK_READ_BYTES
                || self.is_bulk && peeked_bytes >= BULK_READ_BYTES / 4;
        }
        carriers.buffers.give_back(buffer);
        moved
    }

    /// Peeks, sends, and drops from the source what was sent.
    fn copy_through(
        &mut self,
        [source, destination]: &[End; 2],
        space: &mut [u8],
        peeked_bytes: &mut usize,
    ) -> Result<Moved, (Side, Errno)> {
        // A read stops before the mark, and does not stop after it.
        let is_at_mark = self.is_urgent
            && self.passes_on_urgent
            && socket_option::is_at_mark(&source.fd).unwrap_or(false)
            // Out of line, the mark is passed over with the next byte.
            && sockopt::socket_oobinline(&source.fd).unwrap_or(false);
        let space = match is_at_mark {
            true => &mut space[..1],
            false => space,
        };
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = match recv(&source.fd, &mut *space, flags) {
            Ok((0, _)) => return Ok(Moved::EndOfStream),
            Ok((count, _)) => count,
            Err(Errno::AGAIN) => {
                self.is_urgent = false;
                return Ok(Moved::SourceEmpty);
            }
            Err(errno) => return Err((Side::A, errno)),
        };
        *peeked_bytes = peeked;
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::OOB, is_at_mark);
        match send(&destination.fd, &space[..peeked], flags) {
            Ok(count) => {
                let was_last = count == peeked && peeked < space.len() && !is_at_mark;
                drop_bytes(source, &mut space[..count])?;
                Ok(match source.transport {
                    Transport::Tcp if was_last => Moved::LastBytes(count),
                    _ => Moved::Bytes(count),
                })
            }
            Err(Errno::AGAIN) => Ok(Moved::DestinationFull),
            Err(errno) => Err((Side::B, errno)),
        }
    }

    /// Reads, then sends, so that other readers of the source get other bytes: as much as the
    /// destination surely takes, or a little.
    fn copy_beside_others(
        &mut self,
        ends: &[End; 2],
        most_bytes: usize,
        carriers: &mut Carriers,
    ) -> Result<Moved, (Side, Errno)> {
        let [source, destination] = ends;
        if !has_room(destination.fd.as_fd(), 0) {
            return Ok(Moved::DestinationFull);
        }
        let room_bytes = match self.has_known_room {
            true => room_bytes(ends),
            false => 0,
        };
        let most_bytes = most_bytes.min(room_bytes.max(HELD_MOST_BYTES));
        let mut buffer = carriers.buffers.take(self.size);
        let read = recv(
            &source.fd,
            &mut *buffer.space(most_bytes),
            RecvFlags::DONTWAIT,
        );
        if let Ok((count, _)) = read {
            buffer.took(count);
            self.size = buffer.next_size();
            self.is_bulk = count >= BULK_READ_BYTES;
            self.held.extend_from_slice(buffer.bytes());
        }
        carriers.buffers.give_back(buffer);
        match read {
            Ok((0, _)) => Ok(Moved::EndOfStream),
            Ok(_) => self.send_held(ends),
            Err(Errno::AGAIN) => Ok(Moved::SourceEmpty),
            Err(errno) => Err((Side::A, errno)),
        }
    }

    /// Sends what was read from a shared source.
    fn send_held(&mut self, [_, destination]: &[End; 2]) -> Result<Moved, (Side, Errno)> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&destination.fd, &self.held, flags) {
            Ok(count) => {
                self.held.drain(..count);
                Ok(Moved::Bytes(count))
            }
            Err(Errno::AGAIN) => Ok(Moved::DestinationFull),
            Err(errno) => Err((Side::B, errno)),
        }
    }

    /// Whether bytes have left the source that the destination does not have.
    pub(super) fn is_between(&self) -> bool {
        !self.held.is_empty() || self.stranded.is_some()
    }

    /// Has the destination take what is in between, and returns how many bytes it took. With
    /// `waits` it waits as long as the destination can take them: to give up would lose them.
    pub(super) fn settle(&mut self, ends: &[End; 2], waits: bool) -> u64 {
        let [_, destination] = ends;
        let mut moved_bytes = 0;
        while !self.held.is_empty() {
            match self.send_held(ends) {
                Ok(Moved::Bytes(count)) => moved_bytes += count as u64,
                Ok(_) if has_room(destination.fd.as_fd(), SETTLE_LOOK_S) || waits => {}
                Ok(_) => break,
                Err((_, Errno::INTR)) => {}
                Err(_) => break,
            }
        }
        let Some(mut pipe) = self.stranded.take() else {
            return moved_bytes;
        };
        while pipe.held() > 0 {
            match pipe.drain(destination.fd.as_fd()) {
                Ok(count) => moved_bytes += count as u64,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if has_room(destination.fd.as_fd(), SETTLE_LOOK_S) || waits => {}
                // A destination that is gone takes nothing, spliced or not.
                Err(_) => break,
            }
        }
        moved_bytes
    }
}

/// How many bytes the destination surely takes at once.
fn room_bytes([_, destination]: &[End; 2]) -> usize {
    let memory = socket_option::memory(&destination.fd).unwrap_or_default();
    memory
        .send_limit_bytes
        .saturating_sub(memory.send_bytes)
        .saturating_sub(MARGIN_BYTES)
}

/// Drops bytes that were peeked. TCP does it without a copy (`MSG_TRUNC`, tcp(7)).
fn drop_bytes(source: &End, bytes: &mut [u8]) -> Result<(), (Side, Errno)> {
    let mut flags = RecvFlags::DONTWAIT;
    flags.set(RecvFlags::TRUNC, source.transport == Transport::Tcp);
    let mut left = bytes.len();
    while left > 0 {
        match recv(&source.fd, &mut bytes[..left], flags) {
            // Somebody else has read them meanwhile.
            Ok((_, 0)) | Err(Errno::AGAIN) => return Ok(()),
            // With `MSG_TRUNC` rustix returns the bytes dropped second.
            Ok((_, count)) => left -= count.min(left),
            Err(Errno::INTR) => {}
            Err(errno) => return Err((Side::A, errno)),
        }
    }
    Ok(())
}

fn has_room(destination: BorrowedFd<'_>, most_s: i64) -> bool {
    let mut fds = [PollFd::new(&destination, PollFlags::OUT)];
    let most = Timespec {
        tv_sec: most_s,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&most)).is_ok_and(|count| count > 0)
}
