//! The last words of a side: what its peer has sent before it closed its socket, or refused to take more.
//!
//! ```text
//!            a write to it fails, or            its stream has ended, and the other peer has all;
//!            its socket tells of a reset        or takes nothing for 10 s, or is gone, too
//! both flow ─────────────────────────▶ last words ────────────────────────────────────▶ over, by that reset
//! ```
//!
//! A reset of TCP overtakes what was sent before, and is passed on at once. That of a UNIX socket says only that its peer has
//! closed it with something unread (`unix_release_sock`): what was sent before is still in the queue.
//!
//! What the other peer sends meanwhile is for nobody. Its writes fail, or over TCP it is read and dropped: a peer that is held
//! up in a write may read nothing.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::Running;
use crate::carrier::buffer::Size;
use crate::endpoint::Kind;
use crate::kernel::{DirectionView as _, Watch};
use crate::outcome::{Reason, Side};
use crate::reactor::{Context, Step};

/// How long the other peer may take nothing, as with a byte limit.
const TAKES_NOTHING_MOST: Duration = Duration::from_secs(10);

/// The kernel has no event for "all acknowledged".
const ACKNOWLEDGED_LOOK: Duration = Duration::from_millis(5);

/// How many reads of what nobody gets are made before others on the loop have their turn.
const TURN_DROPS: u32 = 16;

#[derive(Debug)]
pub(super) struct LastWords {
    of: Side,
    reason: Reason,
    began_at: Instant,
    look_at: Instant,
    /// Its socket has told of the reset in place of what it has received.
    is_reset_read: bool,
}

impl LastWords {
    /// When the other peer will have taken nothing for too long.
    fn until(&self, last_moved_at: Instant) -> Instant {
        self.began_at.max(last_moved_at) + TAKES_NOTHING_MOST
    }
}

/// A system call on a side's socket has failed, or its pending error was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) side: Side,
    pub(super) errno: Errno,
    pub(super) call: Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Write,
    TakeError,
}

impl Running {
    /// What a failure is to the pair.
    fn reason(&self, Failure { side, errno, call }: Failure) -> Reason {
        let engine = self.state.engine();
        match engine.and_then(|engine| engine.reset_by()) {
            Some(side) => Reason::Reset(side),
            None if errno == Errno::MSGSIZE
                && call == Call::Write
                && self.ends.sides()[side.index()].kind() == Kind::UnixSeqpacket =>
            {
                Reason::MessageTooLong(side)
            }
            None => Reason::of_errno(side, errno),
        }
    }

    /// Has the pair go on for the last words of a side whose socket has failed.
    ///
    /// # Errors
    /// The reason to end the pair, if there can be none, or they cannot be passed on.
    pub(super) fn hear_out(
        &mut self,
        cx: &mut Context<'_>,
        failure: Failure,
    ) -> Result<(), Reason> {
        let Failure { side, call, .. } = failure;
        let reason = self.reason(failure);
        let is_reset = matches!(reason, Reason::Reset(_));
        let from = &mut self.directions[side.index()];
        match &mut self.last_words {
            // Another error may have taken a message.
            Some(words) if words.of != side || !is_reset => return Err(words.reason),
            // A socket tells of a reset once, then comes what is queued. A ring reads until then, and tells of it again.
            Some(words) if call == Call::Read && words.is_reset_read => from.give_up(),
            Some(words) => {
                words.is_reset_read |= call == Call::Read;
                from.read_again();
            }
            None => {
                let is_tcp = self.ends.sides()[side.index()].kind().is_tcp();
                if !is_reset || is_tcp || self.ends.is_echo() {
                    return Err(reason);
                }
                // They have a time of their own.
                self.half_close = None;
                self.last_words = Some(Box::new(LastWords {
                    of: side,
                    reason,
                    began_at: cx.now(),
                    look_at: cx.now() + TAKES_NOTHING_MOST,
                    is_reset_read: call == Call::Read,
                }));
                self.directions[side.index()].read_again();
                self.directions[side.other().index()].give_up();
                self.ends.sides()[side.other().index()].refuse_more();
                // A ring reads nothing there any more.
                self.watch(cx, side.other(), Watch::Stream)?;
                self.set_deadline(cx);
            }
        }
        Ok(())
    }

    /// Drops what the other peer sends. True if there may be more.
    ///
    /// # Errors
    /// The reason to end the pair, if that peer is gone.
    pub(super) fn drop_answers(&mut self, cx: &mut Context<'_>) -> Result<bool, Reason> {
        let Some(words) = &self.last_words else {
            return Ok(false);
        };
        let socket = self.ends.sides()[words.of.other().index()];
        let mut buffer = cx.carriers().buffers.take(Size::OF_DATAGRAM);
        let (mut is_more, mut is_gone) = (false, false);
        for _ in 0..TURN_DROPS {
            let received = recv(socket, buffer.space(usize::MAX), RecvFlags::DONTWAIT);
            is_more = matches!(received, Ok((1.., _)));
            // Others than TCP are told that nothing is read, and may fail for that.
            is_gone = socket.kind().is_tcp()
                && received.is_err_and(|errno| !matches!(errno, Errno::AGAIN | Errno::INTR));
            // A message may be empty.
            if !is_more && (received.is_err() || !socket.kind().keeps_messages()) {
                break;
            }
        }
        cx.carriers().buffers.give_back(buffer);
        match is_gone {
            true => Err(words.reason),
            false => Ok(is_more),
        }
    }

    /// Ends a pair whose streams have ended: after last words, once the other peer has them.
    pub(super) fn end_of_streams(&mut self, cx: &mut Context<'_>) -> Result<Step, Reason> {
        let (now, last_moved_at) = (cx.now(), self.last_moved_at(cx.now()));
        let Some(words) = &mut self.last_words else {
            return Err(Reason::EndOfStream);
        };
        let until = words.until(last_moved_at);
        if until <= now || self.ends.sides()[words.of.other().index()].has_delivered_all() {
            return Err(words.reason);
        }
        // What the other peer sends brings the pair here as well.
        words.look_at = until.min(now + ACKNOWLEDGED_LOOK);
        self.set_deadline(cx);
        Ok(Step::Wait)
    }

    pub(super) fn last_words_look_at(&self) -> Option<Instant> {
        self.last_words.as_ref().map(|words| words.look_at)
    }

    /// Looks whether the other peer still takes last words. True if it is time for that look.
    ///
    /// # Errors
    /// The reason to end the pair.
    pub(super) fn look_at_last_words(&mut self, now: Instant) -> Result<bool, Reason> {
        let last_moved_at = self.last_moved_at(now);
        let Some(words) = &mut self.last_words else {
            return Ok(false);
        };
        if words.look_at > now {
            return Ok(false);
        }
        let until = words.until(last_moved_at);
        if until <= now {
            return Err(words.reason);
        }
        words.look_at = until;
        Ok(true)
    }
}
