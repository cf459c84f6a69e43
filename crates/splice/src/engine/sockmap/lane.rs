//! One direction of a sockmap pair: opened by user space, moved and closed by the programs.

#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::shared::Shared;
use super::spell::Spell;
use super::step::{LOOK_AGAIN, Step};
use super::{failed, refusal};
use crate::bpf_types::{DirectionEntry, Inspection};
use crate::direction::Direction;
use crate::endpoint::Endpoint;
use crate::engine::kernel::{Grip, Watch};
use crate::outcome::{Reason, Side};
use crate::socket_option;
use crate::task::Readiness;

/// How long a direction goes by hand at first: many a connection is over by then, or begins with the
/// bulk that it was made for.
const FIRST_BY_HAND: Duration = Duration::from_millis(20);

/// So far before a byte limit the rest goes by hand: `LIMIT_MARGIN` in `bpf/redirect.h`.
const LIMIT_MARGIN_BYTES: u64 = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    ByHand,
    Open,
    Draining,
    Left,
    Over,
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
    openings: u32,
    /// What user space had taken when the accounts were set up or closed last.
    taken_before: u64,
    spell: Spell,
    /// What waits in the source gets its verdict then, if nothing comes that brings it about.
    kick_at: Option<Instant>,
}

impl Lane {
    pub(super) fn new(cookie: u64, back_cookie: u64) -> Self {
        Self {
            cookie,
            back_cookie,
            state: State::ByHand,
            why_left: None,
            index: None,
            openings: 0,
            taken_before: 0,
            spell: Spell::default(),
            kick_at: None,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn index(&self) -> Option<u32> {
        self.index
    }

    /// It was not tried yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.state == State::ByHand && self.index.is_none()
    }

    pub(super) fn why_left(&self) -> Option<String> {
        self.why_left.clone()
    }

    pub(super) fn insert_target(&self, shared: &Shared, target: &Endpoint) -> Result<(), Errno> {
        shared.targets.insert_socket(&self.cookie, target.as_fd())
    }

    pub(super) fn remove_target(&self, shared: &Shared) {
        shared.targets.remove(&self.cookie);
    }

    fn leave(&mut self, why: String) {
        self.state = State::Left;
        self.why_left = Some(why);
    }

    fn source(&self, shared: &Shared, number: usize) -> Result<Inspection, Reason> {
        shared
            .inspect(self.back_cookie)
            .map_err(|errno| failed(number, errno))
    }

    fn target(&self, shared: &Shared, number: usize) -> Result<Inspection, Reason> {
        shared
            .inspect(self.cookie)
            .map_err(|errno| failed(1 - number, errno))
    }

    /// Does what there is to do now.
    pub(super) fn turn(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
    ) -> Result<Step, Reason> {
        if grip.directions[number].has_ended() && self.state != State::Left {
            self.state = State::Over;
        }
        if self.is_waiting() {
            let until = self.spell.since(grip.now) + FIRST_BY_HAND;
            if grip.now < until && !grip.directions[number].is_ending() {
                return Ok(Step::watching(Watch::Stream).until(until));
            }
            self.begin(shared, grip, number)?;
        }
        let Some(index) = self.index else {
            return Ok(match grip.directions[number].has_ended() {
                true => Step::ASLEEP,
                false => Step::watching(Watch::Stream),
            });
        };
        let entry = shared.entry(index);
        if entry.missed.load(Ordering::Relaxed) > 0 {
            return Err(failed(1 - number, Errno::IO));
        }
        match self.state {
            State::Open => self.while_open(shared, grip, number, entry),
            State::ByHand => self.while_by_hand(shared, grip, number, entry),
            State::Draining => self.drain(shared, grip, number, entry),
            State::Left if grip.directions[number].has_ended() => Ok(Step::ASLEEP),
            State::Left => Ok(Step::watching(Watch::Stream)),
            State::Over => Ok(Step::ASLEEP),
        }
    }

    /// Takes the direction over once nothing of it is in hand. What waits in the source's queue,
    /// partly read or not, is the program's then.
    fn begin(&mut self, shared: &Shared, grip: &mut Grip<'_>, number: usize) -> Result<(), Reason> {
        let direction = &grip.directions[number];
        if direction.is_ending() {
            self.leave("its stream had ended before it was taken".into());
            return Ok(());
        }
        if left_bytes(grip, number, 0) <= LIMIT_MARGIN_BYTES {
            self.leave("its byte limit is near".into());
            return Ok(());
        }
        if !direction.is_empty_handed() {
            return Ok(());
        }
        let (source, target) = (self.source(shared, number)?, self.target(shared, number)?);
        let Some(index) = shared.claim((grip.waker)()) else {
            self.leave("all its entries are in use".into());
            return Ok(());
        };
        let entry = shared.entry(index);
        self.taken_before = direction.taken_bytes();
        entry.target_seq.store(target.write_seq, Ordering::Relaxed);
        entry.let_in.store(source.rcv_nxt.into(), Ordering::Release);
        let gated = shared
            .indices
            .update(&self.cookie, &index)
            .and_then(|()| socket_option::attach_filter(grip.ends[number], shared.gate.as_fd()));
        let opened = gated.and_then(|()| self.open(shared, grip, number, entry, source));
        if let Err(errno) = opened {
            // Where it was not attached there is nothing to detach.
            let _ = socket_option::detach_filter(grip.ends[number]);
            shared.indices.remove(&self.cookie);
            shared.give_back(index);
            self.leave(refusal(errno));
            return Ok(());
        }
        self.index = Some(index);
        grip.directions[number].copy_only();
        Ok(())
    }

    /// From the insertion into `sources` on the program runs.
    fn open(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
        entry: &DirectionEntry,
        source: Inspection,
    ) -> Result<(), Errno> {
        let redirected = entry.redirected.load(Ordering::Acquire);
        let left = left_bytes(grip, number, redirected);
        entry
            .limit
            .store(redirected.saturating_add(left), Ordering::Relaxed);
        let redirected = redirected as u32;
        entry.base_seq.store(
            source.copied_seq.wrapping_sub(redirected),
            Ordering::Relaxed,
        );
        self.openings += 1;
        entry.opened.store(self.openings, Ordering::Release);
        let socket = grip.ends[number].as_fd();
        let inserted = shared.sources.insert_socket(&self.cookie, socket);
        if inserted.is_err() {
            // As it was: closed.
            self.openings -= 1;
            entry.opened.store(self.openings, Ordering::Release);
            return inserted;
        }
        let direction = &mut grip.directions[number];
        direction.hold_at(direction.taken_bytes());
        self.state = State::Open;
        self.spell.ends(grip.now);
        self.kick_at = Some(grip.now);
        Ok(())
    }

    fn while_open(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
        entry: &DirectionEntry,
    ) -> Result<Step, Reason> {
        // What came behind the closing waits in the source, and its end of stream behind that.
        if entry.closed.load(Ordering::Acquire) == self.openings {
            self.spell.begins(grip.now);
            return self.drain(shared, grip, number, entry);
        }
        if grip.directions[number].end_seen() {
            return self.finish(shared, grip, number, entry);
        }
        self.kick_if_due(shared, grip, number)
    }

    /// Gives what waited in the source when it was put in to the program.
    ///
    /// The next segment does that, and better: while a process holds the socket, what comes waits
    /// in its backlog, and that counts against the window until all of it is through (`__release_sock`).
    /// A fast sender is left with a closed window, which nobody opens.
    fn kick_if_due(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
    ) -> Result<Step, Reason> {
        let Some(opened_at) = self.kick_at else {
            return Ok(Step::ASLEEP);
        };
        let seen = self.source(shared, number)?;
        if seen.copied_seq != seen.rcv_nxt {
            if grip.now < opened_at + LOOK_AGAIN {
                return Ok(Step::ASLEEP.until(opened_at + LOOK_AGAIN));
            }
            kick(grip.ends[number], Side::BOTH[number])?;
        }
        self.kick_at = None;
        Ok(Step::ASLEEP)
    }

    /// It goes on by hand, behind everything that was redirected.
    fn drain(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
        entry: &DirectionEntry,
    ) -> Result<Step, Reason> {
        self.state = State::Draining;
        let pending = pending(entry, &self.target(shared, number)?);
        if pending > 0 {
            return Ok(Step::ASLEEP.until(grip.now + self.spell.look_after(pending)));
        }
        self.state = State::ByHand;
        let direction = &mut grip.directions[number];
        direction.source_became(Readiness::READABLE);
        direction.hold_at(u64::MAX);
        Ok(Step::PUMP)
    }

    /// Until the source's queue is found empty, and longer where the kernel's worker was outrun.
    fn while_by_hand(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
        entry: &DirectionEntry,
    ) -> Result<Step, Reason> {
        let by_hand = Step::watching(Watch::Stream);
        let direction = &grip.directions[number];
        if direction.is_ending() || direction.end_seen() {
            self.leave("its stream has ended".into());
            return Ok(by_hand);
        }
        let redirected = entry.redirected.load(Ordering::Acquire);
        if left_bytes(grip, number, redirected) <= LIMIT_MARGIN_BYTES {
            self.leave("its byte limit is near".into());
            return Ok(by_hand);
        }
        let until = self.spell.until();
        if grip.now < until {
            return Ok(by_hand.until(until));
        }
        if !direction.is_empty_handed() || direction.can_move() {
            return Ok(by_hand);
        }
        let taken = direction.taken_bytes();
        self.account(entry, taken);
        let source = self.source(shared, number)?;
        // A read that comes to the end of stream counts it.
        let why_not = match source.copied_seq.wrapping_sub(expected(entry)) {
            // The next event comes with what has arrived meanwhile.
            0 if source.rcv_nxt != source.copied_seq => return Ok(by_hand),
            0 => self
                .open(shared, grip, number, entry, source)
                .err()
                .map(refusal),
            1 => Some("its stream has ended".into()),
            // Something was taken out of it that we do not know of.
            _ => return Err(failed(number, Errno::IO)),
        };
        if let Some(why_not) = why_not {
            self.leave(why_not);
            return Ok(by_hand);
        }
        self.kick_if_due(shared, grip, number)
    }

    /// What went by hand is left out of the account.
    fn account(&mut self, entry: &DirectionEntry, taken: u64) {
        let by_hand = (taken - self.taken_before) as u32;
        self.taken_before = taken;
        for seq in [&entry.base_seq, &entry.target_seq] {
            let before = seq.load(Ordering::Relaxed);
            seq.store(before.wrapping_add(by_hand), Ordering::Relaxed);
        }
    }

    /// The source has told of its end: once all that came has had its verdict and was taken by the
    /// target, user space reads the end of stream and passes it on.
    fn finish(
        &mut self,
        shared: &Shared,
        grip: &mut Grip<'_>,
        number: usize,
        entry: &DirectionEntry,
    ) -> Result<Step, Reason> {
        let seen = self.source(shared, number)?;
        // The end of stream counts as one byte.
        if seen.rcv_nxt.wrapping_sub(1) != expected(entry) {
            // Where skbs wait for their verdict this gives it to them; it also takes the error of
            // a connection that was reset.
            kick(grip.ends[number], Side::BOTH[number])?;
            return Ok(Step::look_again(grip));
        }
        if !self.is_drained(shared, entry, number)? {
            return Ok(Step::look_again(grip));
        }
        let direction = &mut grip.directions[number];
        direction.source_became(Readiness::READABLE);
        direction.hold_at(u64::MAX);
        Ok(Step::PUMP)
    }

    /// Everything that the program has redirected was taken by the target's send function.
    fn is_drained(
        &self,
        shared: &Shared,
        entry: &DirectionEntry,
        number: usize,
    ) -> Result<bool, Reason> {
        Ok(pending(entry, &self.target(shared, number)?) == 0)
    }

    /// What of the redirected bytes the target has taken: all of them but what lies in its
    /// backlog.
    pub(super) fn pushed(&self, shared: &Shared, direction: &Direction) -> u64 {
        let Some(index) = self.index else { return 0 };
        let entry = shared.entry(index);
        let seen = shared.inspect(self.cookie);
        // Read once, and behind the look: the program may go on counting.
        let redirected = entry.redirected.load(Ordering::Acquire);
        // By hand nothing goes before the target has taken all, nor does an end of stream.
        if direction.has_ended() || matches!(self.state, State::Left | State::ByHand) {
            return redirected;
        }
        let Ok(seen) = seen else {
            return redirected;
        };
        // Behind an end of stream the target is one ahead.
        let pending = pending_of(redirected, entry, &seen) as i32;
        redirected.saturating_sub(pending.max(0) as u64)
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
            let _ = socket_option::detach_filter(source);
        }
        shared.give_back(index);
    }
}

