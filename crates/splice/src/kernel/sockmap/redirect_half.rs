//! One half of a sockmap pair: user space asks the gate to open, and the programs open, move and close. Its
//! states are drawn at the top of `mod.rs`.

#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::account::{Account, Source};
use super::backoff::{Backoff, LOOK_AGAIN};
use super::shared::Shared;
use super::{failed, refusal};
use crate::endpoint::Endpoint;
use crate::kernel::tcp_state::ESTABLISHED;
use crate::kernel::{DirectionView, Next, PairView, Watch};
use crate::outcome::{Reason, Side};
use splice_base::socket_option;
use splice_bpf::types::{DirectionEntry, Inspection};

/// For how long user space moves the bytes at first. Many a connection is over by then, or begins with the
/// bulk that it was made for.
const FIRST_IN_USER_SPACE: Duration = Duration::from_millis(20);

/// From this distance to a byte limit on, user space moves the rest: `LIMIT_MARGIN` in `bpf/redirect.h`.
const LIMIT_MARGIN_BYTES: u64 = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// User space moves the bytes for now.
    UserSpace,
    /// The gate is open, or is asked to open.
    Open,
    /// The gate has closed, and the target has not taken everything that was redirected.
    Draining,
    /// User space moves the bytes to the end.
    GivenUp,
    /// The direction has ended.
    Ended,
}

#[derive(Debug)]
pub(super) struct RedirectHalf {
    /// Which of the pair's directions this is.
    number: usize,
    /// The source's cookie, under which the maps know the direction.
    cookie: u64,
    /// The target's cookie, under which the maps know the source as a target.
    back_cookie: u64,
    state: State,
    why_given_up: Option<String>,
    index: Option<u32>,
    openings: u32,
    /// What user space had read when it last put the account in order.
    taken_before: u64,
    backoff: Backoff,
    /// Bytes wait in the source. If no segment follows by then, user space takes its request back.
    take_back_at: Option<Instant>,
}

