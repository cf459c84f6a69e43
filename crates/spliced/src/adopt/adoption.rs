//! Two sockets of running processes, spliced until they are given back.
//!
//! ```text
//!           the owner has written what it had read
//! settling ─────────────────────────────────────────▶ adopted
//!     │                                                  │ a request; the end of a stream; an urgent byte;
//!     │ a request; the owner writes something else,      │ the owner closes a socket, or writes something
//!     │ or not enough                                    │ of its own; the keeper ends
//!     ▼                                                  ▼
//! giving back ◀──────────────────────────────────────────┘
//!     │ what the owner has written to a stand-in is with its socket
//!     ▼
//!    over
//! ```
//!
//! Each side has a real socket, which this process has taken, and a stand-in, which its owner has got for it. Four flows
//! move bytes: from each stand-in to its real socket, from the exchange on, and between the real sockets, each way once the
//! owner has written what it had read. So all bytes arrive in order, at whatever moment the owner was stopped.

use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::io::Errno;

use super::flow::{End, Flow};
use super::held::{GivenBack, Held};
use super::keeper::{Gone, Keeper, go_on_alone};
use super::side::Side;

/// What an adoption tells whoever runs it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// What was read from this side goes to the other one no more.
    DirectionEnded(usize, End),
    /// The owner closed this side's stand-in, or ended its stream.
    OwnerEnded(usize, End),
    KeeperEnded,
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
    held: Held,
    keeper: Keeper,
    /// The owners' names, which they may change or take with them.
    names: [String; 2],
    from_owners: [Flow; 2],
    /// From this side to the other one; `None` until the owner has written what it had read.
    onward: [Option<Flow>; 2],
    /// For each side what its owner had read from the other side and not written here when it was stopped.
    owed_bytes: [u64; 2],
    /// What it had written at the last look.
    seen_bytes: [u64; 2],
    events: Sender<Event>,
    /// When the owner last wrote, or waited for a peer with what it had written.
    busy_at: Instant,
    /// For how long the owners stood still in the beginning.
    pub(super) stood_still: Duration,
    pub(super) state: State,
}

impl Adoption {
    /// Takes the sockets of both sides, and gives their owners stand-ins.
    ///
    /// # Errors
    /// If the sockets cannot be adopted. Then everything is as it was.
    pub(super) fn begin(sides: [Side; 2], events: Sender<Event>) -> Result<Self> {
        let names = sides.each_ref().map(|side| side.owner.name());
        // All that can fail comes before the owner is stopped, or changed.
        let mut held = Held::prepare(sides)?;
        let mut keeper = Keeper::start(&held, {
            let events = events.clone();
            move || tell(&events, Event::KeeperEnded)
        })?;
        held.leave_far_ends();
        let Ok(exchanged) = keeper.exchange()? else {
            // It may have been killed after the exchange.
            let (_nobody, stops) = mpsc::channel();
            go_on_alone(&held, &stops)?;
            bail!(
                "its keeper, the process {} of spliced, was killed",
                keeper.id
            );
        };
        let from_owner = |at: usize| {
            let taken = &held.sides[at];
            let events = events.clone();
            Flow::start(
                [&taken.near, &taken.side.real],
                &taken.from_owner,
                true,
                move |end| tell(&events, Event::OwnerEnded(at, end)),
            )
        };
        Ok(Self {
            names,
            from_owners: [from_owner(0)?, from_owner(1)?],
            held,
            keeper,
            onward: [None, None],
            owed_bytes: exchanged.owed_bytes,
            seen_bytes: [0; 2],
            events,
            busy_at: Instant::now(),
            stood_still: exchanged.stood_still,
            state: State::Settling,
        })
    }

    /// How many bytes each direction has moved, and both sides for themselves.
    pub(super) fn moved_bytes(&self) -> [u64; 2] {
        [0, 1].map(|at| self.onward[at].as_ref().map_or(0, Flow::moved_bytes))
    }

    /// For each direction, why nothing would move there now.
    pub(super) fn obstacles(&self) -> [String; 2] {
        [0, 1].map(|at| {
            let (from, to) = (&self.held.sides[at], &self.held.sides[1 - at]);
            let is_left = rustix::io::ioctl_fionread(&from.side.real).is_ok_and(|bytes| bytes > 0)
                || from.onward.held_bytes() > 0;
            match (self.state, &self.onward[at]) {
                (State::GivingBack | State::Over, _) => "the sockets are given back".into(),
                (_, None) => {
                    let left = self.owed_bytes[1 - at]
                        .saturating_sub(self.from_owners[1 - at].moved_bytes());
                    format!("{left} bytes that the owner had read come first")
                }
                (_, Some(_)) if is_left => format!("the peer of {} does not read", to.side.number),
                (_, Some(_)) => format!("the peer of {} sends nothing", from.side.number),
            }
        })
    }

