//! One direction of a sockmap pair: user space asks, the programs open, move and close it. Its states
//! are drawn at the top of `mod.rs`.

#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::shared::Shared;
use super::spell::{LOOK_AGAIN, Spell};
use super::{failed, refusal};
use crate::endpoint::Endpoint;
use crate::kernel::{DirectionView, Next, PairView, Watch};
use crate::outcome::{Reason, Side};
use splice_base::socket_option;
use splice_bpf::types::{DirectionEntry, Inspection};

/// How long a direction goes by hand at first: many a connection is over by then, or begins with the
/// bulk that it was made for.
const FIRST_BY_HAND: Duration = Duration::from_millis(20);

/// So far before a byte limit the rest goes by hand: `LIMIT_MARGIN` in `bpf/redirect.h`.
const LIMIT_MARGIN_BYTES: u64 = 8 << 20;

/// `BPF_TCP_ESTABLISHED` of `linux/bpf.h`. The kernel takes no other source (`sock_map_sk_state_allowed`),
/// and by then an end of stream may be in the sequence numbers.
const ESTABLISHED: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    ByHand,
    /// Also from the moment on in which user space asks.
    Open,
    /// No longer open, and the target has not taken all that was redirected.
    Draining,
    /// By hand for good.
    Left,
    /// The direction has ended.
    Over,
}

#[derive(Debug)]
pub(super) struct Tap {
    /// Which of the pair's directions it is.
    number: usize,
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
    /// Something waits in the source, and if no segment follows by then, it goes on by hand.
    take_back_at: Option<Instant>,
}

