//! One direction of a sockmap pair.

use std::os::fd::AsFd as _;
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::shared::Shared;
use super::{failed, refusal};
use crate::direction::Direction;
use crate::endpoint::Endpoint;
use crate::engine::kernel::Grip;
use crate::outcome::{Reason, Side};
use crate::task::Readiness;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    ByHand,
    InKernel,
    Assisted,
    Left,
    Over,
}

/// What a lane asks of the pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    pub(super) again: bool,
    pub(super) look_again: bool,
}

impl Step {
    const LOOK_AGAIN: Self = Self {
        again: false,
        look_again: true,
    };

    pub(super) fn join(&mut self, other: Self) {
        self.again |= other.again;
        self.look_again |= other.look_again;
    }
}

#[derive(Debug)]
pub(super) struct Lane {
    /// The source's cookie, under which the maps know the direction.
    cookie: u64,
    /// The target's cookie, under which the source is known as a target.
    back_cookie: u64,
    state: State,
    why_left: Option<String>,
    index: Option<u32>,
    /// The target's `write_seq` and the source's `copied_seq` at the insertion.
    base_write: u32,
    base_read: u32,
    /// What user space had given at the insertion; nothing was in hand.
    base_given: u64,
    /// Everything redirected up to this count has been pushed.
    drained_at: Option<u64>,
}