impl RedirectHalf {
    pub(super) fn new(number: usize, cookie: u64, back_cookie: u64) -> Self {
        Self {
            number,
            cookie,
            back_cookie,
            state: State::UserSpace,
            why_given_up: None,
            index: None,
            openings: 0,
            taken_before: 0,
            backoff: Backoff::default(),
            take_back_at: None,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn index(&self) -> Option<u32> {
        self.index
    }

    /// The gate was never asked.
    pub(super) fn is_waiting(&self) -> bool {
        self.state == State::UserSpace && self.index.is_none()
    }

    pub(super) fn why_given_up(&self) -> Option<String> {
        self.why_given_up.clone()
    }

    pub(super) fn insert_target(&self, shared: &Shared, target: &Endpoint) -> Result<(), Errno> {
        shared.targets.insert_socket(&self.cookie, target.as_fd())
    }

    pub(super) fn remove_target(&self, shared: &Shared) {
        shared.targets.remove(&self.cookie);
    }

    fn give_up(&mut self, why: impl Into<String>) {
        self.state = State::GivenUp;
        self.why_given_up = Some(why.into());
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

    /// Does what is due at the pair's turn.
    pub(super) fn turn(
        &mut self,
        shared: &Shared,
        pair: &mut PairView<'_>,
    ) -> Result<Next, Reason> {
        if pair.directions[self.number].has_ended() && self.state != State::GivenUp {
            self.state = State::Ended;
        }
        if self.is_waiting() {
            let until = self.backoff.began_at(pair.now) + FIRST_IN_USER_SPACE;
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
            State::UserSpace => self.while_in_user_space(shared, pair, entry),
            State::Draining => self.drain(shared, pair, entry),
            State::GivenUp if pair.directions[self.number].has_ended() => Ok(Next::ASLEEP),
            State::GivenUp => Ok(Next::watching(Watch::Stream)),
            State::Ended => Ok(Next::ASLEEP),
        }
    }

    /// Sets up the account and attaches the gate, once user space holds no byte of the direction.
    fn begin(&mut self, shared: &Shared, pair: &mut PairView<'_>) -> Result<(), Reason> {
        let direction = &pair.directions[self.number];
        if direction.is_ending() {
            self.give_up("its stream had ended before it was taken");
            return Ok(());
        }
        if left_bytes(pair, self.number, 0) <= LIMIT_MARGIN_BYTES {
            self.give_up("its byte limit is near");
            return Ok(());
        }
        if !direction.has_none_in_flight() {
            return Ok(());
        }
        let (source, target) = (self.source(shared)?, self.target(shared)?);
        if source.state != ESTABLISHED {
            self.give_up(refusal(Errno::OPNOTSUPP));
            return Ok(());
        }
        let Some(index) = shared.claim((pair.waker)()) else {
            self.give_up("all its entries are in use");
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
            self.refused(shared, pair, errno);
            return Ok(());
        }
        pair.directions[self.number].copy_only();
        self.ask(shared, pair, entry, source)
    }

    /// The kernel does not take the source.
    fn refused(&mut self, shared: &Shared, pair: &mut PairView<'_>, errno: Errno) {
        self.give_up(refusal(errno));
        pair.directions[self.number].hold_at(u64::MAX);
        let Some(index) = self.index else { return };
        if shared.entry(index).redirected.load(Ordering::Acquire) > 0 {
            return;
        }
        // As if the gate had never been asked. Where it was not attached, there is none to detach.
        let _ = socket_option::detach_filter(pair.ends[self.number]);
        shared.indices.remove(&self.cookie);
        shared.give_back(index);
        self.index = None;
    }

    /// Asks the gate to put the source into the map before the next segment. What waits in the source's queue
    /// then, partly read or not, is the program's.
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
        // The gate opens for whatever it lets in from here on.
        let seen = self.source(shared)?;
        let let_in = entry.let_in.load(Ordering::SeqCst) as u32;
        let waits = [seen.rcv_nxt, let_in] != [source.copied_seq; 2];
        self.take_back_at = waits.then(|| pair.now + LOOK_AGAIN);
        let direction = &mut pair.directions[self.number];
        direction.hold_at(direction.taken_bytes());
        self.state = State::Open;
        self.backoff.end(pair.now);
        Ok(())
    }

    fn while_open(
        &mut self,
        shared: &Shared,
        pair: &mut PairView<'_>,
        entry: &DirectionEntry,
    ) -> Result<Next, Reason> {
        // What came after the gate has closed waits in the source, and the end of the stream behind it.
        if entry.closed.load(Ordering::Acquire) == self.openings {
            let error = entry.error.load(Ordering::Relaxed).cast_signed();
            if error != 0 {
                self.refused(shared, pair, Errno::from_raw_os_error(error));
                pair.directions[self.number].read_again();
                return Ok(Next::PUMP);
            }
            self.backoff.begin(pair.now);
            return self.drain(shared, pair, entry);
        }
        if let Some(at) = self.take_back_at {
            if pair.now < at {
                return Ok(Next::ASLEEP.until(at));
            }
            self.take_back_at = None;
            if take_back(entry) {
                self.backoff.begin(pair.now);
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

    /// User space goes on once the target has taken everything that was redirected.
    fn drain(
        &mut self,
        shared: &Shared,
        pair: &mut PairView<'_>,
        entry: &DirectionEntry,
    ) -> Result<Next, Reason> {
        self.state = State::Draining;
        let backlog_bytes = self.backlog_bytes(shared, entry)?;
        if backlog_bytes > 0 {
            let look_after = self.backoff.look_after(backlog_bytes);
            return Ok(Next::ASLEEP.until(pair.now + look_after));
        }
        self.state = State::UserSpace;
        let direction = &mut pair.directions[self.number];
        direction.read_again();
        direction.hold_at(u64::MAX);
        Ok(Next::PUMP)
    }

    /// Until user space has read the source's queue empty, and longer after a short opening.
    fn while_in_user_space(
        &mut self,
        shared: &Shared,
        pair: &mut PairView<'_>,
        entry: &DirectionEntry,
    ) -> Result<Next, Reason> {
        let goes_on = Next::watching(Watch::Stream);
        let redirected = entry.redirected.load(Ordering::Acquire);
        let left = left_bytes(pair, self.number, redirected);
        let direction = &pair.directions[self.number];
        let ends_at = self.backoff.ends_at(pair.now);
        match attempt(&**direction, left, ends_at, pair.now) {
            Attempt::Never(why) => {
                self.give_up(why);
                return Ok(goes_on);
            }
            Attempt::At(at) => return Ok(goes_on.until(at)),
            Attempt::AfterPump => return Ok(goes_on),
            Attempt::Now => {}
        }
        let taken = direction.taken_bytes();
        self.leave_out(entry, taken);
        let source = self.source(shared)?;
        match Account::read(entry).source(&source) {
            // The next event comes with what has arrived meanwhile.
            Source::HasBytes => return Ok(goes_on),
            Source::NotEstablished => self.give_up(refusal(Errno::OPNOTSUPP)),
            Source::Drained => self.ask(shared, pair, entry, source)?,
            Source::AtEnd => self.give_up("its stream has ended"),
            Source::Diverged => return Err(failed(self.number, Errno::IO)),
        }
        match self.state {
            State::Open => self.while_open(shared, pair, entry),
            _ => Ok(goes_on),
        }
    }

    /// Leaves what user space has moved out of the account.
    fn leave_out(&mut self, entry: &DirectionEntry, taken: u64) {
        let in_user_space = (taken - self.taken_before) as u32;
        self.taken_before = taken;
        for seq in [&entry.base_seq, &entry.target_seq] {
            let before = seq.load(Ordering::Relaxed);
            seq.store(before.wrapping_add(in_user_space), Ordering::Relaxed);
        }
    }

    /// The source has signalled its end. Once every byte has had its verdict, and the target has taken it,
    /// user space reads the end of the stream and passes it on.
    fn finish(
        &mut self,
        shared: &Shared,
        pair: &mut PairView<'_>,
        entry: &DirectionEntry,
    ) -> Result<Next, Reason> {
        let seen = self.source(shared)?;
        if !Account::read(entry).has_all_before_end(&seen) {
            // This brings about the verdict of skbs that wait for it. It also reads the error of a connection
            // that was reset.
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
        Ok(self.backlog_bytes(shared, entry)? == 0)
    }

    fn backlog_bytes(&self, shared: &Shared, entry: &DirectionEntry) -> Result<u32, Reason> {
        let target = self.target(shared)?;
        // Read after the inspection: the program may go on counting.
        Ok(Account::read(entry).backlog_bytes(&target))
    }

    /// How many of the redirected bytes the target has taken: all but those in its backlog.
    pub(super) fn pushed(&self, shared: &Shared, direction: &dyn DirectionView) -> u64 {
        let Some(index) = self.index else { return 0 };
        let entry = shared.entry(index);
        let seen = shared.inspect(self.cookie);
        // Once, and after the inspection: the program may go on counting.
        let account = Account::read(entry);
        // User space passes on neither bytes nor an end of stream before the target has taken all.
        if direction.has_ended() || matches!(self.state, State::GivenUp | State::UserSpace) {
            return account.redirected_bytes;
        }
        seen.map_or(account.redirected_bytes, |target| {
            account.pushed_bytes(&target)
        })
    }

    /// Removes everything of the direction but its target from the kernel.
    pub(super) fn remove(&mut self, shared: &Shared, source: &Endpoint) {
        let Some(index) = self.index.take() else {
            return;
        };
        take_back(shared.entry(index));
        shared.indices.remove(&self.cookie);
        if source.is_shared() {
            // Somebody may hold a duplicate, and then the close does not take the source out of the map. The
            // gate goes first: it may be about to put the source in again.
            let _ = socket_option::detach_filter(source);
            shared.sources.remove(&self.cookie);
        }
        shared.give_back(index);
    }
}

/// Notes what came before the gate was attached, or while user space moved the bytes. Otherwise it would look
/// for ever like bytes that are still to come.
fn note_come(entry: &DirectionEntry, rcv_nxt: u32) {
    let noted = entry.let_in.load(Ordering::SeqCst);
    if rcv_nxt.wrapping_sub(noted as u32).cast_signed() > 0 {
        // If it fails, the gate has noted what comes behind that.
        let _ = entry.let_in.compare_exchange(
            noted,
            rcv_nxt.into(),
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
    }
}

/// Takes the request back; false when the gate has already acted on it.
fn take_back(entry: &DirectionEntry) -> bool {
    entry.asked.swap(0, Ordering::SeqCst) != 0
}

/// How many bytes the byte limit leaves.
fn left_bytes(pair: &PairView<'_>, number: usize, redirected: u64) -> u64 {
    let taken = pair.directions[number].taken_bytes() + redirected;
    pair.byte_limit
        .map_or(u64::MAX, |limit| limit.saturating_sub(taken))
}

/// When to ask the gate to open for a direction that user space moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Now,
    At(Instant),
    /// User space still holds bytes, or can move some.
    AfterPump,
    Never(&'static str),
}

fn attempt(
    direction: &dyn DirectionView,
    left_bytes: u64,
    backoff_ends_at: Instant,
    now: Instant,
) -> Attempt {
    if direction.is_ending() || direction.end_seen() {
        Attempt::Never("its stream has ended")
    } else if left_bytes <= LIMIT_MARGIN_BYTES {
        Attempt::Never("its byte limit is near")
    } else if now < backoff_ends_at {
        Attempt::At(backoff_ends_at)
    } else if !direction.has_none_in_flight() || direction.can_move() {
        Attempt::AfterPump
    } else {
        Attempt::Now
    }
}

/// The kernel signals nothing when its worker has sent the bytes.
fn look_again(pair: &PairView<'_>) -> Next {
    Next::ASLEEP.until(pair.now + LOOK_AGAIN)
}

/// Peeks at the queue, which makes TCP run the program on what waits there (`tcp_bpf_recvmsg_parser`).
pub(super) fn kick(source: impl AsFd, side: Side) -> Result<(), Reason> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(source, &mut [0u8; 1], flags) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        // The call has cleared the socket's error: the next read would see an end of stream.
        Err(errno) => Err(Reason::of_errno(side, errno)),
    }
}
