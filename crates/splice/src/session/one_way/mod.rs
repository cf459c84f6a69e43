//! A one-way splice: what arrives on one socket is moved to another, and both stay the caller's.
//!
//! ```text
//!          byte limit, EOF, an error, idle, looped, undone
//! moving ─────────────────────────────────────────────────▶ ended
//! ```
//!
//! A pair owns its sockets and closes them at its end. A one-way splice works on duplicates of the
//! caller's descriptors, changes nothing about the sockets, and can be undone at any byte: what was
//! not moved is still in the source. So it goes by user space only.
//!
//! The caller and the loop share the [`Mover`] under a lock. A [`Direction`](crate::direction::Direction)
//! moves its bytes, as those of a pair. The caller makes the first pass, so
//! that what has arrived before is moved when [`OneWay::start`] returns; the loop makes the others.
//! Whoever sees the end first concludes it: it stops watching the duplicates, closes them, and
//! calls `on_end`.
//!
//! What differs between callers is theirs to decide ([`Rules`]).
//!
//! Two that are each other's reverse can be merged into a pair (`api/mod.rs`): then nobody can take
//! them back, and an engine in the kernel may have them.

mod end;
mod mover;
mod rules;
mod task;

use std::borrow::Cow;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use splice_base::error::Result;

use self::end::End;
use self::mover::Mover;
pub(crate) use self::rules::Plain;
pub use self::rules::Rules;
use self::task::OneWayTask;
use super::status::Status;
use crate::carrier::Carriers;
use crate::counters::Counters;
use crate::direction::Progress;
use crate::name::EngineName;
use crate::outcome::Reason;
use crate::reactor::{Key, Remote};

/// How many turns the first pass may take: as much as the largest receive buffer holds by default
/// (`tcp_rmem[2]`, 32 MiB on 6.18), so that only what arrives meanwhile is left to the loop.
const FIRST_PASS_TURNS: usize = 32;

/// When a one-way splice ends without traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTimer {
    /// How long it runs.
    pub after: Duration,
    /// Whether it begins anew when bytes move. Otherwise the splice ends that long after its start.
    pub restarts: bool,
}

/// How a one-way splice is to work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneWayOptions {
    /// It ends when it has moved this many bytes, and moves not one more. Of datagrams it moves
    /// only whole ones.
    pub byte_limit: Option<u64>,
    /// It ends when this has expired.
    pub idle: Option<IdleTimer>,
    /// Whether the destination's peer sees EOF after the last byte of a source that has ended.
    pub passes_on_end: bool,
    /// Whether an urgent byte that the source has inline (`SO_OOBINLINE`) is urgent at the
    /// destination, too. Otherwise it is a byte like others.
    pub passes_on_urgent: bool,
}

/// What is called at the end, with the reason and the bytes moved.
pub(crate) type OnOneWayEnd = Box<dyn FnOnce(Reason, u64) + Send>;

/// The handle of a one-way splice. Dropping it undoes the splice.
pub struct OneWay {
    shared: Arc<Shared>,
    home: Remote,
    is_detached: AtomicBool,
}

/// What the handle and the task share.
struct Shared {
    mover: Mutex<Mover>,
    on_end: Mutex<Option<OnOneWayEnd>>,
    /// The task's key, once its loop has placed it.
    key: OnceLock<Key>,
    /// Set once a pair has taken the sockets over.
    merged: OnceLock<Merged>,
}

/// What a splice has become that was merged with its reverse.
struct Merged {
    status: Arc<Status>,
    /// Which direction of the pair it is.
    direction: usize,
    /// What it had moved by itself.
    before_bytes: u64,
}

