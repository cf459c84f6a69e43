//! What a process counts, for Prometheus and others that read OpenMetrics.
//!
//! ```text
//! connections ──▶ tally            a few times in the life of a session
//!                   ▲
//!                   │ what was moved since the last time
//! Scrape ──go_on──▶ sessions       some at a time, on the thread of whoever asks
//!   │
//!   └─text──▶ families (a file a noun) ──▶ exposition
//! ```
//!
//! Nothing here reads a client or knows a socket: whoever serves the text is in `admin/`.

mod exposition;
mod family;
mod listeners;
mod logs;
mod process;
mod programs;
mod servers;
mod sessions;

use std::sync::Arc;

pub(crate) use self::exposition::CONTENT_TYPE;
pub(crate) use self::process::About;
use self::sessions::Look;
use crate::service::Process;

/// What is read at each scrape.
pub(crate) struct Metrics(Arc<Process>);

/// One reading of all metrics.
pub(crate) struct Scrape<'a> {
    process: &'a Process,
    look: Look,
}

impl Metrics {
    pub(crate) fn of_process(process: &Arc<Process>) -> Self {
        Self(Arc::clone(process))
    }

    pub(crate) fn scrape(&self) -> Scrape<'_> {
        Scrape {
            process: &self.0,
            look: Look::default(),
        }
    }
}

impl Scrape<'_> {
    /// Looks at some sessions. Returns whether there may be others.
    pub(crate) fn go_on(&mut self) -> bool {
        self.look.go_on(&self.process.sessions)
    }

    /// The text, once all sessions have been looked at.
    pub(crate) fn text(self, about: &About) -> String {
        let mut families = process::families(about);
        let services = self.process.services();
        families.extend(self.look.families(&self.process.tallies));
        families.extend(listeners::families(
            &services,
            &self.process.session_counts(),
        ));
        families.extend(servers::families(&self.process.backends.told()));
        families.extend(logs::families());
        families.push(programs::family());
        exposition::text(families)
    }
}
