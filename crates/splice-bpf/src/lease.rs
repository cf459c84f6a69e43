//! The lease of an owner: a heartbeat in a map, by which the programs that it has pinned know that it lives.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::now_ns;
use crate::types::Lease;

/// How far the programs' clock may be behind: a tick, of at most 10 ms.
const COARSE: Duration = Duration::from_millis(20);

impl Lease {
    /// Begins it, with the first heartbeat. One that is older than `stale_after` is that of a dead owner. `layout` is that of
    /// what the owner pins.
    pub fn begin(&self, stale_after: Duration, layout: u32) {
        self.layout.store(layout.into(), Ordering::Relaxed);
        self.beat();
        // Last: without it there is no lease to lapse.
        let stale_ns = stale_after.as_nanos() as u64;
        self.stale_ns.store(stale_ns, Ordering::Release);
    }

    /// Whether what is pinned with it has a layout.
    pub fn is_of(&self, layout: u32) -> bool {
        self.layout.load(Ordering::Relaxed) == u64::from(layout)
    }

    /// Says that the owner lives.
    pub fn beat(&self) {
        self.heartbeat_ns.store(now_ns(), Ordering::Release);
    }

    /// Ends it at once, and for good.
    pub fn end(&self) {
        self.lapsed.store(1, Ordering::Release);
    }

    /// Whether the programs take its owner for alive. Their clock may be a tick behind.
    pub fn is_held(&self) -> bool {
        let heartbeat_ns = self.heartbeat_ns.load(Ordering::Acquire);
        let stale_ns = self.stale_ns.load(Ordering::Relaxed);
        self.lapsed.load(Ordering::Acquire) == 0 && is_fresh(heartbeat_ns, stale_ns)
    }
}

fn is_fresh(heartbeat_ns: u64, stale_ns: u64) -> bool {
    now_ns().saturating_sub(heartbeat_ns) <= stale_ns.saturating_add(COARSE.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_heartbeat_is_fresh_until_it_is_stale_and_a_tick_late() {
        let now = now_ns();
        assert!(is_fresh(now, HOUR.as_nanos() as u64));
        let later = now + HOUR.as_nanos() as u64;
        assert!(is_fresh(later, 0), "it may have been written since");
        let late = COARSE.as_nanos() as u64 + 1;
        assert!(!is_fresh(now.saturating_sub(late), 0));
    }

    #[test]
    fn a_lease_is_held_until_it_is_ended_or_stale() {
        let lease = Lease::default();
        lease.begin(HOUR, 7);
        assert!(lease.is_held() && lease.is_of(7) && !lease.is_of(8));
        lease.end();
        lease.beat();
        assert!(!lease.is_held(), "for good");
        let lease = Lease::default();
        lease.begin(HOUR, 7);
        lease.heartbeat_ns.store(0, Ordering::Relaxed);
        lease.stale_ns.store(0, Ordering::Relaxed);
        assert!(!lease.is_held());
    }
}
