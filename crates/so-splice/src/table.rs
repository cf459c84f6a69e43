//! The splices of this process, by the sockets that they join.
//!
//! ```text
//!              the handle is there            its mover has ended
//! setting up ─────────────────────▶ running ─────────────────────▶ ended
//!      └────────────────── it has ended in its first pass ─────────────▲
//! ```
//!
//! An ended splice stays until its socket is closed or spliced again: its bytes and its errors can
//! still be asked for.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use splice::{OneWay, Reason};

use crate::personality::{Left, Personality};
use crate::request::Request;
use crate::ring::Path;
use crate::socket::{self, Socket};

/// A table of fewer entries is not swept.
const SWEPT_LEAST: usize = 256;

/// How many reads of the eventfd of an ended splice return at once: more than anybody makes. Each
/// takes one.
const READERS_MOST: u32 = 1 << 31;

/// One splice.
pub struct Splice {
    pub(crate) source: u64,
    pub(crate) drain: u64,
    /// The descriptors of both as the program named them.
    pub(crate) numbers: [RawFd; 2],
    /// `None` if the protocol has no addresses.
    pub(crate) path: Option<Path>,
    pub(crate) personality: Personality,
    request: Request,
    /// Whether another process may have descriptors of its sockets.
    pub(crate) is_shared: AtomicBool,
    state: Mutex<State>,
    /// Held by whoever moves bytes of the source, or reads it.
    reading: Mutex<()>,
    /// What its ring has left, if it is in one.
    passes: Mutex<Option<Arc<AtomicU32>>>,
}

#[derive(Default)]
struct State {
    handle: Option<Arc<OneWay>>,
    ended: Option<Ended>,
    /// Readable once it has ended.
    event: Option<OwnedFd>,
}

#[derive(Clone, Copy)]
struct Ended {
    reason: Reason,
    moved_bytes: u64,
    left: Left,
    error: Option<Errno>,
}

