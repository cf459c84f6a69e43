//! The logs: what they have lost, and whether they are written.

use super::family::Family;
use crate::log_state::{Told, all};

/// A log has its series from its start to the end of the process, if it has lost anything: lines of connections that came
/// before a reload may be lost after it.
pub(super) fn families() -> [Family; 3] {
    let logs = all();
    let each = |family: Family, value: fn(&Told) -> u64| {
        logs.iter().fold(family, |family, log| {
            family.with(vec![("log", log.name.clone())], value(log))
        })
    };
    [
        each(
            Family::counter(
                "spliced_log_lines_dropped",
                "Lines that a log has lost because nobody read it or it could not be written.",
            ),
            |log| log.lost,
        ),
        each(
            Family::gauge(
                "spliced_log_lines_waiting",
                "Lines that wait until a log can be written.",
            ),
            |log| log.waiting,
        ),
        each(
            Family::gauge(
                "spliced_log_failing",
                "1 if the last attempt to write a log has failed.",
            ),
            |log| u64::from(log.failure.is_some()),
        ),
    ]
}
