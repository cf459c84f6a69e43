//! What a one-way splice may move, and when it ends. How bytes and datagrams are moved is in
//! `stream.rs` and `datagram.rs`.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};
use splice_base::error::{Error, ErrorKind, Result};
use splice_base::socket_option;

use super::datagram::Datagrams;
use super::end::{End, Moved, Transport};
use super::stream::Stream;
use super::{IdleTimer, OneWayOptions};
use crate::carrier::Carriers;
use crate::name::EngineName;
use crate::outcome::{Reason, Side};
use crate::reactor::Readiness;

/// How much it moves before other tasks of its loop have their turn, in bytes: as a direction of a
/// pair does.
const TURN_BYTES: u64 = 1 << 20;

/// The same for datagrams, which may have no bytes.
const TURN_MOVES: u32 = 256;

/// How it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for one of its sockets.
    Waits,
    /// It could go on, but its turn is over.
    TurnOver,
    Ended,
}

#[derive(Debug)]
enum Way {
    Stream(Stream),
    Datagrams(Datagrams),
}

#[derive(Debug)]
pub(super) struct Mover {
    /// Source and destination; `None` once they are taken.
    ends: Option<[End; 2]>,
    reason: Option<Reason>,
    way: Way,
    moved_bytes: u64,
    options: OneWayOptions,
    /// When the idle timer began.
    idle_since: Instant,
    /// When this or another splice that shares the timer moved bytes.
    shared_since: Option<Arc<Mutex<Instant>>>,
    source_ready: bool,
    /// EOF, an error or an urgent mark may follow the bytes without an event of its own.
    needs_further_read: bool,
    destination_ready: bool,
    /// What a ring of splices has left.
    passes: Option<Arc<AtomicU32>>,
}

impl Mover {
    pub(super) fn new(ends: [End; 2], options: &OneWayOptions, now: Instant) -> Result<Self> {
        let is_datagram = |end: &End| end.transport == Transport::Datagram;
        let way = match ends.each_ref().map(is_datagram) {
            [true, true] => Way::Datagrams(Datagrams::new(options.bounds_datagrams)),
            [false, false] => Way::Stream(Stream::new(&ends, options.passes_on_urgent)),
            _ => {
                let why = "one socket carries a stream, the other one datagrams";
                return Err(Error::new(ErrorKind::UnsupportedSocket, why));
            }
        };
        Ok(Self {
            ends: Some(ends),
            reason: None,
            way,
            moved_bytes: 0,
            options: *options,
            idle_since: now,
            shared_since: None,
            // Something may be there already; the first read shows it.
            source_ready: true,
            // What was there before the registration brings no event of its own.
            needs_further_read: true,
            destination_ready: true,
            passes: None,
        })
    }

    pub(super) fn ends(&self) -> Option<&[End; 2]> {
        self.ends.as_ref()
    }

    /// Takes the descriptors of a splice that has ended, once.
    pub(super) fn take_ends(&mut self) -> Option<([End; 2], Reason)> {
        let reason = self.reason?;
        Some((self.ends.take()?, reason))
    }

    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Why it has ended; `None` while it moves.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// The engine in use, and the reason in words.
    pub(super) fn engine(&self) -> (EngineName, Cow<'static, str>) {
        const WHY: &str =
            "the caller can take the sockets back, so no engine in the kernel may have them";
        match &self.way {
            Way::Stream(stream) if stream.has_piped => (EngineName::Pipe, WHY.into()),
            _ => (EngineName::Copy, WHY.into()),
        }
    }

    /// When the idle timer expires.
    pub(super) fn idle_at(&self) -> Option<Instant> {
        let IdleTimer { after, .. } = self.options.idle?;
        let shared = self.shared_since.as_ref();
        let shared = shared.map(|since| *since.lock().unwrap_or_else(PoisonError::into_inner));
        let since = shared.map_or(self.idle_since, |shared| shared.max(self.idle_since));
        since.checked_add(after)
    }

    pub(super) fn share_idle_timer(&mut self, since: Arc<Mutex<Instant>>) {
        self.shared_since = Some(since);
    }

    /// From now on the loop's thread moves.
    pub(super) fn may_pipe(&mut self) {
        if let Way::Stream(stream) = &mut self.way {
            stream.may_pipe = true;
        }
    }

    /// Whether bytes have left the source that the destination does not have.
    pub(super) fn is_between(&self) -> bool {
        matches!(&self.way, Way::Stream(stream) if stream.is_between())
    }

    /// From now on another process may read the source.
    pub(super) fn share(&mut self) {
        match &mut self.way {
            Way::Stream(stream) => stream.is_shared = true,
            Way::Datagrams(datagrams) => datagrams.is_shared = true,
        }
    }

    pub(super) fn bound_passes(&mut self, passes: Arc<AtomicU32>) {
        self.passes = Some(passes);
    }

