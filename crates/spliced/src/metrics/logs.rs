//! The logs: what they have lost.

use std::iter;

use super::family::Family;
use crate::access_log::losses;

/// `of_stderr` is what the log on standard error has lost. An access log has its series from its start to the end of the
/// process, if it has lost anything: lines of connections that came before a reload may be lost after it.
pub(super) fn family(of_stderr: u64) -> Family {
    let family = Family::counter(
        "spliced_log_lines_dropped",
        "Lines that a log has lost because nobody read it or it could not be written.",
    );
    let all = iter::once(("stderr".to_owned(), of_stderr)).chain(losses());
    all.fold(family, |family, (log, count)| {
        family.with(vec![("log", log)], count)
    })
}