    /// Begins to move bytes where the owner has written what it had read.
    ///
    /// # Errors
    /// In words, why the sockets have to be given back.
    pub(super) fn settle(&mut self) -> Result<()> {
        for at in [0, 1] {
            let to = 1 - at;
            let (from, other) = (&self.held.sides[at], &self.held.sides[to]);
            // Without an answer, its owner has ended it, and an event says so.
            let Some(written_bytes) = other.written_bytes() else {
                continue;
            };
            if written_bytes > self.owed_bytes[to] {
                bail!(
                    "{} writes to {} what it has not read from {}: it is no plain relay",
                    self.names[to],
                    other.side.number,
                    from.side.number
                );
            }
            let moved_bytes = self.from_owners[to].moved_bytes();
            if moved_bytes < written_bytes || written_bytes > self.seen_bytes[to] {
                self.busy_at = Instant::now();
            }
            if self.onward[at].is_none() && moved_bytes == self.owed_bytes[to] {
                let events = self.events.clone();
                let flow = Flow::start(
                    [&from.side.real, &other.side.real],
                    &from.onward,
                    false,
                    move |end| tell(&events, Event::DirectionEnded(at, end)),
                )?;
                self.onward[at] = Some(flow);
            }
            self.seen_bytes[to] = written_bytes;
        }
        if self.onward.iter().all(Option::is_some) && self.state == State::Settling {
            self.state = State::Adopted;
            tracing::info!("the owner has written what it had read, and spliced moves everything");
        }
        Ok(())
    }

    /// What the owner still has to write, if it is too late for that.
    pub(super) fn overdue(&self, patience: Duration) -> Option<String> {
        if self.state != State::Settling || self.busy_at.elapsed() < patience {
            return None;
        }
        [0, 1].into_iter().find_map(|at| {
            let to = 1 - at;
            let written_bytes = self.held.sides[to].written_bytes()?;
            let missing = self.owed_bytes[to].saturating_sub(written_bytes);
            (missing > 0).then(|| {
                format!(
                    "{} has read {missing} bytes from {} that it does not write to {}: it is no plain relay",
                    self.names[to],
                    self.number(at),
                    self.number(to)
                )
            })
        })
    }

    /// Takes note of an event. Returns in words why the sockets have to be given back, if so.
    pub(super) fn note(&mut self, event: Event) -> Option<String> {
        match event {
            Event::Stop => Some("a signal".into()),
            // They were taken back.
            Event::DirectionEnded(_, End::Stopped) | Event::OwnerEnded(_, End::Stopped) => None,
            Event::KeeperEnded => Some(format!(
                "the end of its keeper, the process {} of spliced",
                self.keeper.id
            )),
            Event::DirectionEnded(at, End::OfStream) => {
                Some(format!("the end of the stream of {}", self.number(at)))
            }
            Event::DirectionEnded(at, End::Urgent) => Some(format!(
                "an urgent byte from the peer of {}",
                self.number(at)
            )),
            Event::OwnerEnded(at, End::OfStream | End::Source(_)) => Some(self.ended_by_owner(at)),
            Event::DirectionEnded(at, End::Source(errno)) => Some(self.failed(at, Some(errno))),
            Event::DirectionEnded(at, End::Destination(errno)) => {
                Some(self.failed(1 - at, Some(errno)))
            }
            Event::DirectionEnded(at, End::DestinationGone) => Some(self.failed(1 - at, None)),
            Event::OwnerEnded(at, End::Destination(errno)) => Some(self.failed(at, Some(errno))),
            Event::OwnerEnded(at, End::DestinationGone) => Some(self.failed(at, None)),
            // It takes everything.
            Event::OwnerEnded(_, End::Urgent) => None,
        }
    }

    /// The connection of a side has failed, with an error that was taken from it, or that it still has.
    fn failed(&self, at: usize, taken: Option<Errno>) -> String {
        let number = self.number(at);
        match taken {
            None => {
                self.held.pass_failures_on();
                format!("a failure of the connection of {number}")
            }
            Some(errno) => {
                self.held.sides[at].fail();
                format!("a failure of the connection of {number}: {errno}")
            }
        }
    }

    fn number(&self, at: usize) -> u32 {
        self.held.sides[at].side.number
    }

    /// What the owner has done to its stand-in.
    fn ended_by_owner(&self, at: usize) -> String {
        let taken = &self.held.sides[at];
        let (name, number) = (&self.names[at], taken.side.number);
        if taken.side.owner.threads().is_err() {
            format!("{name}, which has ended")
        } else if taken.places().is_ok_and(|places| !places.is_empty()) {
            format!("{name}, which has ended its stream to {number}")
        } else {
            format!("{name}, which has closed {number}")
        }
    }

    /// Takes back what moves between the real sockets. What was not moved is still in them.
    pub(super) fn stop(&mut self) {
        self.state = State::GivingBack;
        for flow in self.onward.iter().flatten() {
            flow.stop();
        }
    }

    /// Gives the sockets back, unless bytes of the owner have not reached them yet: then `None`.
    ///
    /// # Errors
    /// If the owner cannot take a socket now. It may be tried again.
    pub(super) fn give_back(&mut self) -> Result<Option<GivenBack>> {
        let given = match self.keeper.give_back()? {
            Ok(given) => given,
            Err(Gone) => self.held.give_back()?,
        };
        if given.is_some() {
            self.state = State::Over;
        }
        Ok(given)
    }

    /// Leaves what cannot be done now to the keeper.
    pub(super) fn leave(&mut self) {
        self.keeper.leave();
    }

    /// Resets both connections, since what their owner has written cannot be delivered in time.
    pub(super) fn cut(&self) {
        self.held.cut();
    }
}

fn tell(events: &Sender<Event>, event: Event) {
    // At the end nobody listens any more.
    let _ = events.send(event);
}
