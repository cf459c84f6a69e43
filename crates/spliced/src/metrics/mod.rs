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
use self::family::Family;
pub(crate) use self::process::About;
use self::sessions::Look;
use crate::service::Process;

/// What is read at each scrape.
pub(crate) struct Metrics {
    source: Source,
}

enum Source {
    Process(Arc<Process>),
    /// A relay with one listener whose threads keep their sessions to themselves.
    Single {
        listener: String,
        counts: Box<dyn Fn() -> Counts + Send + Sync>,
    },
}

/// What such a relay counts of its sessions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Those that are open.
    pub(crate) open: u64,
    /// Those that may be.
    pub(crate) most: u64,
    /// All so far.
    pub(crate) accepted: u64,
    /// Those that have got to the target.
    pub(crate) joined: u64,
}

/// One reading of all metrics.
pub(crate) struct Scrape<'a> {
    metrics: &'a Metrics,
    look: Look,
}

impl Metrics {
    pub(crate) fn of_process(process: &Arc<Process>) -> Self {
        Self {
            source: Source::Process(Arc::clone(process)),
        }
    }

    /// Of a relay of datagrams.
    pub(crate) fn of_single(
        listener: String,
        counts: impl Fn() -> Counts + Send + Sync + 'static,
    ) -> Self {
        let counts = Box::new(counts);
        Self {
            source: Source::Single { listener, counts },
        }
    }

    /// Of a test.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        let counts = Box::new(Counts::default);
        Self {
            source: Source::Single {
                listener: String::new(),
                counts,
            },
        }
    }

    pub(crate) fn scrape(&self) -> Scrape<'_> {
        Scrape {
            metrics: self,
            look: Look::default(),
        }
    }
}

impl Scrape<'_> {
    /// Looks at some sessions. Returns whether there may be others.
    pub(crate) fn go_on(&mut self) -> bool {
        match &self.metrics.source {
            Source::Process(process) => self.look.go_on(&process.sessions),
            Source::Single { .. } => false,
        }
    }

    /// The text, once all sessions have been looked at.
    pub(crate) fn text(self, about: &About) -> String {
        let mut families = process::families(about);
        match &self.metrics.source {
            Source::Process(process) => {
                let services = process.services();
                families.extend(self.look.families(&process.tallies));
                families.extend(listeners::families(&services, &process.session_counts()));
                families.extend(servers::families(&process.backends.told()));
                families.extend(logs::families());
                families.push(programs::family());
            }
            Source::Single { listener, counts } => {
                families.extend(of_single(listener, counts()));
                families.extend(logs::families());
            }
        }
        exposition::text(families)
    }
}

fn of_single(listener: &str, counts: Counts) -> [Family; 3] {
    let labels = || vec![("listener", listener.to_owned())];
    [
        sessions::opened().with(labels(), counts.accepted),
        listeners::open().with(labels(), counts.open),
        listeners::most().with(labels(), counts.most),
    ]
}
