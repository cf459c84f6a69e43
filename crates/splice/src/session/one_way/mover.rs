//! What a one-way splice may move, and when it ends. A [`Direction`] moves it.

use std::borrow::Cow;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown, sockopt};
use splice_base::error::{Error, ErrorKind, Result};
use splice_base::socket_option;

use super::end::{End, Transport};
use super::{IdleTimer, OneWayOptions};
use crate::carrier::Carriers;
use crate::carrier::datagram::Datagrams;
use crate::carrier::peek::Peeking;
use crate::direction::{CarrierChoice, Conduit, Direction, Progress, SocketError, TURN_READS};
use crate::kernel::DirectionView as _;
use crate::limits::Limits;
use crate::name::EngineName;
use crate::outcome::{Reason, Side};
use crate::reactor::Readiness;

pub(super) struct Mover {
    /// Source and destination; `None` once they are taken.
    ends: Option<[End; 2]>,
    /// Why it has ended; `None` while it moves.
    reason: Option<Reason>,
    pub(super) direction: Direction,
    options: OneWayOptions,
    /// When the idle timer began. Splices may share it.
    pub(super) idle_since: Arc<Mutex<Instant>>,
}

impl Mover {
    pub(super) fn new(ends: [End; 2], options: &OneWayOptions, now: Instant) -> Result<Self> {
        use Transport::{Datagram, Tcp};
        let choice = match ends.each_ref().map(|end| end.transport) {
            [Datagram, Datagram] => CarrierChoice::Datagrams(Datagrams { is_shared: false }),
            [Datagram, _] | [_, Datagram] => {
                let why = "one socket carries a stream, the other one datagrams";
                return Err(Error::new(ErrorKind::UnsupportedSocket, why));
            }
            [source, destination] => CarrierChoice::Peek(Peeking {
                can_truncate: source == Tcp,
                has_known_room: (source, destination) == (Tcp, Tcp)
                    && socket_option::unsent_low_mark(&ends[1]) == Ok(0),
                passes_on_urgent: options.passes_on_urgent,
                may_pipe: false,
                is_shared: false,
            }),
        };
        Ok(Self {
            ends: Some(ends),
            reason: None,
            direction: Direction::new(choice),
            options: *options,
            idle_since: Arc::new(Mutex::new(now)),
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
        self.direction.given_bytes()
    }

    pub(super) fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// The engine in use, and the reason in words.
    pub(super) fn engine(&self) -> (EngineName, Cow<'static, str>) {
        const WHY: &str =
            "the caller can take the sockets back, so no engine in the kernel may have them";
        let name = match self.direction.carriers_used().piped {
            true => EngineName::Pipe,
            false => EngineName::Copy,
        };
        (name, WHY.into())
    }

    /// When the idle timer expires.
    pub(super) fn idle_at(&self) -> Option<Instant> {
        let IdleTimer { after, .. } = self.options.idle?;
        self.idle_since().checked_add(after)
    }

    fn idle_since(&self) -> MutexGuard<'_, Instant> {
        self.idle_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether bytes have left the source that the destination does not have.
    pub(super) fn is_between(&self) -> bool {
        !self.direction.has_none_in_flight()
    }

    pub(super) fn became(&mut self, side: Side, readiness: Readiness) {
        match side {
            Side::A => {
                self.direction.source_became(readiness);
                if readiness.has_error()
                    && let Some([source, _]) = &self.ends
                    && let Some(errno) = source.rules.error_of_source(source.as_fd())
                {
                    self.fail(Side::A, Errno::from_raw_os_error(errno));
                }
            }
            Side::B => {
                // Room is reported only to who was refused it, so this is something else.
                let is_news = !self.direction.awaits_room();
                self.direction.destination_became(readiness);
                if is_news || readiness.is_broken() {
                    self.probe_destination();
                }
            }
        }
    }

    /// Ends it. Only the first reason counts.
    pub(super) fn end(&mut self, reason: Reason) {
        if self.reason.is_none() {
            if let Some([_, destination]) = &self.ends {
                let waits = reason == Reason::Undone;
                self.direction.settle(destination.as_fd(), waits);
            }
            self.reason = Some(reason);
        }
    }

    fn fail(&mut self, side: Side, errno: Errno) {
        // After a FIN of the peer, its reset is a broken pipe (`tcp_reset`).
        let was_reset = |end: &End| {
            errno == Errno::PIPE
                && end.transport == Transport::Tcp
                && socket_option::is_closed(end).unwrap_or(false)
        };
        let ends = self.ends.as_ref();
        let errno = match ends.is_some_and(|ends| was_reset(&ends[side.index()])) {
            true => Errno::CONNRESET,
            false => errno,
        };
        let errno = errno.raw_os_error();
        self.end(Reason::Failed { side, errno });
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
                send(destination, &[], flags).map(drop)
            }
            _ => sockopt::socket_error(destination).and_then(|pending| pending),
        };
        match probed {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => self.fail(Side::B, errno),
        }
    }

    /// Moves what can move now, unless it has ended or ends now: then there is a reason.
    pub(super) fn pump(&mut self, carriers: &mut Carriers, now: Instant) -> Progress {
        let can_move = self.reason.is_none() && self.direction.can_move();
        let mut progress = Progress::Waits;
        if let Some([source, _]) = &self.ends {
            let rules = Arc::clone(&source.rules);
            rules.turn(&mut || progress = self.turn(carriers));
        }
        if can_move && self.options.idle.is_some_and(|idle| idle.restarts) {
            *self.idle_since() = now;
        }
        progress
    }

    fn turn(&mut self, carriers: &mut Carriers) -> Progress {
        let Some(ends) = self.ends.as_ref().filter(|_| self.reason.is_none()) else {
            return Progress::Waits;
        };
        let [source, destination] = ends;
        let rules = &source.rules;
        // What is in flight is written first. It may read in its next turn.
        let is_to_read = self.direction.can_move() && self.direction.has_none_in_flight();
        let turn_reads = match is_to_read {
            true => rules.reads(source.as_fd()).min(TURN_READS),
            false => 0,
        };
        if is_to_read && turn_reads == 0 {
            self.end(Reason::Looped);
            return Progress::Waits;
        }
        let largest_datagram = match source.transport {
            Transport::Datagram => rules.largest_datagram(destination.as_fd()),
            Transport::Tcp | Transport::Stream => usize::MAX,
        };
        let progress = self.direction.pump(&mut Conduit {
            source,
            destination,
            carriers,
            shares: Limits::default().shares(),
            pipe_after_bytes: 0,
            byte_limit: self.options.byte_limit,
            largest_datagram,
            messages: None,
            receive_bytes: 0,
            turn_reads,
            closing: false,
        });
        let reaches_limit = self.options.byte_limit == Some(self.moved_bytes());
        match progress {
            Ok(_) if !self.direction.has_ended() => {}
            // Datagrams have no other end.
            Ok(_) if reaches_limit || source.transport == Transport::Datagram => {
                self.end(Reason::ByteLimit);
            }
            Ok(_) => {
                if self.options.passes_on_end {
                    // It fails only if the connection is gone.
                    let _ = shutdown(destination, Shutdown::Write);
                }
                self.end(Reason::EndOfStream);
            }
            Err(SocketError {
                at_destination,
                errno,
            }) => {
                let side = if at_destination { Side::B } else { Side::A };
                self.fail(side, errno);
            }
        }
        progress.unwrap_or(Progress::Waits)
    }
}
