//! Two sockets of running processes, spliced until they are given back.
//!
//! ```text
//!           the owner has written what it had read
//! settling ─────────────────────────────────────────▶ adopted
//!     │                                                  │ a request; the end of a stream;
//!     │ a request; the owner writes something else,      │ the owner closes a socket, or
//!     │ or not enough                                    │ writes something of its own
//!     ▼                                                  ▼
//! giving back ◀──────────────────────────────────────────┘
//!     │ what the owner has written to a stand-in is with its socket
//!     ▼
//!    over
//! ```
//!
//! Each side has a real socket, which this process has taken, and a stand-in, which its owner has got for it. Four one-way
//! splices move bytes: from each stand-in to its real socket, from the first exchange on, and between the real sockets, each
//! way once the owner has written what it had read. So all bytes arrive in order, at whatever moment the owner was stopped.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use splice::{OneWay, OneWayOptions, Reason, Splicer};
use splice_base::socket_option::{self, Progress};

use super::frozen::Frozen;
use super::owner::Owner;
use super::side::Side;
use super::stand_in::{StandIn, inode};

/// What an adoption tells whoever runs it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// What was read from this side goes to the other one no more.
    DirectionEnded(usize, Reason),
    /// The owner closed this side's stand-in, or ended its stream.
    OwnerEnded(usize, Reason),
    /// A signal.
    Stop,
}

/// How far an adoption is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Settling,
    Adopted,
    GivingBack,
    Over,
}

/// The two sides, of which neither is adopted or both are.
pub(super) struct Adoption {
    sides: [Adopted; 2],
    /// From this side to the other one; `None` until the owner has written what it had read.
    directions: [Option<OneWay>; 2],
    splicer: Splicer,
    events: Sender<Event>,
    /// When the owner last wrote, or waited for a peer with what it had written.
    busy_at: Instant,
    pub(super) state: State,
}

/// A side whose owner has a stand-in for its socket.
struct Adopted {
    side: Side,
    /// The end of the stand-in that is ours.
    near: OwnedFd,
    far_inode: u64,
    /// Moves what the owner writes to its stand-in.
    from_owner: OneWay,
    /// What the owner had read from the other side and not written here when it was stopped.
    owed_bytes: u64,
    /// What it had written at the last look.
    seen_bytes: u64,
    owner_ended: Option<Reason>,
}

impl Adoption {
    /// Takes the sockets of both sides, and gives their owners stand-ins.
    ///
    /// # Errors
    /// If the sockets cannot be adopted. Then everything is as it was.
    pub(super) fn begin(sides: [Side; 2], events: Sender<Event>) -> Result<Self> {
        let splicer = Splicer::new(1)?;
        // All that can fail comes before the owner is stopped, or changed.
        let [first, second] = sides;
        let (first, first_far) = Adopted::prepare(0, first, &splicer, &events)?;
        let (second, second_far) = Adopted::prepare(1, second, &splicer, &events)?;
        let mut sides = [first, second];
        let mut frozen = freeze(&[sides[0].side.owner, sides[1].side.owner])?;
        let stopped_at = Instant::now();
        sides
            .iter()
            .try_for_each(|adopted| adopted.side.refuse_changed())?;
        let owed_bytes = owed([&sides[0].side, &sides[1].side])?;
        let [first, second] = &mut sides;
        first.owed_bytes = owed_bytes[0];
        second.owed_bytes = owed_bytes[1];
        first.side.exchange(&mut frozen, first_far.as_fd())?;
        if let Err(error) = second.side.exchange(&mut frozen, second_far.as_fd()) {
            let back = first.side.exchange(&mut frozen, first.side.real.as_fd());
            back.with_context(|| format!("{error:#}, and its other socket cannot be given back"))?;
            return Err(error);
        }
        for adopted in &sides {
            adopted.side.reset_if_this_process_dies();
        }
        drop(frozen);
        tracing::debug!("the owner stood still for {:?}", stopped_at.elapsed());
        Ok(Self {
            sides,
            directions: [None, None],
            splicer,
            events,
            busy_at: Instant::now(),
            state: State::Settling,
        })
    }

    /// How many bytes each direction has moved, and both sides for themselves.
    pub(super) fn moved_bytes(&self) -> [u64; 2] {
        [0, 1].map(|at| self.directions[at].as_ref().map_or(0, OneWay::moved_bytes))
    }

