//! Links that were dropped before their sources were closed.
//!
//! A source that is removed in full flow loses bytes. So it stays in its map until it is closed, when the kernel removes
//! it. What is left then, its target, its place and perhaps its maps, goes when somebody needs the room.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use splice_bpf::wait_for_programs;

use crate::loaded::{Loaded, Place};

/// How many there may be before all are looked at. It keeps a few sets of maps, of some ten descriptors each.
const FEW: usize = 8;

static ORPHANS: Mutex<Orphans> = Mutex::new(Orphans {
    places: Vec::new(),
    look_at: FEW,
});

struct Orphans {
    places: Vec<(Arc<Loaded>, Place)>,
    /// How many there are when all are looked at.
    look_at: usize,
}

/// Leaves a source in its maps until it is closed.
pub(crate) fn add(loaded: Arc<Loaded>, place: Place) {
    lock().places.push((loaded, place));
}

/// Removes the closed ones if there are so many that it is worth a look at each.
pub(crate) fn clear_if_many() {
    let mut orphans = lock();
    if orphans.places.len() < orphans.look_at {
        return;
    }
    orphans.clear(|_| true);
    // Each look at all of them is paid by as many links that were dropped since the last one.
    orphans.look_at = FEW.max(2 * orphans.places.len());
}

/// Removes the closed ones of these maps, and of those beside them.
pub(crate) fn clear_of(loaded: &Loaded) {
    lock().clear(|of| of.is_beside(loaded));
}

/// How many there are of these maps.
#[cfg(test)]
pub(crate) fn count_of(loaded: &Arc<Loaded>) -> usize {
    let is_of = |(of, _): &&(Arc<Loaded>, Place)| Arc::ptr_eq(of, loaded);
    lock().places.iter().filter(is_of).count()
}

impl Orphans {
    fn clear(&mut self, is_meant: impl Fn(&Arc<Loaded>) -> bool) {
        let is_closed =
            |(loaded, place): &(Arc<Loaded>, Place)| is_meant(loaded) && !loaded.has_source(*place);
        let (closed, open) = self.places.drain(..).partition::<Vec<_>, _>(is_closed);
        self.places = open;
        // A verdict that began before the source was closed may still hand something to the target.
        let is_over = closed.is_empty() || wait_for_programs().is_ok();
        for (loaded, place) in closed {
            if is_over && loaded.is_drained(place) {
                loaded.remove(place);
            } else {
                self.places.push((loaded, place));
            }
        }
    }
}

fn lock() -> MutexGuard<'static, Orphans> {
    // A panic within a look loses places that could be given back, and nothing else.
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}
