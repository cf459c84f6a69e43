//! What a thread is told by others.
//!
//! ```text
//!          ┌────────resume────────┐
//!          ▼                      │   no session left
//!       running ──leave────▶ leaving ────────────────▶ over
//!          │                  │   │                      ▲
//!          ├──drain──▶ draining ◀─┘──no session left─────┤
//!          └──end, cut──▶ ending, cut ──at once──────────┘
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::Wake;

use anyhow::{Context as _, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use crate::sessions::Inbox;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Running,
    /// The listener takes no new clients; it may take some again.
    Leaving,
    /// The relay ends, and takes no new clients.
    Draining,
    /// The relay ends now.
    Ending,
    /// The listener was removed, and its sessions have had their time.
    Cut,
    /// The thread ends.
    Over,
}

#[derive(Debug)]
pub(crate) struct Control {
    phase: AtomicU8,
    wake: OwnedFd,
    pub(crate) inbox: Inbox,
    /// A session may be cut, or the terms have changed.
    is_told: AtomicBool,
}

impl Control {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("cannot create an eventfd")?;
        Ok(Arc::new(Self {
            phase: AtomicU8::new(Phase::Running as u8),
            wake,
            inbox: Inbox::default(),
            is_told: AtomicBool::new(false),
        }))
    }

    /// Readable if the thread is to look.
    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Leaving,
            2 => Phase::Draining,
            3 => Phase::Ending,
            4 => Phase::Cut,
            _ => Phase::Over,
        }
    }

    /// Goes on to a later phase.
    pub(crate) fn go_to(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        self.notify();
    }

    /// The thread of a listener that is leaving takes clients again. Returns whether it is still there.
    pub(crate) fn resume(&self) -> bool {
        let (leaving, running) = (Phase::Leaving as u8, Phase::Running as u8);
        let resumed =
            self.phase
                .compare_exchange(leaving, running, Ordering::AcqRel, Ordering::Acquire);
        self.notify();
        resumed.is_ok() || self.phase() == Phase::Running
    }

    /// The thread ends, unless the phase is not `seen` any more. Returns whether it does.
    pub(crate) fn is_over(&self, seen: Phase) -> bool {
        let over = Phase::Over as u8;
        let ended =
            self.phase
                .compare_exchange(seen as u8, over, Ordering::AcqRel, Ordering::Acquire);
        ended.is_ok()
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

impl Wake for Control {
    fn wake(self: Arc<Self>) {
        self.tell();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.tell();
    }
}
