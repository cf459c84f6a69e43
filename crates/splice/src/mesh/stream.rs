//! One member of a mesh in user space: what it has sent of a frame, and what waits to be sent to it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use splice_base::socket_option::memory;

use super::bounds::SKB_COST;
use super::framing::Framing;
use super::reader::FrameReader;

/// What an empty queue may keep allocated for the next frames, in bytes: as much as one read brings.
const SPARE_MOST_BYTES: usize = 64 << 10;

pub(super) struct Stream {
    socket: Arc<OwnedFd>,
    pub(super) place: u32,
    /// `None` while it is reading.
    pub(super) reader: Option<FrameReader>,
    waiting: VecDeque<u8>,
    /// Read from its socket, and written to it, in bytes.
    read_bytes: u32,
    written_bytes: u32,
    /// No more than this is in the send queue of its socket, in bytes of memory; and the round in which that was seen.
    queued_most_bytes: u64,
    seen_in: u64,
    pub(super) is_source: bool,
    /// Whether there may be something to read, and whether its end is next in line.
    pub(super) is_ready: bool,
    pub(super) expects_end: bool,
    pub(super) has_ended: bool,
    /// An urgent byte has come since the socket was empty.
    pub(super) has_urgent: bool,
    has_failed: bool,
    /// Whether it is among those that have something to be sent, or waits for room.
    pub(super) is_dirty: bool,
}

/// What a read has brought.
pub(super) enum Read {
    Bytes(usize),
    Nothing,
    End,
    Failed,
}

impl Stream {
    pub(super) fn new(socket: Arc<OwnedFd>, place: u32, framing: Framing) -> Self {
        Self {
            socket,
            place,
            reader: Some(FrameReader::new(framing)),
            waiting: VecDeque::new(),
            read_bytes: 0,
            written_bytes: 0,
            queued_most_bytes: 0,
            seen_in: 0,
            is_source: false,
            is_ready: false,
            expects_end: false,
            has_ended: false,
            has_urgent: false,
            has_failed: false,
            is_dirty: false,
        }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Read {
        // It fits into the buffer.
        match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
            // A write that fails takes the socket's error, so a read finds only the end.
            Ok((_, 0)) if self.has_failed => self.fail(),
            Ok((_, 0)) => {
                self.is_ready = false;
                self.has_ended = true;
                Read::End
            }
            Ok((_, count)) => {
                self.read_bytes = self.read_bytes.wrapping_add(count as u32);
                // A read that stops short has emptied the socket, and epoll tells what comes later. But it stops in front of
                // an urgent byte as well.
                self.is_ready = count == buffer.len() || self.expects_end || self.has_urgent;
                Read::Bytes(count)
            }
            Err(Errno::AGAIN) => {
                self.is_ready = false;
                self.has_urgent = false;
                Read::Nothing
            }
            Err(Errno::INTR) => Read::Nothing,
            Err(_) => self.fail(),
        }
    }

    fn fail(&mut self) -> Read {
        self.is_ready = false;
        Read::Failed
    }

    /// Behind the last byte, or the end of the stream, that was read.
    pub(super) fn come(&self) -> u32 {
        self.read_bytes.wrapping_add(self.has_ended.into())
    }

    /// Behind the last byte that the socket has taken.
    pub(super) fn written(&self) -> u32 {
        self.written_bytes
    }

    /// Memory of the send queue of its socket, in bytes.
    pub(super) fn queued_bytes(&self) -> u32 {
        memory(&self.socket).map_or(0, |memory| memory.send_bytes as u32)
    }

    /// Whether so many bytes more may be on their way to it. Asks the kernel once in a round, and only if it matters.
    pub(super) fn has_room(&mut self, bytes: usize, most_bytes: u32, round: u64) -> bool {
        let more = (self.waiting.len() + bytes) as u64 + SKB_COST;
        if self.queued_most_bytes + more <= most_bytes.into() {
            return true;
        }
        if self.seen_in == round {
            return false;
        }
        self.seen_in = round;
        self.queued_most_bytes = self.queued_bytes().into();
        self.queued_most_bytes + more <= most_bytes.into()
    }

    /// Puts a frame behind what waits, of which there are at most `most_bytes`.
    pub(super) fn push(&mut self, frame: &[u8], most_bytes: usize, spares: &mut Vec<VecDeque<u8>>) {
        if self.waiting.capacity() == 0 {
            self.waiting = spares.pop().unwrap_or_default();
        }
        let needed = self.waiting.len() + frame.len();
        if needed > self.waiting.capacity() {
            // Twice as much, but no more than can be needed.
            let wanted = (2 * self.waiting.capacity()).min(most_bytes).max(needed);
            self.waiting.reserve_exact(wanted - self.waiting.len());
        }
        self.waiting.extend(frame);
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// The connection has failed.
    pub(super) fn flush(&mut self, spares: &mut Vec<VecDeque<u8>>) -> Result<(), Errno> {
        while !self.waiting.is_empty() {
            let (first, _) = self.waiting.as_slices();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.socket, first, flags) {
                Ok(sent) => {
                    self.waiting.drain(..sent);
                    self.written_bytes = self.written_bytes.wrapping_add(sent as u32);
                    // With what the kernel may need for the bookkeeping of packets, generously.
                    self.queued_most_bytes += 2 * sent as u64 + SKB_COST;
                }
                // EPOLLOUT tells when there is room.
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    self.has_failed = true;
                    self.expects_end = true;
                    // Nobody gets it any more.
                    self.waiting = VecDeque::new();
                    return Err(errno);
                }
            }
        }
        let empty = std::mem::take(&mut self.waiting);
        if empty.capacity() <= SPARE_MOST_BYTES && spares.len() < spares.capacity() {
            spares.push(empty);
        }
        Ok(())
    }
}
