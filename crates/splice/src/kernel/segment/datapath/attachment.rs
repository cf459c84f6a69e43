//! Attaching the program to a device.
//!
//! ```text
//! absent ──▶ under way ──▶ attached ◀──▶ under way (checks that it still is)
//!    ▲           │
//!    │           ▼
//!    └─────── refused
//! ```
//!
//! Another thread does the work: the kernel may have to wait for all its CPUs, and a query about a filter waits
//! for any load in this process (`LOADING`). Nobody locks the table meanwhile. Only a pair whose loop may wait
//! (`Segment::new`) attaches the program on its loop's own thread.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::preceding::{self, Preceding};
use super::{Datapath, Failure, LOOPBACK};
use splice_base::error::{Error, Result};
use splice_base::shortage::{Shortage, is_of_descriptors};
use splice_bpf::{DeviceLink, Traffic};

/// The program, attached to a device.
pub(super) struct Attachment {
    pub(super) links: Arc<[DeviceLink; 2]>,
    /// What precedes it there.
    pub(super) before: Vec<Preceding>,
    /// These came before the program, which therefore comes first now.
    pub(super) overtaken: Vec<Preceding>,
    /// What the pairs on the device hold.
    pub(super) attached: Arc<Attached>,
    /// Of what it takes to ask what precedes it.
    pub(super) shortage: Shortage,
    /// When it was last seen there.
    seen_at: Instant,
}

/// The program is attached to a device: pairs whose segments it sees there hold this.
#[derive(Debug, Default)]
pub(in super::super) struct Attached {
    why_lost: OnceLock<String>,
    /// There was another one before, and what the program saw then proves nothing.
    is_again: bool,
}

/// How far another thread has come with a device.
pub(super) enum AttachState {
    UnderWay,
    Refused { failure: Failure, at: Instant },
}

/// How long to wait until the next attempt after a refusal. Its cause may pass: a shortage of memory, or 64
/// programs of others. An attempt costs a thread, and the kernel tens of milliseconds beside the loops.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// The same where something is short: pairs that have to go back may wait for it.
const SHORT_FOR: Duration = Duration::from_millis(500);

/// How long one check serves all pairs that doubt the same device. A pair doubts it again after 600 ms
/// (`BETWEEN_PROBES`).
const SEEN_FOR: Duration = Duration::from_millis(100);

impl Failure {
    fn lasts(&self) -> Duration {
        match self.is_short() {
            true => SHORT_FOR,
            false => REFUSED_FOR,
        }
    }
}

impl Attached {
    /// The one that follows.
    pub(super) fn again() -> Self {
        Self {
            is_again: true,
            ..Self::default()
        }
    }

    /// For good.
    pub(super) fn lose(&self, why: String) {
        // The first reason counts.
        let _ = self.why_lost.set(why);
    }

    /// Why some of what the device receives may not reach the program any more.
    pub(in super::super) fn why_lost(&self) -> Option<&str> {
        self.why_lost.get().map(String::as_str)
    }

    /// The SYN of a connection may have reached the program only before.
    pub(in super::super) fn doubts_handshakes(&self) -> bool {
        self.is_again
    }
}

impl Datapath {
    /// Attaches the program to a device; true when it already was.
    pub(crate) fn ensure_attached(&self, device: u32) -> Result<bool> {
        if self.table().devices.contains_key(&device) {
            return Ok(true);
        }
        let _one = self.attaching();
        self.attach(device, Vec::new())
    }

    pub(super) fn attaching(&self) -> MutexGuard<'_, ()> {
        self.attaching
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, while nobody else attaches anything: after what is there, or before those that it overtakes. Pairs can use
    /// the table meanwhile.
    pub(super) fn attach(&self, device: u32, overtaken: Vec<Preceding>) -> Result<bool> {
        if self.table().devices.contains_key(&device) {
            return Ok(true);
        }
        let mode = *self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        let links = [
            self.lend(|| match overtaken.is_empty() {
                true => self.ingress.attach(device, Traffic::In, mode),
                false => self.ingress.attach_first(device),
            })?,
            self.lend(|| self.egress.attach(device, Traffic::Out, mode))?,
        ];
        self.reserve.fill();
        if device == LOOPBACK {
            let is_preceded = self.ingress.is_preceded_by_same_name(device, &links[0])?;
            self.gate
                .at(0)
                .is_preceded
                .store(is_preceded.into(), Relaxed);
        }
        let before = preceding::preceding(device, &self.ingress, &links[0], &self.links);
        let mut table = self.table();
        let attached = match table.known_devices.insert(device) {
            true => Attached::default(),
            false => Attached::again(),
        };
        let attachment = Attachment {
            before: before.unwrap_or_default(),
            overtaken,
            attached: Arc::new(attached),
            links: Arc::new(links),
            shortage: Shortage::default(),
            seen_at: Instant::now(),
        };
        table.devices.insert(device, attachment);
        Ok(false)
    }