impl Splice {
    pub(crate) fn new(
        source: &Socket<'_>,
        drain: &Socket<'_>,
        personality: Personality,
        request: &Request,
    ) -> Self {
        Self {
            source: source.cookie,
            drain: drain.cookie,
            numbers: [source.number, drain.number],
            path: Path::between(source, drain),
            personality,
            request: *request,
            is_shared: AtomicBool::new(false),
            state: Mutex::default(),
            reading: Mutex::default(),
            passes: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both together are what a pair is.
    pub(crate) fn is_reverse_of(&self, other: &Self) -> bool {
        let has_no_limit = |splice: &Self| {
            splice.request.byte_limit().is_none() && splice.request.idle_timer(true).is_none()
        };
        (self.source, self.drain) == (other.drain, other.source)
            && self.source != self.drain
            && self.personality == other.personality
            && has_no_limit(self)
            && has_no_limit(other)
    }

    pub(crate) fn set_handle(&self, handle: OneWay) {
        let mut state = self.lock();
        // The process may have forked while the splice was set up.
        if self.is_shared.load(Ordering::Relaxed) {
            handle.share();
        }
        state.handle = Some(Arc::new(handle));
    }

    /// Keeps it from moving bytes until what this returns is dropped. Somebody who reads the source
    /// in the meantime gets bytes that the splice does not move, and the splice none of his.
    pub fn hold_still(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The passes of its ring, if it is in one.
    pub(crate) fn passes(&self) -> Option<Arc<AtomicU32>> {
        self.lock_passes().clone()
    }

    /// Has each read of bytes take one of `passes`, which the splices in a ring share. It ends when
    /// they are used up.
    pub(crate) fn bound_passes(&self, passes: &Arc<AtomicU32>) {
        *self.lock_passes() = Some(Arc::clone(passes));
    }

    fn lock_passes(&self) -> MutexGuard<'_, Option<Arc<AtomicU32>>> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it has ended, and what it has moved; `None` while it runs.
    pub fn outcome(&self) -> Option<(Reason, u64)> {
        let ended = self.look().ended?;
        Some((ended.reason, ended.moved_bytes))
    }

    /// The handle of its mover; `None` while it is set up, and if it was never started.
    pub fn handle(&self) -> Option<Arc<OneWay>> {
        self.lock().handle.clone()
    }

    /// Records the end, and tells whoever waits for it.
    pub(crate) fn ended(&self, reason: Reason, moved_bytes: u64) {
        self.settle(&mut self.lock(), reason, moved_bytes);
    }

    fn settle(&self, state: &mut State, reason: Reason, moved_bytes: u64) {
        if state.ended.is_some() {
            return;
        }
        let left = self.personality.left(reason, moved_bytes, &self.request);
        state.ended = Some(Ended {
            reason,
            moved_bytes,
            left,
            error: Personality::error(reason, moved_bytes, &self.request),
        });
        if let Some(event) = &state.event {
            // It fails only if the counter is full, and then the event is readable.
            let _ = rustix::io::write(event, &u64::from(READERS_MOST).to_ne_bytes());
        }
    }

    /// The state. The loop may not have come to tell that the splice has ended; then this does.
    fn look(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if state.ended.is_none()
            && let Some(handle) = &state.handle
            && let Some(reason) = handle.reason()
        {
            let moved_bytes = handle.moved_bytes();
            self.settle(&mut state, reason, moved_bytes);
        }
        state
    }

    /// Whether it moves bytes.
    pub fn is_active(&self) -> bool {
        self.look().ended.is_none()
    }

    /// Whose rules it follows.
    pub fn personality(&self) -> Personality {
        self.personality
    }

    pub(crate) fn moved_bytes(&self) -> u64 {
        let state = self.look();
        match (&state.ended, &state.handle) {
            (Some(ended), _) => ended.moved_bytes,
            (None, Some(handle)) => handle.moved_bytes(),
            (None, None) => 0,
        }
    }

    /// Why it has ended; `None` while it runs, and if it was undone or its stream has ended.
    pub(crate) fn error(&self) -> Option<Errno> {
        self.look().ended?.error
    }

    /// The error that it has left with its source or its drain.
    pub(crate) fn left(&self, cookie: u64) -> Option<Errno> {
        let left = self.look().ended?.left;
        match cookie == self.source {
            true => left.source,
            false => left.drain,
        }
    }

    pub(crate) fn set_left(&self, cookie: u64, errno: Option<Errno>) {
        if let Some(ended) = &mut self.look().ended {
            match cookie == self.source {
                true => ended.left.source = errno,
                false => ended.left.drain = errno,
            }
        }
    }

    /// A descriptor that is readable once the splice has ended.
    ///
    /// # Errors
    /// `EMFILE` and the like.
    pub(crate) fn event(&self) -> Result<RawFd, Errno> {
        let mut state = self.look();
        if let Some(event) = &state.event {
            return Ok(event.as_raw_fd());
        }
        let readers = state.ended.map_or(0, |_| READERS_MOST);
        let event = eventfd(readers, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        let number = event.as_raw_fd();
        state.event = Some(event);
        Ok(number)
    }
}

impl fmt::Debug for Splice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Splice")
            .field("source", &self.source)
            .field("drain", &self.drain)
            .finish_non_exhaustive()
    }
}

/// The last splice of a socket in each role.
#[derive(Default)]
struct Roles {
    source: Option<Arc<Splice>>,
    drain: Option<Arc<Splice>>,
}

impl Roles {
    fn each(&self) -> impl Iterator<Item = &Arc<Splice>> {
        self.source.iter().chain(&self.drain)
    }
}

pub(crate) struct Table {
    roles: BTreeMap<u64, Roles>,
    /// The size at which it is swept next.
    swept_at: usize,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    roles: BTreeMap::new(),
    swept_at: SWEPT_LEAST,
});

/// Whether this process has spliced anything: without it, no lock is taken.
static IS_USED: AtomicBool = AtomicBool::new(false);

pub(crate) fn lock() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process has never spliced.
pub fn is_empty() -> bool {
    !IS_USED.load(Ordering::Acquire)
}

impl Table {
    pub(crate) fn source(&self, cookie: u64) -> Option<&Arc<Splice>> {
        self.roles.get(&cookie)?.source.as_ref()
    }

