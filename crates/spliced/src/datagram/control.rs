//! What a thread is told by others.
//!
//! The threads of a listener that were started together are a **group**, whose phase is one: they end together. As long as
//! there is a session, all their sockets stay, so that the kernel gives a client's datagrams to the thread that has its
//! session (`reuseport_select_sock` counts the sockets).
//!
//! ```text
//!          ┌─────────resume──────────┬────────────┐
//!          ▼                         │   ┌─hold─▶ held
//!       running ──leave───────────▶ leaving ◀─release─┘
//!          │                         │   │
//!          │                         │   └─no session left in the group──▶ over
//!          ├──drain──▶ draining ◀────┘──no session left in the group─────▶ over
//!          └──end, cut──▶ ending, cut: the threads end at once
//! ```

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use anyhow::{Context as _, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use splice_route::Prefix;

use crate::sessions::Inbox;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub(crate) enum Phase {
    Running,
    /// As [`Leaving`](Self::Leaving), but the threads do not end: a reload that is not yet decided has the listener again.
    Held,
    /// The listener takes no new clients; it may take some again.
    Leaving,
    /// The relay ends, and takes no new clients.
    Draining,
    /// The threads end.
    Over,
    /// The relay ends now.
    Ending,
    /// The listener was removed, and its sessions have had their time.
    Cut,
}

/// Threads that begin and end together.
#[derive(Debug, Default)]
pub(crate) struct Group {
    phase: AtomicU8,
    /// How many its threads have.
    sessions: AtomicUsize,
    /// How many threads it has.
    threads: AtomicUsize,
}

#[derive(Debug)]
pub(crate) struct Control {
    group: Arc<Group>,
    /// Of the threads of its group.
    is_first: bool,
    wake: OwnedFd,
    pub(crate) inbox: Inbox,
    /// A session may be cut, or the terms have changed.
    is_told: AtomicBool,
    /// How many sessions the thread has.
    sessions: AtomicUsize,
    /// How many it is to displace, if there are still more than the listener may have.
    to_displace: AtomicUsize,
    /// It is to displace one, since no descriptor is free.
    is_descriptor_wanted: AtomicBool,
    /// Clients that may have more sessions than they may.
    crowded: Mutex<Vec<Prefix>>,
}

/// Counts a session of a thread until it is dropped.
pub(crate) struct Entered(Arc<Control>);

/// Keeps the threads of a group that is leaving.
pub(crate) struct Hold(Arc<Control>);

impl Control {
    pub(crate) fn new(group: &Arc<Group>) -> Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("cannot create an eventfd")?;
        Ok(Arc::new(Self {
            group: Arc::clone(group),
            is_first: group.threads.fetch_add(1, Ordering::Relaxed) == 0,
            wake,
            inbox: Inbox::default(),
            is_told: AtomicBool::new(false),
            sessions: AtomicUsize::new(0),
            to_displace: AtomicUsize::new(0),
            is_descriptor_wanted: AtomicBool::new(false),
            crowded: Mutex::default(),
        }))
    }

    /// Whether this thread passes on datagrams to a broadcast or multicast address: the kernel gives a copy to each
    /// socket (`__udp4_lib_mcast_deliver`), and only one thread passes it on.
    pub(crate) fn passes_on_copies(&self) -> bool {
        self.is_first
    }

    /// Readable if the thread is to look.
    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    pub(crate) fn phase(&self) -> Phase {
        self.group.phase()
    }

    /// Goes on to a later phase.
    pub(crate) fn go_to(&self, phase: Phase) {
        self.group.phase.fetch_max(phase as u8, Ordering::SeqCst);
        self.notify();
    }

    /// The threads of a group that is leaving take clients again. Returns whether they are still there.
    pub(crate) fn resume(&self) -> bool {
        let group = &self.group;
        let resumed = group.change(Phase::Leaving, Phase::Running)
            || group.change(Phase::Held, Phase::Running);
        self.notify();
        resumed || self.phase() == Phase::Running
    }

    /// Keeps the threads of a group that is leaving, until that is dropped. `None` if they end.
    pub(crate) fn hold(self: &Arc<Self>) -> Option<Hold> {
        let is_held = self.group.change(Phase::Leaving, Phase::Held) || self.phase() == Phase::Held;
        is_held.then(|| Hold(Arc::clone(self)))
    }

    /// The threads end, unless one has a session or the phase is not `seen` any more. Returns whether they do; the others
    /// are to be told.
    pub(crate) fn is_over(&self, seen: Phase) -> bool {
        self.group.sessions.load(Ordering::SeqCst) == 0 && self.group.change(seen, Phase::Over)
    }

    /// Counts a session that is about to begin. Returns the phase in which none begins any more.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Entered, Phase> {
        // Before it looks at the phase, so that no thread of the group ends in between.
        self.group.sessions.fetch_add(1, Ordering::SeqCst);
        self.sessions.fetch_add(1, Ordering::Relaxed);
        let entered = Entered(Arc::clone(self));
        match self.phase() {
            Phase::Running => Ok(entered),
            phase => Err(phase),
        }
    }

    /// How many sessions the thread has.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    /// The thread is to displace a session, if the listener has more than it may.
    pub(crate) fn ask_to_displace(&self) {
        self.to_displace.fetch_add(1, Ordering::AcqRel);
        self.notify();
    }

    /// How often [`ask_to_displace`](Self::ask_to_displace) was called since the last time.
    pub(crate) fn take_to_displace(&self) -> usize {
        self.to_displace.swap(0, Ordering::AcqRel)
    }

    /// The thread is to displace a session, so that a descriptor is free.
    pub(crate) fn ask_for_descriptor(&self) {
        if !self.is_descriptor_wanted.swap(true, Ordering::AcqRel) {
            self.notify();
        }
    }

    /// Whether [`ask_for_descriptor`](Self::ask_for_descriptor) was called since the last time.
    pub(crate) fn take_descriptor_wanted(&self) -> bool {
        self.is_descriptor_wanted.swap(false, Ordering::AcqRel)
    }

    /// The thread is to displace sessions of `client`, if that has more than it may.
    pub(crate) fn tell_crowded(&self, client: Prefix) {
        let mut crowded = self.crowded.lock().unwrap_or_else(PoisonError::into_inner);
        if !crowded.contains(&client) {
            crowded.push(client);
            drop(crowded);
            self.notify();
        }
    }

    /// The clients that [`tell_crowded`](Self::tell_crowded) was called with since the last time.
    pub(crate) fn take_crowded(&self) -> Vec<Prefix> {
        let mut crowded = self.crowded.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *crowded)
    }

    /// The thread is to look at its terms and at what has become of its sessions.
    pub(crate) fn tell(&self) {
        if !self.is_told.swap(true, Ordering::AcqRel) {
            self.notify();
        }
    }

    /// Whether [`tell`](Self::tell) was called since the last time.
    pub(crate) fn take_told(&self) -> bool {
        self.is_told.swap(false, Ordering::AcqRel)
    }

    /// Has the thread look at what it was told.
    pub(crate) fn notify(&self) {
        // It fails only if it was told 2^64 times before.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The thread looks at what it was told, and is woken again by what comes from now on.
    pub(crate) fn look(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }
}

impl Group {
    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Running,
            1 => Phase::Held,
            2 => Phase::Leaving,
            3 => Phase::Draining,
            4 => Phase::Over,
            5 => Phase::Ending,
            _ => Phase::Cut,
        }
    }

    /// Changes from one phase to another. Returns whether it was that one.
    fn change(&self, from: Phase, to: Phase) -> bool {
        let (from, to) = (from as u8, to as u8);
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let changed = self.phase.compare_exchange(from, to, success, failure);
        changed.is_ok()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::Relaxed);
        self.0.group.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Unless they were resumed.
        self.0.group.change(Phase::Held, Phase::Leaving);
        self.0.notify();
    }
}

impl Wake for Control {
    fn wake(self: Arc<Self>) {
        self.tell();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.tell();
    }
}
