//! The program on a device.
//!
//! ```text
//! absent ──▶ under way ──▶ stands ◀──▶ under way (asked whether it still does)
//!    ▲           │
//!    │           ▼
//!    └─────── refused
//! ```
//!
//! Another thread does what is under way: the kernel may have to wait for all its CPUs, and a question
//! about a filter waits for any load in this process (`LOADING`). Nobody holds the book meanwhile. Only a
//! pair whose loop is to wait (`Segment::new`) attaches the program on its loop's own thread.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Ground, LOOPBACK};
use crate::bpf_object::device::{DeviceLink, Traffic};
use crate::error::Result;

/// The program on a device.
pub(super) struct Footing {
    links: Arc<[DeviceLink; 2]>,
    /// When it was last known to stand there.
    seen_at: Instant,
}

/// How another thread gets on with a device.
pub(super) enum Approach {
    UnderWay,
    Refused { why: String, at: Instant },
}

/// For how long a device that refused the program is not asked again. What was in the way may go: it
/// was short of memory, or had 64 programs of others. A try costs a thread, and the kernel tens of
/// milliseconds beside the loops.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// How long an answer counts for all pairs that doubt the same device. A pair doubts it again after
/// 600 ms (`ANSWERED_ONCE_IN`).
const SEEN_FOR: Duration = Duration::from_millis(100);

impl Ground {
    /// Makes sure that the program sees what comes in on a device; true when it already did.
    pub(crate) fn stand_on(&self, device: u32) -> Result<bool> {
        if self.book().devices.contains_key(&device) {
            return Ok(true);
        }
        let _one = self.attaching();
        self.attach(device)
    }

    fn attaching(&self) -> MutexGuard<'_, ()> {
        self.attaching
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The same while nobody else attaches anything. Pairs can get at the book meanwhile.
    fn attach(&self, device: u32) -> Result<bool> {
        let way = {
            let book = self.book();
            if book.devices.contains_key(&device) {
                return Ok(true);
            }
            book.way
        };
        let links = [
            self.ingress.attach(device, Traffic::In, way)?,
            self.egress.attach(device, Traffic::Out, way)?,
        ];
        if device == LOOPBACK {
            let behind = self.ingress.is_behind_its_like(device, &links[0])?;
            self.gate.at(0).behind.store(behind.into(), Relaxed);
        }
        let footing = Footing {
            links: Arc::new(links),
            seen_at: Instant::now(),
        };
        self.book().devices.insert(device, footing);
        Ok(false)
    }

    /// The same by another thread, since the kernel waits for all its CPUs (`tcx_entry_sync`), tens
    /// of milliseconds on a busy machine: `None` while that is under way, else why it cannot be.
    pub(in super::super) fn stand_on_beside(
        self: &Arc<Self>,
        device: u32,
    ) -> Option<std::result::Result<(), String>> {
        self.beside(device, |_| true)
    }

    /// The same where the program may no longer stand: a device may have been deleted, and another have
    /// got its index.
    pub(in super::super) fn stand_anew_beside(
        self: &Arc<Self>,
        device: u32,
    ) -> Option<std::result::Result<(), String>> {
        self.beside(device, |footing| footing.seen_at.elapsed() < SEEN_FOR)
    }

    fn beside(
        self: &Arc<Self>,
        device: u32,
        is_firm: impl FnOnce(&Footing) -> bool,
    ) -> Option<std::result::Result<(), String>> {
        let mut book = self.book();
        if book.devices.get(&device).is_some_and(is_firm) {
            return Some(Ok(()));
        }
        match book.approaches.get(&device) {
            Some(Approach::UnderWay) => return None,
            Some(Approach::Refused { why, at }) if at.elapsed() < REFUSED_FOR => {
                return Some(Err(why.clone()));
            }
            Some(Approach::Refused { .. }) | None => {}
        }
        let ground = Arc::clone(self);
        let approach = move || {
            let refused = ground.stand_anew(device).err();
            let approaches = &mut ground.book().approaches;
            match refused {
                Some(error) => {
                    let (why, at) = (error.to_string(), Instant::now());
                    approaches.insert(device, Approach::Refused { why, at })
                }
                None => approaches.remove(&device),
            };
        };
        match thread::Builder::new().name("attach".into()).spawn(approach) {
            Ok(_) => {
                book.approaches.insert(device, Approach::UnderWay);
                None
            }
            Err(error) => Some(Err(format!("no thread can attach the program: {error}"))),
        }
    }

    /// Attaches the program unless it still stands there.
    fn stand_anew(&self, device: u32) -> Result<bool> {
        let _one = self.attaching();
        let footing = self
            .book()
            .devices
            .get(&device)
            .map(|footing| Arc::clone(&footing.links));
        if let Some(links) = footing {
            if links.iter().all(DeviceLink::stands) {
                if let Some(footing) = self.book().devices.get_mut(&device) {
                    footing.seen_at = Instant::now();
                }
                return Ok(true);
            }
            let gone = self.book().devices.remove(&device);
            drop((links, gone));
        }
        self.attach(device)
    }

    /// Another thread is busy with a device.
    #[cfg(test)]
    pub(in super::super) fn is_asking(&self) -> bool {
        let book = self.book();
        let mut approaches = book.approaches.values();
        approaches.any(|approach| matches!(approach, Approach::UnderWay))
    }

    /// As if it had been long ago that the program was seen to stand.
    #[cfg(test)]
    pub(in super::super) fn doubt_all(&self) {
        for footing in self.book().devices.values_mut() {
            footing.seen_at -= SEEN_FOR;
        }
    }
}
