//! The heartbeat of an owner, by which the programs that it has pinned know that it lives.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use splice_base::error::Result;
use splice_bpf::clock::now_ns;
use splice_bpf::types::Lease;
use splice_bpf::{Map, SharedArray};

use crate::pins::Pins;

/// How far the programs' clock may be behind: a tick, of at most 10 ms.
const COARSE: Duration = Duration::from_millis(20);

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
        begun.beat();
        // Last: without it there is no lease to lapse.
        let stale_ns = stale_after.as_nanos() as u64;
        begun.of().stale_ns.store(stale_ns, Ordering::Release);
        Ok(begun)
    }

    pub(crate) fn beat(&self) {
        self.of().heartbeat_ns.store(now_ns(), Ordering::Release);
    }

    /// Ends it at once.
    pub(crate) fn end(&self) {
        self.of().lapsed.store(1, Ordering::Release);
    }

    pub(crate) fn has_lapsed(&self) -> bool {
        let of = self.of();
        let stale_ns = of.stale_ns.load(Ordering::Relaxed);
        of.lapsed.load(Ordering::Acquire) != 0
            || !is_fresh(of.heartbeat_ns.load(Ordering::Acquire), stale_ns)
    }

    /// The map that the programs look at.
    pub(crate) fn map(&self) -> &Map {
        &self.map
    }

    /// Where another set is pinned.
    pub(crate) fn next_set(&self) -> Result<Pins> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let pins = set(&self.pins, number);
        pins.create()?;
        Ok(pins)
    }

    fn of(&self) -> &Lease {
        self.word.at(0)
    }
}

/// Ends the lease of a dead owner at once.
pub(crate) fn end(map: &Map) -> Result<()> {
    let word: SharedArray<Lease> = map.share_values()?;
    word.at(0).lapsed.store(1, Ordering::Release);
    Ok(())
}

/// What the names of sets begin with; a number follows.
pub(crate) const SET: &str = "set-";

pub(crate) fn set(pins: &Pins, number: u32) -> Pins {
    Pins::at(&pins.path(&format!("{SET}{number}")))
}

/// Whether the programs take the owner of a heartbeat for alive. Their clock may be a tick behind.
pub fn is_fresh(heartbeat_ns: u64, stale_ns: u64) -> bool {
    now_ns().saturating_sub(heartbeat_ns) <= stale_ns.saturating_add(COARSE.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_is_fresh_until_it_is_stale_and_a_tick_late() {
        let hour = Duration::from_secs(3600).as_nanos() as u64;
        let now = now_ns();
        assert!(is_fresh(now, hour));
        assert!(is_fresh(now + hour, 0), "it may have been written since");
        assert!(!is_fresh(
            now.saturating_sub(COARSE.as_nanos() as u64 + 1),
            0
        ));
    }
}