    pub(super) fn became(&mut self, side: Side, readiness: Readiness) {
        match side {
            Side::A => {
                self.source_ready |= readiness.is_readable();
                self.needs_further_read = readiness.needs_further_read();
                if let Way::Stream(stream) = &mut self.way {
                    stream.is_urgent |= readiness.is_urgent();
                }
                if self.options.error_goes_first && readiness.has_error() {
                    self.end_with_error_of_source();
                }
            }
            Side::B => {
                // Room is reported only to who was refused it, so this is something else.
                let is_news = self.destination_ready;
                self.destination_ready |= readiness.is_writable();
                if is_news || readiness.is_broken() {
                    self.probe_destination();
                }
            }
        }
    }

    /// Ends it. Only the first reason counts.
    pub(super) fn end(&mut self, reason: Reason) {
        if self.reason.is_none() {
            if let (Way::Stream(stream), Some(ends)) = (&mut self.way, &self.ends) {
                self.moved_bytes += stream.settle(ends, reason == Reason::Undone);
            }
            self.reason = Some(reason);
        }
    }

    fn fail(&mut self, side: Side, errno: Errno) {
        // After a FIN of the peer, its reset is a broken pipe (`tcp_reset`).
        let was_reset = |end: &End| {
            errno == Errno::PIPE
                && end.transport == Transport::Tcp
                && socket_option::is_closed(&end.fd).unwrap_or(false)
        };
        let ends = self.ends.as_ref();
        let errno = match ends.is_some_and(|ends| was_reset(&ends[side.index()])) {
            true => Errno::CONNRESET,
            false => errno,
        };
        let errno = errno.raw_os_error();
        self.end(Reason::Failed { side, errno });
    }

    fn end_with_error_of_source(&mut self) {
        if let Some([source, _]) = &self.ends
            && let Ok(Err(errno)) = sockopt::socket_error(&source.fd)
        {
            self.fail(Side::A, errno);
        }
    }

    /// Whether the destination still takes bytes: a splice ends with its destination, also while
    /// the source has nothing.
    fn probe_destination(&mut self) {
        let Some([_, destination]) = &self.ends else {
            return;
        };
        let probed = match destination.transport {
            // An empty write reports what a write of bytes would (`tcp_sendmsg_locked`).
            Transport::Tcp => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                send(&destination.fd, &[], flags).map(drop)
            }
            _ => sockopt::socket_error(&destination.fd).and_then(|pending| pending),
        };
        match probed {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => self.fail(Side::B, errno),
        }
    }

    /// Moves what can move now.
    pub(super) fn pump(&mut self, carriers: &mut Carriers, now: Instant) -> Progress {
        let turn_ends_at = self.moved_bytes + TURN_BYTES;
        let mut moves = 0;
        let progress = loop {
            if self.reason.is_some() {
                break Progress::Ended;
            }
            if self.left_bytes() == 0 {
                self.end(Reason::ByteLimit);
                continue;
            }
            if !(self.source_ready && self.destination_ready) {
                break Progress::Waits;
            }
            if self.moved_bytes >= turn_ends_at || moves == TURN_MOVES {
                break Progress::TurnOver;
            }
            moves += 1;
            if self.has_looped() {
                self.end(Reason::Looped);
                continue;
            }
            self.step(carriers);
        };
        if moves > 0 && self.options.idle.is_some_and(|idle| idle.restarts) {
            self.idle_since = now;
            if let Some(since) = &self.shared_since {
                *since.lock().unwrap_or_else(PoisonError::into_inner) = now;
            }
        }
        progress
    }

    fn step(&mut self, carriers: &mut Carriers) {
        let left_bytes = self.left_bytes();
        let Some(ends) = &self.ends else {
            return;
        };
        let moved = match &mut self.way {
            Way::Stream(stream) => stream.step(ends, left_bytes, carriers),
            Way::Datagrams(datagrams) => datagrams.step(ends, left_bytes),
        };
        match moved {
            Ok(Moved::Bytes(count)) => self.moved_bytes += count as u64,
            Ok(Moved::LastBytes(count)) => {
                self.moved_bytes += count as u64;
                self.source_ready = self.needs_further_read;
            }
            Ok(Moved::SourceEmpty) => self.source_ready = false,
            Ok(Moved::DestinationFull) => self.destination_ready = false,
            Ok(Moved::OverLimit) => self.end(Reason::ByteLimit),
            Ok(Moved::EndOfStream) => {
                if self.options.passes_on_end {
                    // It fails only if the connection is gone.
                    let _ = rustix::net::shutdown(&ends[1].fd, rustix::net::Shutdown::Write);
                }
                self.end(Reason::EndOfStream);
            }
            Err((_, Errno::INTR)) => {}
            Err((side, errno)) => self.fail(side, errno),
        }
    }

    fn left_bytes(&self) -> usize {
        let limit = self.options.byte_limit.unwrap_or(u64::MAX);
        usize::try_from(limit - self.moved_bytes).unwrap_or(usize::MAX)
    }

    /// Takes a pass, if the source has bytes. True if none is left.
    fn has_looped(&self) -> bool {
        let (Some(passes), Some([source, _])) = (&self.passes, &self.ends) else {
            return false;
        };
        let has_bytes = rustix::io::ioctl_fionread(&source.fd).is_ok_and(|bytes| bytes > 0);
        has_bytes
            && passes
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_err()
    }
}