    pub(crate) fn drain(&self, cookie: u64) -> Option<&Arc<Splice>> {
        self.roles.get(&cookie)?.drain.as_ref()
    }

    /// Takes a new splice, unless one of its sockets got another meanwhile.
    pub(crate) fn insert(&mut self, splice: &Arc<Splice>) -> bool {
        let is_active = |splice: Option<&Arc<Splice>>| splice.is_some_and(|one| one.is_active());
        if is_active(self.source(splice.source)) || is_active(self.drain(splice.drain)) {
            return false;
        }
        IS_USED.store(true, Ordering::Release);
        self.sweep();
        let roles = self.roles.entry(splice.source).or_default();
        roles.source = Some(Arc::clone(splice));
        let roles = self.roles.entry(splice.drain).or_default();
        roles.drain = Some(Arc::clone(splice));
        true
    }

    pub(crate) fn remove(&mut self, splice: &Arc<Splice>) {
        if let Some(roles) = self.roles.get_mut(&splice.source) {
            roles.source.take_if(|one| Arc::ptr_eq(one, splice));
        }
        if let Some(roles) = self.roles.get_mut(&splice.drain) {
            roles.drain.take_if(|one| Arc::ptr_eq(one, splice));
        }
    }

    /// Forgets a socket, and returns its splices.
    pub(crate) fn forget(&mut self, cookie: u64) -> Vec<Arc<Splice>> {
        let roles = self.roles.remove(&cookie).unwrap_or_default();
        roles.each().map(Arc::clone).collect()
    }

    /// Forgets ended splices of sockets that are closed. Nobody tells a library of a close.
    fn sweep(&mut self) {
        if self.roles.len() < self.swept_at {
            return;
        }
        self.roles.retain(|cookie, roles| {
            roles.each().any(|splice| {
                let number = splice.numbers[usize::from(splice.source != *cookie)];
                splice.is_active() || socket::cookie(number) == Ok(*cookie)
            })
        });
        self.swept_at = SWEPT_LEAST.max(self.roles.len() * 2);
    }

    /// The last splice of each source.
    pub(crate) fn splices(&self) -> impl Iterator<Item = &Arc<Splice>> {
        self.roles
            .values()
            .filter_map(|roles| roles.source.as_ref())
    }

    /// From now on, another process may have descriptors of all sockets.
    pub(crate) fn share_all(&self) {
        for splice in self.splices() {
            splice.is_shared.store(true, Ordering::Relaxed);
            if let Some(handle) = splice.handle() {
                handle.share();
            }
        }
    }

    /// In a forked child: the parent's splices stay the parent's. Nothing is dropped, since the
    /// locks inside may have been held by threads that the child does not have.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.roles));
        IS_USED.store(false, Ordering::Release);
    }
}

pub(crate) fn is_source(cookie: u64) -> bool {
    let splice = lock().source(cookie).map(Arc::clone);
    splice.is_some_and(|splice| splice.is_active())
}

pub(crate) fn is_drain(cookie: u64) -> bool {
    let splice = lock().drain(cookie).map(Arc::clone);
    splice.is_some_and(|splice| splice.is_active())
}

/// The last splices of a socket: as a source, and as a drain.
pub fn last_of(cookie: u64) -> [Option<Arc<Splice>>; 2] {
    let table = lock();
    [table.source(cookie), table.drain(cookie)].map(|splice| splice.map(Arc::clone))
}

/// For a caller that waits for a descriptor of a splice while that may be replaced.
impl Splice {
    /// A duplicate of the descriptor that is readable once the splice has ended.
    ///
    /// # Errors
    /// `EMFILE` and the like.
    pub fn end_event(&self) -> Result<OwnedFd, Errno> {
        self.event()?;
        match &self.lock().event {
            Some(event) => event
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE)),
            None => Err(Errno::BADF),
        }
    }
}