    /// Begins to move bytes where the owner has written what it had read.
    ///
    /// # Errors
    /// In words, why the sockets have to be given back.
    pub(super) fn settle(&mut self) -> Result<()> {
        for at in [0, 1] {
            let other = &self.sides[1 - at];
            // Without an answer, its owner has ended it, and an event says so.
            let Some(written_bytes) = other.written_bytes() else {
                continue;
            };
            if written_bytes > other.owed_bytes {
                bail!(
                    "{} writes to {} what it has not read from {}: it is no plain relay",
                    other.side.owner.name(),
                    other.side.number,
                    self.sides[at].side.number
                );
            }
            let moved_bytes = other.from_owner.moved_bytes();
            if moved_bytes < written_bytes || written_bytes > other.seen_bytes {
                self.busy_at = Instant::now();
            }
            if self.directions[at].is_none() && moved_bytes == other.owed_bytes {
                let events = self.events.clone();
                let one_way = self.splicer.one_way(
                    &self.sides[at].side.real,
                    &other.side.real,
                    &OneWayOptions::default(),
                    move |reason, _| {
                        // At the end nobody listens any more.
                        let _ = events.send(Event::DirectionEnded(at, reason));
                    },
                )?;
                self.directions[at] = Some(one_way);
            }
            self.sides[1 - at].seen_bytes = written_bytes;
        }
        if self.directions.iter().all(Option::is_some) && self.state == State::Settling {
            self.state = State::Adopted;
        }
        Ok(())
    }

    /// What the owner still has to write, if it is too late for that.
    pub(super) fn overdue(&self, patience: Duration) -> Option<String> {
        if self.state != State::Settling || self.busy_at.elapsed() < patience {
            return None;
        }
        [0, 1].into_iter().find_map(|at| {
            let other = &self.sides[1 - at];
            let missing = other.owed_bytes.saturating_sub(other.written_bytes()?);
            (missing > 0).then(|| {
                format!(
                    "{} has read {missing} bytes from {} that it does not write to {}: it is no plain relay",
                    other.side.owner.name(),
                    self.sides[at].side.number,
                    other.side.number
                )
            })
        })
    }

    /// Takes note of an event. Returns in words why the sockets have to be given back, if so.
    pub(super) fn note(&mut self, event: Event) -> Option<String> {
        let number = |at: usize| self.sides[at].side.number;
        match event {
            Event::Stop => Some("a signal".into()),
            // They were taken back.
            Event::DirectionEnded(_, Reason::Undone) | Event::OwnerEnded(_, Reason::Undone) => None,
            Event::DirectionEnded(at, Reason::EndOfStream) => {
                Some(format!("the end of the stream of {}", number(at)))
            }
            Event::OwnerEnded(at, reason) if is_of_source(reason) => {
                self.sides[at].owner_ended = Some(reason);
                let side = &self.sides[at].side;
                Some(format!(
                    "{}, which has closed {}",
                    side.owner.name(),
                    side.number
                ))
            }
            Event::DirectionEnded(at, reason) | Event::OwnerEnded(at, reason) => {
                // A truncated stream must not look complete, and the error that says so has been taken.
                self.cut();
                Some(format!(
                    "a failure of the connection of {} or {}: {reason}",
                    number(at),
                    number(1 - at)
                ))
            }
        }
    }

    /// Takes back what moves between the real sockets. What was not moved is still in them.
    pub(super) fn stop(&mut self) {
        self.state = State::GivingBack;
        for direction in self.directions.iter().flatten() {
            direction.undo();
        }
    }

    /// Gives the sockets back, unless bytes of the owner have not reached them yet. Returns whether it did.
    ///
    /// # Errors
    /// If the owner cannot take a socket now. It may be tried again.
    pub(super) fn give_back(&mut self) -> Result<bool> {
        // So the owner is not stopped in vain again and again.
        let waits = |adopted: &Adopted| {
            let written_bytes = adopted.written_bytes();
            written_bytes.is_some_and(|written| written > adopted.from_owner.moved_bytes())
        };
        if self.sides.iter().any(waits) {
            return Ok(false);
        }
        let kept = self.sides.iter().filter(|adopted| adopted.is_open());
        let owners: Vec<_> = kept.map(|adopted| adopted.side.owner).collect();
        let mut frozen = match freeze(&owners) {
            Ok(frozen) => frozen,
            // It has ended meanwhile.
            Err(_) if owners.iter().any(|owner| owner.threads().is_err()) => return Ok(false),
            Err(error) => return Err(error),
        };
        if !self.sides.iter().all(Adopted::has_everything) {
            return Ok(false);
        }
        for adopted in &self.sides {
            let is_open = adopted.is_open();
            adopted.side.restore(adopted.owner_ended, is_open);
            if is_open {
                adopted
                    .side
                    .exchange(&mut frozen, adopted.side.real.as_fd())?;
            }
            adopted.from_owner.undo();
        }
        self.state = State::Over;
        Ok(true)
    }

