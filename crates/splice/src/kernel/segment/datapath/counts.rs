//! How many segments each reason of `bpf/lib/reasons.h` has counted, by its name.

use std::sync::{Mutex, PoisonError};

use splice_base::error::Result;
use splice_bpf::statistics;
use splice_bpf::types::segment_reason::NAMES;

use super::{DATAPATHS, Datapath};

/// The map with the counters. The kernel keeps 15 characters of a name.
pub(super) const MAP: &str = "segment_counts";

/// What the datapaths of this process have counted that are gone.
static GONE: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// In all network namespaces, since the programs were loaded, by whatever process. Empty if no program is loaded.
///
/// # Errors
/// If the process may not list the BPF maps of this machine.
pub(crate) fn of_all() -> Result<Vec<(&'static str, u64)>> {
    let mut sums = Vec::new();
    for counts in statistics::counters(MAP, NAMES.len())?.values() {
        add(&mut sums, counts);
    }
    Ok(NAMES.into_iter().zip(sums).collect())
}

/// In this process alone, those of its datapaths that are gone included. Empty if it has had none.
///
/// # Errors
/// The error of bpf(2).
pub(crate) fn of_process() -> Result<Vec<(&'static str, u64)>> {
    // Before those that are gone, to which each adds its own when it goes.
    let living = DATAPATHS.all();
    let mut sums = GONE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for datapath in &living {
        add(&mut sums, &datapath.counts.counters()?);
    }
    Ok(NAMES.into_iter().zip(sums).collect())
}

fn add(sums: &mut Vec<u64>, counts: &[u64]) {
    sums.resize(counts.len(), 0);
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += count;
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        if let Ok(counts) = self.counts.counters() {
            let mut gone = GONE.lock().unwrap_or_else(PoisonError::into_inner);
            add(&mut gone, &counts);
        }
    }
}