impl Merged {
    fn moved_bytes(&self) -> u64 {
        self.before_bytes + self.status.meter.read().of(self.direction)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Mover> {
        // The mover counts a byte right after the system call that moved it.
        self.mover.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After the end: stops watching the duplicates, closes them, and tells the caller, once.
    fn conclude(&self, mut mover: MutexGuard<'_, Mover>, home: &Remote) {
        let Some((ends, reason)) = mover.take_ends() else {
            return;
        };
        let moved_bytes = mover.moved_bytes();
        // `on_end` may look at the splice.
        drop(mover);
        // epoll forgets a descriptor by itself only when its socket is closed by everybody.
        for end in &ends {
            home.deregister(end.as_fd());
        }
        drop(ends);
        let on_end = self
            .on_end
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(on_end) = on_end {
            on_end(reason, moved_bytes);
        }
    }
}

impl OneWay {
    /// Moves what has arrived already, in the caller's thread, and has the loop of `home` move what
    /// comes later.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if a descriptor cannot be duplicated;
    /// [`ErrorKind::UnsupportedSocket`](crate::ErrorKind::UnsupportedSocket) if one is neither a
    /// stream nor a datagram socket, or one of each; [`ErrorKind::LoopEnded`](crate::ErrorKind::LoopEnded) if the loop has ended.
    pub(crate) fn start(
        source: impl AsFd,
        destination: impl AsFd,
        options: &OneWayOptions,
        rules: &Arc<dyn Rules>,
        home: Remote,
        on_end: OnOneWayEnd,
    ) -> Result<Self> {
        let ends = [
            End::new(source.as_fd(), rules)?,
            End::new(destination.as_fd(), rules)?,
        ];
        let mover = Mover::new(ends, options, Instant::now())?;
        let shared = Arc::new(Shared {
            mover: Mutex::new(mover),
            on_end: Mutex::new(Some(on_end)),
            key: OnceLock::new(),
            merged: OnceLock::new(),
        });
        let mut mover = shared.lock();
        let mut carriers = Carriers::default();
        for _ in 0..FIRST_PASS_TURNS {
            if mover.pump(&mut carriers, Instant::now()) != Progress::TurnOver {
                break;
            }
        }
        if mover.reason().is_some() {
            shared.conclude(mover, &home);
        } else {
            drop(mover);
            let task = OneWayTask::new(Arc::clone(&shared), home.clone());
            home.run(move |event_loop| drop(event_loop.spawn_in_turn(Box::new(task), |_| ())))?;
        }
        Ok(Self {
            shared,
            home,
            is_detached: AtomicBool::new(false),
        })
    }

    /// The bytes moved so far. A byte that the destination's peer has seen is counted.
    pub fn moved_bytes(&self) -> u64 {
        let mover = self.shared.lock();
        match self.shared.merged.get() {
            Some(merged) => merged.moved_bytes(),
            None => mover.moved_bytes(),
        }
    }

    /// Why it has ended; `None` while it moves.
    pub fn reason(&self) -> Option<Reason> {
        let mover = self.shared.lock();
        match self.shared.merged.get() {
            Some(merged) => merged.status.outcome().map(|outcome| outcome.reason),
            None => mover.reason(),
        }
    }

    /// The engine in use, and the reason in words.
    pub fn engine(&self) -> (EngineName, Cow<'static, str>) {
        let mover = self.shared.lock();
        match self.shared.merged.get() {
            Some(merged) => merged.status.engine(),
            None => mover.engine(),
        }
    }

    /// Whether a pair has taken the sockets over. Then they cannot be taken back.
    pub fn is_merged(&self) -> bool {
        self.shared.merged.get().is_some()
    }

    /// Takes the sockets back. When this returns, the splice reads nothing more, and what it has
    /// not moved is still in the source. False if it had ended already.
    pub fn undo(&self) -> bool {
        self.end(Reason::Undone)
    }

    /// Ends it for a reason that only the caller knows: that a socket is closed, for example.
    pub fn end(&self, reason: Reason) -> bool {
        let mut mover = self.shared.lock();
        if mover.ends().is_none() {
            return false;
        }
        mover.end(reason);
        self.shared.conclude(mover, &self.home);
        if let Some(key) = self.shared.key.get() {
            self.home.close(*key);
        }
        true
    }

    /// Has both idle timers restart when either splice moves bytes.
    pub fn share_idle_timer(&self, other: &Self) {
        let moved_at = Arc::new(Mutex::new(Instant::now()));
        for way in [self, other] {
            way.shared.lock().idle_since = Arc::clone(&moved_at);
        }
    }

    /// Tells it that another process may read the source from now on. Then it reads before it
    /// sends, so that no byte is read twice, and undoing may have to wait for the destination to
    /// take what it has read.
    pub fn share(&self) {
        let mover = &mut self.shared.lock();
        mover.direction.carrier_choice.share_source();
    }

    /// Has the handle's drop let it go on until it ends by itself.
    pub fn detach(&self) {
        self.is_detached.store(true, Ordering::Relaxed);
    }
}

/// Two running splices that are each other's reverse, both held still.
pub(crate) struct Reverses<'ways> {
    ways: [(&'ways OneWay, MutexGuard<'ways, Mover>); 2],
}

impl<'ways> Reverses<'ways> {
    /// `None` if one of them has ended.
    pub(crate) fn of(forth: &'ways OneWay, back: &'ways OneWay) -> Option<Self> {
        // Two of these may meet: both take the same one first.
        let ways = if Arc::as_ptr(&forth.shared) < Arc::as_ptr(&back.shared) {
            [forth, back].map(|way| (way, way.shared.lock()))
        } else {
            let [back, forth] = [back, forth].map(|way| (way, way.shared.lock()));
            [forth, back]
        };
        // What is in between would be waited for.
        let are_running = ways
            .iter()
            .all(|(_, mover)| mover.ends().is_some() && !mover.is_between());
        are_running.then_some(Self { ways })
    }

    /// Has a pair with `status` take over: its sockets, and what to call at its end.
    pub(crate) fn merge(
        self,
        status: &Arc<Status>,
    ) -> Option<([OwnedFd; 2], impl FnOnce(Reason, Counters) + Send + use<>)> {
        let mut sources = Vec::new();
        let mut on_ends = Vec::new();
        for (direction, (way, mut mover)) in self.ways.into_iter().enumerate() {
            mover.end(Reason::Undone);
            let (ends, _) = mover.take_ends()?;
            for end in &ends {
                way.home.deregister(end.as_fd());
            }
            let [source, _] = ends;
            sources.push(source.hand_over()?);
            let before_bytes = mover.moved_bytes();
            let merged = Merged {
                status: Arc::clone(status),
                direction,
                before_bytes,
            };
            // It had not ended, so it was not merged before.
            let _ = way.shared.merged.set(merged);
            if let Some(key) = way.shared.key.get() {
                way.home.close(*key);
            }
            let mut on_end = way
                .shared
                .on_end
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            on_ends.push((on_end.take(), before_bytes));
        }
        let on_end = move |reason, moved: Counters| {
            for (direction, (on_end, before_bytes)) in on_ends.into_iter().enumerate() {
                if let Some(on_end) = on_end {
                    on_end(reason, before_bytes + moved.of(direction));
                }
            }
        };
        Some((sources.try_into().ok()?, on_end))
    }
}

impl Drop for OneWay {
    fn drop(&mut self) {
        if !self.is_detached.load(Ordering::Relaxed) {
            self.undo();
        }
    }
}

impl fmt::Debug for OneWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneWay").finish_non_exhaustive()
    }
}