    /// Attaches with descriptors of the reserve if there are no others.
    fn lend(&self, attach: impl Fn() -> Result<DeviceLink>) -> Result<DeviceLink> {
        loop {
            match attach() {
                Err(error)
                    if error.errno().is_some_and(is_of_descriptors) && self.reserve.give_up() => {}
                done => return done,
            }
        }
    }

    /// The same on another thread: the kernel waits for all its CPUs (`tcx_entry_sync`), tens of milliseconds
    /// on a busy machine. `None` while that is under way, else why it cannot be done.
    pub(in super::super) fn attach_beside(
        self: &Arc<Self>,
        device: u32,
    ) -> Option<std::result::Result<(), Failure>> {
        self.beside(device, |_| true)
    }

    /// The same where the program may no longer be attached: the device may have been deleted, and its
    /// ifindex reused.
    pub(in super::super) fn reattach_beside(
        self: &Arc<Self>,
        device: u32,
    ) -> Option<std::result::Result<(), Failure>> {
        self.beside(device, |attachment| attachment.seen_at.elapsed() < SEEN_FOR)
    }

    fn beside(
        self: &Arc<Self>,
        device: u32,
        is_certain: impl FnOnce(&Attachment) -> bool,
    ) -> Option<std::result::Result<(), Failure>> {
        let mut table = self.table();
        if table.devices.get(&device).is_some_and(is_certain) {
            return Some(Ok(()));
        }
        match table.attach_states.get(&device) {
            Some(AttachState::UnderWay) => return None,
            Some(AttachState::Refused { failure, at }) if at.elapsed() < failure.lasts() => {
                return Some(Err(failure.clone()));
            }
            Some(AttachState::Refused { .. }) | None => {}
        }
        let datapath = Arc::clone(self);
        let attach = move || {
            let refused = datapath.reattach(device).err();
            let attach_states = &mut datapath.table().attach_states;
            match refused {
                Some(error) => {
                    let (failure, at) = (Failure::from(&error), Instant::now());
                    attach_states.insert(device, AttachState::Refused { failure, at })
                }
                None => attach_states.remove(&device),
            };
        };
        match thread::Builder::new().name("attach".into()).spawn(attach) {
            Ok(_) => {
                table.attach_states.insert(device, AttachState::UnderWay);
                None
            }
            Err(error) => {
                let error = Error::system("no thread can attach the program", error);
                Some(Err(Failure::from(&error)))
            }
        }
    }

    /// Attaches the program, unless it still is attached. If it is not, its pairs go back to their sockets.
    pub(super) fn reattach(&self, device: u32) -> Result<bool> {
        let _one = self.attaching();
        let attachment = self
            .table()
            .devices
            .get(&device)
            .map(|attachment| Arc::clone(&attachment.links));
        if let Some(links) = attachment {
            if links.iter().all(DeviceLink::is_attached) {
                if let Some(attachment) = self.table().devices.get_mut(&device) {
                    attachment.seen_at = Instant::now();
                }
                return Ok(true);
            }
            let gone = self.table().devices.remove(&device);
            drop(links);
            // Before the program sees segments again, which would count for these pairs.
            if let Some(lost) = gone.map(|gone| Arc::clone(&gone.attached)) {
                self.tell_detached(device, &lost);
            }
        }
        self.attach(device, Vec::new())
    }

    /// Detaches the program from a device as somebody else would; by a link only.
    #[cfg(test)]
    pub(in super::super) fn detach_by_force(&self, device: u32, traffic: Traffic) {
        let table = self.table();
        let [ingress, egress] = &*table.devices[&device].links;
        let link = match traffic {
            Traffic::In => ingress,
            Traffic::Out => egress,
        };
        link.detach().expect("detached");
    }

    /// The links of a device, which stay for as long as somebody has them.
    #[cfg(test)]
    pub(in super::super) fn links_of(&self, device: u32) -> Arc<[DeviceLink; 2]> {
        Arc::clone(&self.table().devices[&device].links)
    }

    /// Another thread is busy with a device.
    #[cfg(test)]
    pub(in super::super) fn is_asking(&self) -> bool {
        let table = self.table();
        let mut attach_states = table.attach_states.values();
        attach_states.any(|attach| matches!(attach, AttachState::UnderWay))
    }

    /// As if the program had last been seen long ago.
    #[cfg(test)]
    pub(in super::super) fn doubt_all(&self) {
        for attachment in self.table().devices.values_mut() {
            attachment.seen_at -= SEEN_FOR;
        }
    }
}