    /// Resets both connections, since what their owner has written cannot be delivered in time.
    pub(super) fn cut(&self) {
        for adopted in &self.sides {
            adopted.side.cut();
        }
    }
}

impl Adopted {
    /// Makes a stand-in. Also returns the end that the owner gets.
    fn prepare(
        at: usize,
        side: Side,
        splicer: &Splicer,
        events: &Sender<Event>,
    ) -> Result<(Self, OwnedFd)> {
        let StandIn { near, far } = StandIn::of(side.real.as_fd())?;
        let events = events.clone();
        let from_owner = splicer.one_way(
            &near,
            &side.real,
            &OneWayOptions::default(),
            move |reason, _| {
                // At the end nobody listens any more.
                let _ = events.send(Event::OwnerEnded(at, reason));
            },
        )?;
        let adopted = Self {
            far_inode: inode(&far).context("cannot look at a stand-in")?,
            side,
            near,
            from_owner,
            owed_bytes: 0,
            seen_bytes: 0,
            owner_ended: None,
        };
        Ok((adopted, far))
    }

    /// What the owner has written to the stand-in, in bytes; `None` if it has ended its stream.
    fn written_bytes(&self) -> Option<u64> {
        let arrived = socket_option::progress(&self.near).ok()?;
        // The end of a stream counts like a byte.
        (arrived.is_established).then_some(arrived.read_bytes + arrived.unread_bytes)
    }

    /// Whether the owner still has the stand-in where the socket was.
    fn is_open(&self) -> bool {
        self.side.owner.inode(self.side.number) == Some(self.far_inode)
    }

    /// Whether all that the owner, which stands still, has written is with the real socket.
    fn has_everything(&self) -> bool {
        if self.from_owner.reason().is_some() {
            return true;
        }
        if !self.is_open() {
            return self.side.owner.inode(self.side.number) == self.side.inode().ok();
        }
        // What is still on its way over loopback has not arrived at our end.
        let far = splice_sockmap::of_process(self.side.owner.0, self.side.number);
        let written = far.ok().and_then(|far| socket_option::progress(far).ok());
        let moved = self.from_owner.moved_bytes();
        written.is_some_and(|Progress { written_bytes, .. }| written_bytes == moved)
    }
}

/// Stops processes, each once.
fn freeze(owners: &[Owner]) -> Result<Vec<Frozen>> {
    let mut frozen: Vec<Frozen> = Vec::new();
    for owner in owners {
        if frozen.iter().all(|one| one.owner() != *owner) {
            frozen.push(Frozen::freeze(*owner)?);
        }
    }
    Ok(frozen)
}

/// Whether the socket that bytes came from is the one that has ended.
fn is_of_source(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::Reset(splice::Side::B)
            | Reason::Failed {
                side: splice::Side::B,
                ..
            }
    )
}

/// For each side, how many bytes its owner has read from the other one and not written to this one.
///
/// # Errors
/// In words, if these cannot be two sockets of a relay.
fn owed(sides: [&Side; 2]) -> Result<[u64; 2]> {
    let [first, second] = sides;
    let progress = [first.progress()?, second.progress()?];
    let mut owed_bytes = [0; 2];
    for (at, owed) in owed_bytes.iter_mut().enumerate() {
        let (here, there) = (sides[at], sides[1 - at]);
        let (written_bytes, read_bytes) = (progress[at].written_bytes, progress[1 - at].read_bytes);
        let Some(missing) = read_bytes.checked_sub(written_bytes) else {
            bail!(
                "{} has written {written_bytes} bytes to {} and read only {read_bytes} from {}: it is no plain relay of \
                 these two",
                here.owner.name(),
                here.number,
                there.number
            );
        };
        *owed = missing;
    }
    Ok(owed_bytes)
}