/// What the byte limit leaves.
fn left_bytes(grip: &Grip<'_>, number: usize, redirected: u64) -> u64 {
    let taken = grip.directions[number].taken_bytes() + redirected;
    grip.byte_limit
        .map_or(u64::MAX, |limit| limit.saturating_sub(taken))
}

/// The source's sequence number behind all that was redirected.
fn expected(entry: &DirectionEntry) -> u32 {
    let redirected = entry.redirected.load(Ordering::Acquire) as u32;
    entry
        .base_seq
        .load(Ordering::Relaxed)
        .wrapping_add(redirected)
}

/// How many bytes wait in the target's backlog. Sequence numbers wrap at 32 bits, and so do the
/// counts here.
fn pending(entry: &DirectionEntry, target: &Inspection) -> u32 {
    pending_of(entry.redirected.load(Ordering::Acquire), entry, target)
}

fn pending_of(redirected: u64, entry: &DirectionEntry, target: &Inspection) -> u32 {
    let sent = entry.target_seq.load(Ordering::Relaxed);
    // Sequence numbers wrap at 32 bits.
    sent.wrapping_add(redirected as u32)
        .wrapping_sub(target.write_seq)
}

/// A look at the queue makes TCP run the program on what waits there
/// (`tcp_bpf_recvmsg_parser`).
pub(super) fn kick(source: impl AsFd, side: Side) -> Result<(), Reason> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(source, &mut [0u8; 1], flags) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        // It has taken the error from the socket: the next read would see an end.
        Err(errno) => Err(Reason::fault(side, errno)),
    }
}
