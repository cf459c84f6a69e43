//! What the programs of the engine segment have counted.

use splice::doctor::segment_counts_of_process;

use super::family::Family;

/// Without series as long as the process has not loaded them.
pub(super) fn family() -> Family {
    let family = Family::counter(
        "spliced_segments",
        "Segments that the programs of the engine segment have looked at, by what became of them.",
    );
    // A scrape without them is better than none.
    let counts = segment_counts_of_process().unwrap_or_default();
    counts.into_iter().fold(family, |family, (name, count)| {
        family.with(vec![("result", name.to_owned())], count)
    })
}