impl Tap {
    pub(super) fn new(number: usize, cookie: u64, back_cookie: u64) -> Self {
        Self {
            number,
            cookie,
            back_cookie,
            state: State::ByHand,
            why_left: None,
            index: None,
            openings: 0,
            taken_before: 0,
            spell: Spell::default(),
            take_back_at: None,
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

    fn source(&self, shared: &Shared) -> Result<Inspection, Reason> {
        shared
            .inspect(self.back_cookie)
            .map_err(|errno| failed(self.number, errno))
    }

    fn target(&self, shared: &Shared) -> Result<Inspection, Reason> {
        shared
            .inspect(self.cookie)
            .map_err(|errno| failed(1 - self.number, errno))
    }

    /// Does what there is to do now.
    pub(super) fn turn(
        &mut self,
        shared: &Shared,
        pair: &mut PairView<'_>,
    ) -> Result<Next, Reason> {
        if pair.directions[self.number].has_ended() && self.state != State::Left {
            self.state = State::Over;
        }
        if self.is_waiting() {
            let until = self.spell.since(pair.now) + FIRST_BY_HAND;
            if pair.now < until && !pair.directions[self.number].is_ending() {
                return Ok(Next::watching(Watch::Stream).until(until));
            }
            self.begin(shared, pair)?;
        }
        let Some(index) = self.index else {
            return Ok(match pair.directions[self.number].has_ended() {
                true => Next::ASLEEP,
                false => Next::watching(Watch::Stream),
            });
        };
        let entry = shared.entry(index);
        if entry.missed.load(Ordering::Relaxed) > 0 {
            return Err(failed(1 - self.number, Errno::IO));
        }
        match self.state {
            State::Open => self.while_open(shared, pair, entry),
            State::ByHand => self.while_by_hand(shared, pair, entry),
            State::Draining => self.drain(shared, pair, entry),
            State::Left if pair.directions[self.number].has_ended() => Ok(Next::ASLEEP),
            State::Left => Ok(Next::watching(Watch::Stream)),
            State::Over => Ok(Next::ASLEEP),
        }
    }

    /// Sets the accounts up and puts the gate in front, once nothing of the direction is in hand.
    fn begin(&mut self, shared: &Shared, pair: &mut PairView<'_>) -> Result<(), Reason> {
        let direction = &pair.directions[self.number];
        if direction.is_ending() {
            self.leave("its stream had ended before it was taken".into());
            return Ok(());
        }
        if left_bytes(pair, self.number, 0) <= LIMIT_MARGIN_BYTES {
            self.leave("its byte limit is near".into());
            return Ok(());
        }
        if !direction.has_none_in_flight() {
            return Ok(());
        }
        let (source, target) = (self.source(shared)?, self.target(shared)?);
        if source.state != ESTABLISHED {
            self.leave(refusal(Errno::OPNOTSUPP));
            return Ok(());
        }
        let Some(index) = shared.claim((pair.waker)()) else {
            self.leave("all its entries are in use".into());
            return Ok(());
        };
        let entry = shared.entry(index);
        self.taken_before = direction.taken_bytes();
        entry.target_seq.store(target.write_seq, Ordering::Relaxed);
        entry.let_in.store(source.rcv_nxt.into(), Ordering::Release);
        let gated = shared.indices.update(&self.cookie, &index).and_then(|()| {
            socket_option::attach_filter(pair.ends[self.number], shared.gate.as_fd())
        });
        self.index = Some(index);
        if let Err(errno) = gated {
            self.give_up(shared, pair, errno);
            return Ok(());
        }
        pair.directions[self.number].copy_only();
        self.ask(shared, pair, entry, source)
    }

    /// The kernel does not take the source.
    fn give_up(&mut self, shared: &Shared, pair: &mut PairView<'_>, errno: Errno) {
        self.leave(refusal(errno));
        pair.directions[self.number].hold_at(u64::MAX);
        let Some(index) = self.index else { return };
        if shared.entry(index).redirected.load(Ordering::Acquire) > 0 {
            return;
        }
        // As if it had not been tried. Where the gate was not attached there is none to detach.
        let _ = socket_option::detach_filter(pair.ends[self.number]);
        shared.indices.remove(&self.cookie);
        shared.give_back(index);
        self.index = None;
    }

    /// Has the gate put the source in before the next segment. What waits in the source's queue then,
    /// partly read or not, is the program's.
    fn ask(
        &mut self,
        shared: &Shared,
        pair: &mut PairView<'_>,
        entry: &DirectionEntry,
        source: Inspection,
    ) -> Result<(), Reason> {
        let redirected = entry.redirected.load(Ordering::Acquire);
        let left = left_bytes(pair, self.number, redirected);
        entry
            .limit
            .store(redirected.saturating_add(left), Ordering::Relaxed);
        let redirected = redirected as u32;
        entry.base_seq.store(
            source.copied_seq.wrapping_sub(redirected),
            Ordering::Relaxed,
        );
        note_come(entry, source.rcv_nxt);
        self.openings += 1;
        entry.opened.store(self.openings, Ordering::Release);
        entry.asked.store(self.openings, Ordering::SeqCst);
        // What the gate lets in from here on, it opens for.
        let seen = self.source(shared)?;
        let let_in = entry.let_in.load(Ordering::SeqCst) as u32;
        let waits = [seen.rcv_nxt, let_in] != [source.copied_seq; 2];
        self.take_back_at = waits.then(|| pair.now + LOOK_AGAIN);
        let direction = &mut pair.directions[self.number];
        direction.hold_at(direction.taken_bytes());
        self.state = State::Open;
        self.spell.ends(pair.now);
        Ok(())
    }

    fn while_open(
        &mut self,
        shared: &Shared,
        pair: &mut PairView<'_>,
        entry: &DirectionEntry,
    ) -> Result<Next, Reason> {
        // What came behind the closing waits in the source, and its end of stream behind that.
        if entry.closed.load(Ordering::Acquire) == self.openings {
            let error = entry.error.load(Ordering::Relaxed).cast_signed();
            if error != 0 {
                self.give_up(shared, pair, Errno::from_raw_os_error(error));
                pair.directions[self.number].read_again();
                return Ok(Next::PUMP);
            }
            self.spell.begins(pair.now);
            return self.drain(shared, pair, entry);
        }
        if let Some(at) = self.take_back_at {
            if pair.now < at {
                return Ok(Next::ASLEEP.until(at));
            }
            self.take_back_at = None;
            if take_back(entry) {
                self.spell.begins(pair.now);
                return self.drain(shared, pair, entry);
            }
            // TCP may have dropped the segment that the gate opened for.
            let seen = self.source(shared)?;
            if seen.copied_seq != seen.rcv_nxt {
                kick(pair.ends[self.number], Side::BOTH[self.number])?;
            }
        }
        if pair.directions[self.number].end_seen() {
            return self.finish(shared, pair, entry);
        }
        Ok(Next::ASLEEP)
    }

    /// It goes on by hand, behind everything that was redirected.
    fn drain(
        &mut self,
        shared: &Shared,
        pair: &mut PairView<'_>,
        entry: &DirectionEntry,
    ) -> Result<Next, Reason> {
        self.state = State::Draining;
        let pending = pending(entry, &self.target(shared)?);
        if pending > 0 {
            return Ok(Next::ASLEEP.until(pair.now + self.spell.look_after(pending)));
        }
        self.state = State::ByHand;
        let direction = &mut pair.directions[self.number];
        direction.read_again();
        direction.hold_at(u64::MAX);
        Ok(Next::PUMP)
    }

    /// Until the source's queue is found empty, and longer where the kernel's worker was outrun.
    fn while_by_hand(
        &mut self,
        shared: &Shared,
        pair: &mut PairView<'_>,
        entry: &DirectionEntry,
    ) -> Result<Next, Reason> {
        let by_hand = Next::watching(Watch::Stream);
        let direction = &pair.directions[self.number];
        if direction.is_ending() || direction.end_seen() {
            self.leave("its stream has ended".into());
            return Ok(by_hand);
        }
        let redirected = entry.redirected.load(Ordering::Acquire);
        if left_bytes(pair, self.number, redirected) <= LIMIT_MARGIN_BYTES {
            self.leave("its byte limit is near".into());
            return Ok(by_hand);
        }
        let until = self.spell.until();
        if pair.now < until {
            return Ok(by_hand.until(until));
        }
        if !direction.has_none_in_flight() || direction.can_move() {
            return Ok(by_hand);
        }
        let taken = direction.taken_bytes();
        self.account(entry, taken);
        let source = self.source(shared)?;
        // A read that comes to the end of stream counts it.
        match source.copied_seq.wrapping_sub(expected(entry)) {
            // The next event comes with what has arrived meanwhile.
            0 if source.rcv_nxt != source.copied_seq => return Ok(by_hand),
            0 if source.state != ESTABLISHED => self.leave(refusal(Errno::OPNOTSUPP)),
            0 => self.ask(shared, pair, entry, source)?,
            1 => self.leave("its stream has ended".into()),
            // Something was taken out of it that we do not know of.
            _ => return Err(failed(self.number, Errno::IO)),
        }
        match self.state {
            State::Open => self.while_open(shared, pair, entry),
            _ => Ok(by_hand),
        }
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
        pair: &mut PairView<'_>,
        entry: &DirectionEntry,
    ) -> Result<Next, Reason> {
        let seen = self.source(shared)?;
        // The end of stream counts as one byte.
        if seen.rcv_nxt.wrapping_sub(1) != expected(entry) {
            // Where skbs wait for their verdict this gives it to them; it also takes the error of
            // a connection that was reset.
            kick(pair.ends[self.number], Side::BOTH[self.number])?;
            return Ok(look_again(pair));
        }
        if !self.is_drained(shared, entry)? {
            return Ok(look_again(pair));
        }
        let direction = &mut pair.directions[self.number];
        direction.read_again();
        direction.hold_at(u64::MAX);
        Ok(Next::PUMP)
    }

    /// Everything that the program has redirected was taken by the target's send function.
    fn is_drained(&self, shared: &Shared, entry: &DirectionEntry) -> Result<bool, Reason> {
        Ok(pending(entry, &self.target(shared)?) == 0)
    }

    /// What of the redirected bytes the target has taken: all of them but what lies in its
    /// backlog.
    pub(super) fn pushed(&self, shared: &Shared, direction: &dyn DirectionView) -> u64 {
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
        take_back(shared.entry(index));
        shared.indices.remove(&self.cookie);
        if source.is_shared() {
            // Somebody may hold a duplicate, so that the close will not take it out. The gate goes
            // first: it may be about to put the source in again.
            let _ = socket_option::detach_filter(source);
            shared.sources.remove(&self.cookie);
        }
        shared.give_back(index);
    }
}

/// What came before the gate stood, and by hand, is behind it. It would look for ever like something
/// that is yet to come.
fn note_come(entry: &DirectionEntry, rcv_nxt: u32) {
    let noted = entry.let_in.load(Ordering::SeqCst);
    if rcv_nxt.wrapping_sub(noted as u32).cast_signed() > 0 {
        // If it fails the gate has noted what comes behind that.
        let _ = entry.let_in.compare_exchange(
            noted,
            rcv_nxt.into(),
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
    }
}

/// Takes back what was asked for; false when the gate has taken it.
fn take_back(entry: &DirectionEntry) -> bool {
    entry.asked.swap(0, Ordering::SeqCst) != 0
}

/// What the byte limit leaves.
fn left_bytes(pair: &PairView<'_>, number: usize, redirected: u64) -> u64 {
    let taken = pair.directions[number].taken_bytes() + redirected;
    pair.byte_limit
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

/// There is no event for "the worker has sent it".
fn look_again(pair: &PairView<'_>) -> Next {
    Next::ASLEEP.until(pair.now + LOOK_AGAIN)
}

/// A look at the queue makes TCP run the program on what waits there
/// (`tcp_bpf_recvmsg_parser`).
pub(super) fn kick(source: impl AsFd, side: Side) -> Result<(), Reason> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(source, &mut [0u8; 1], flags) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        // It has taken the error from the socket: the next read would see an end.
        Err(errno) => Err(Reason::of_errno(side, errno)),
    }
}
