//! The logs: what they have lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::family::Family;
use crate::service::Service;

/// `of_stderr` is what the log on standard error has lost.
pub(super) fn family(of_stderr: u64, services: &[Arc<Service>]) -> Family {
    let mut dropped = BTreeMap::from([("stderr".to_owned(), of_stderr)]);
    for service in services {
        let terms = service.terms();
        if let Some(log) = &terms.access_log {
            // Listeners may share it.
            dropped.insert(log.to_string(), log.dropped());
        }
    }
    let family = Family::counter(
        "spliced_log_lines_dropped",
        "Lines that a log has lost because nobody read it or it could not be written.",
    );
    dropped.into_iter().fold(family, |family, (log, count)| {
        family.with(vec![("log", log)], count)
    })
}