impl Lane {
    pub(super) fn new(cookie: u64, back_cookie: u64) -> Self {
        Self {
            cookie,
            back_cookie,
            state: State::ByHand,
            why_left: None,
            index: None,
            base_write: 0,
            base_read: 0,
            base_given: 0,
            drained_at: None,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn index(&self) -> Option<u32> {
        self.index
    }

    pub(super) fn why_left(&self) -> Option<String> {
        self.why_left.clone()
    }

    /// User space has nothing to do for it.
    pub(super) fn is_asleep(&self, grip: &Grip<'_>) -> bool {
        let ended = grip
            .directions
            .iter()
            .all(|direction| direction.has_ended());
        match self.state {
            State::InKernel | State::Over => true,
            State::Left => ended,
            State::ByHand | State::Assisted => false,
        }
    }

    pub(super) fn insert_target(&self, shared: &Shared, target: &Endpoint) -> Result<(), Errno> {
        shared.targets.insert_socket(&self.cookie, target.as_fd())
    }

    pub(super) fn remove_target(&self, shared: &Shared) {
        shared.targets.remove(&self.cookie);
    }

    /// A stream that is ending needs no engine.
    pub(super) fn leave_if_ending(&mut self, grip: &Grip<'_>, index: usize) {
        if self.state == State::ByHand && grip.directions[index].is_ending() {
            self.leave("its stream had ended before it was taken".into());
        }
    }

    fn leave(&mut self, why: String) {
        self.state = State::Left;
        self.why_left = Some(why);
    }

    /// Read to `EAGAIN`, with nothing in hand: an skb that is read in part would be handed over
    /// whole.
    pub(super) fn is_ready(
        &self,
        grip: &mut Grip<'_>,
        index: usize,
        step: &mut Step,
    ) -> Result<bool, Reason> {
        if self.state != State::ByHand || !grip.directions[index].is_at_rest() {
            return Ok(false);
        }
        match peek(grip.ends[index]) {
            Err(Errno::AGAIN) => Ok(true),
            // Bytes or an end of stream came since; pump once more.
            Ok(_) | Err(Errno::INTR) => {
                grip.directions[index].source_became(Readiness::READABLE);
                step.again = true;
                Ok(false)
            }
            // The look has taken the error from the socket: the next read would see an end.
            Err(errno) => Err(Reason::fault(Side::BOTH[index], errno)),
        }
    }

    /// Hands the direction to the program. From the insertion into `sources` on it runs.
    pub(super) fn insert(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
    ) -> Result<(), Reason> {
        let (target, source) = match (
            shared.inspect(self.cookie),
            shared.inspect(self.back_cookie),
        ) {
            (Ok(target), Ok(source)) => (target, source),
            (Err(errno), _) | (_, Err(errno)) => {
                self.leave(format!("its sockets cannot be looked at: {errno}"));
                return Ok(());
            }
        };
        let Some(index) = shared.claim((grip.waker)()) else {
            self.leave("all its entries are in use".into());
            return Ok(());
        };
        let direction = &mut grip.directions[number];
        self.base_write = target.write_seq;
        self.base_read = source.copied_seq;
        self.base_given = direction.given_bytes();
        let entry = shared.entry(index);
        let limit = grip
            .byte_limit
            .map_or(u64::MAX, |limit| limit - direction.taken_bytes());
        entry.limit.store(limit, Ordering::Relaxed);
        entry.base_seq.store(self.base_read, Ordering::Release);
        let inserted = shared.indices.update(&self.cookie, &index).and_then(|()| {
            let source = grip.ends[number].as_fd();
            shared.sources.insert_socket(&self.cookie, source)
        });
        if let Err(errno) = inserted {
            shared.indices.remove(&self.cookie);
            shared.give_back(index);
            self.leave(refusal(errno));
            return Ok(());
        }
        direction.hold_at(direction.taken_bytes());
        self.index = Some(index);
        self.state = State::InKernel;
        // What came before the insertion waits in the receive queue; a look at it makes TCP run
        // the program on it (`tcp_bpf_recvmsg_parser`).
        match peek(grip.ends[number]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(Reason::fault(Side::BOTH[number], errno)),
        }
    }

    pub(super) fn turn(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
    ) -> Result<Step, Reason> {
        let Some(index) = self.index else {
            return Ok(Step::default());
        };
        if shared.entry(index).missed.load(Ordering::Relaxed) > 0 {
            // Somebody took the target out of the map; what it had in its backlog is lost.
            return Err(failed(1 - number, Errno::IO));
        }
        match self.state {
            State::InKernel | State::Assisted => self.assist(shared, grip, number, index),
            State::ByHand | State::Left | State::Over => Ok(Step::default()),
        }
    }

    /// Does what the program left to user space.
    fn assist(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
        index: u32,
    ) -> Result<Step, Reason> {
        let entry = shared.entry(index);
        let direction = &mut grip.directions[number];
        if direction.has_ended() {
            self.state = State::Over;
            return Ok(Step::default());
        }
        let given = direction.given_bytes() - self.base_given;
        if entry.consumed.load(Ordering::Relaxed) != given {
            entry.consumed.store(given, Ordering::Relaxed);
        }
        // Against the program's own barrier between counting what it passes and reading what was
        // consumed: either it sees this and calls, or its count is seen below.
        fence(Ordering::SeqCst);
        let passed = entry.passed.load(Ordering::Acquire);
        // Read behind `passed`: what precedes passed bytes in the stream is counted by then.
        let redirected = entry.redirected.load(Ordering::Acquire);
        let nothing_left = given == passed;
        if nothing_left && !direction.end_seen() {
            self.state = State::InKernel;
            direction.hold_at(direction.taken_bytes());
            return Ok(Step::default());
        }
        self.state = State::Assisted;
        if self.drained_at != Some(redirected) {
            if !self.is_drained(shared, redirected, given, number)? {
                return Ok(Step::LOOK_AGAIN);
            }
            self.drained_at = Some(redirected);
        }
        if nothing_left {
            return self.finish(shared, grip, number, redirected + passed);
        }
        direction.hold_at(self.base_given + passed);
        if direction.end_seen() {
            direction.source_became(Readiness::READABLE);
        }
        Ok(Step {
            again: direction.can_move() && !direction.end_seen(),
            // Behind an end of stream no edge tells of bytes that come out of the backlog.
            look_again: direction.end_seen(),
        })
    }

    /// The source has told of its end and nothing is left on it: once all that came has had its
    /// verdict, user space reads the end of stream and passes it on.
    fn finish(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
        moved: u64,
    ) -> Result<Step, Reason> {
        if !self.is_complete(shared, grip, number, moved)? {
            return Ok(Step::LOOK_AGAIN);
        }
        let direction = &mut grip.directions[number];
        direction.source_became(Readiness::READABLE);
        direction.hold_at(u64::MAX);
        Ok(Step {
            again: true,
            look_again: false,
        })
    }

    fn is_complete(
        &mut self,
        shared: &Shared,
        grip: &Grip<'_>,
        number: usize,
        moved: u64,
    ) -> Result<bool, Reason> {
        let source = grip.ends[number];
        let seen = shared
            .inspect(self.back_cookie)
            .map_err(|errno| failed(number, errno))?;
        // The end of stream counts as one byte.
        let arrived = seen.rcv_nxt.wrapping_sub(self.base_read).wrapping_sub(1);
        if arrived == moved as u32 {
            return Ok(true);
        }
        // Where skbs wait for their verdict this gives it to them; it also takes the error of a
        // connection that was reset.
        match peek(source) {
            Ok(_) | Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(Reason::fault(Side::BOTH[number], errno)),
        }
    }

    /// Everything that the program has redirected was taken by the target's send function.
    fn is_drained(
        &self,
        shared: &Shared,
        redirected: u64,
        given: u64,
        number: usize,
    ) -> Result<bool, Reason> {
        let seen = shared
            .inspect(self.cookie)
            .map_err(|errno| failed(1 - number, errno))?;
        Ok(seen.write_seq == self.write_seq(redirected, given))
    }

    fn write_seq(&self, redirected: u64, given: u64) -> u32 {
        // Sequence numbers wrap at 32 bits, and so do the counts here.
        self.base_write.wrapping_add((redirected + given) as u32)
    }

    /// What of the redirected bytes the target has taken: all of them but what lies in its
    /// backlog.
    pub(super) fn pushed(&self, shared: &Shared, direction: &Direction) -> u64 {
        let Some(index) = self.index else { return 0 };
        let redirected = shared.entry(index).redirected.load(Ordering::Acquire);
        // An ended direction was drained before; its end of stream counts as a byte.
        if direction.has_ended() {
            return redirected;
        }
        let given = direction.given_bytes() - self.base_given;
        let Ok(seen) = shared.inspect(self.cookie) else {
            return redirected;
        };
        let missing = self
            .write_seq(redirected, given)
            .wrapping_sub(seen.write_seq);
        redirected.saturating_sub(missing.into())
    }

    /// Takes everything of the direction out of the kernel but its target.
    pub(super) fn remove(&mut self, shared: &Shared, source: &Endpoint) {
        let Some(index) = self.index.take() else {
            return;
        };
        shared.indices.remove(&self.cookie);
        if source.is_shared() {
            // Somebody may hold a duplicate, so that the close will not take it out.
            shared.sources.remove(&self.cookie);
        }
        shared.give_back(index);
    }
}

/// Looks whether a read would bring something.
fn peek(source: &Endpoint) -> Result<usize, Errno> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    recv(source, &mut [0u8; 1], flags).map(|(count, _)| count)
}
