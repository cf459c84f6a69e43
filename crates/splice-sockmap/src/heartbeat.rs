//! The heartbeat of an owner, by which the programs that it has pinned know that it lives.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use splice_base::error::Result;
use splice_bpf::types::{Lease, redirections_version};
use splice_bpf::{Map, SharedArray};

use crate::pins::{Names, Pins};

/// The word that an owner writes, and where its sets of programs and maps are pinned.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    map: Map,
    word: SharedArray<Lease>,
    pins: Pins,
    /// The number of the next set.
    next: AtomicU32,
}

impl Heartbeat {
    /// Begins one. `next` is the number of its first set.
    pub(crate) fn begin(pins: Pins, next: u32, stale_after: Duration) -> Result<Self> {
        let map = Map::create_shared::<Lease>("lease")?;
        let word = map.share_values()?;
        let begun = Self {
            map,
            word,
            pins,
            next: next.into(),
        };
        begun.of().begin(stale_after, redirections_version::LAYOUT);
        Ok(begun)
    }

    pub(crate) fn beat(&self) {
        self.of().beat();
    }

    /// Ends it at once.
    pub(crate) fn end(&self) {
        self.of().end();
    }

    pub(crate) fn has_lapsed(&self) -> bool {
        !self.of().is_held()
    }

    /// The map that the programs look at.
    pub(crate) fn map(&self) -> &Map {
        &self.map
    }

    /// Where another set of pins is to lie.
    pub(crate) fn next_set(&self, names: Names) -> Result<Pins> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let pins = Pins::at(&self.pins.path(&format!("{SET}{number}")), names);
        pins.create()?;
        Ok(pins)
    }

    fn of(&self) -> &Lease {
        self.word.at(0)
    }
}

/// The word of a dead owner. `None` if what it has pinned is of another version.
pub(crate) fn left_by(map: &Map) -> Result<Option<SharedArray<Lease>>> {
    if !map.is_of::<u32, Lease>() {
        return Ok(None);
    }
    let word: SharedArray<Lease> = map.share_values()?;
    let is_of_this = word.at(0).is_of(redirections_version::LAYOUT);
    Ok(is_of_this.then_some(word))
}

/// What the names of sets begin with; a number follows.
pub(crate) const SET: &str = "set-";
