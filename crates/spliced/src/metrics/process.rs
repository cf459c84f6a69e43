//! The process: what it is, when it started, its descriptors, and its last reload.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::registry::Unit;
use rustix::process::{Resource, getrlimit};
use splice_base::descriptors;

use super::family::Family;

/// What a process knows of itself, whatever its main thread does.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) version: &'static str,
    /// The subcommand that it runs.
    pub(crate) command: &'static str,
    pub(crate) started: SystemTime,
    pub(crate) drains: bool,
    pub(crate) reloads: u64,
    pub(crate) failed_reloads: u64,
    /// When the configuration was read that is in effect.
    pub(crate) configured: SystemTime,
    pub(crate) last_reload_failed: bool,
}

pub(super) fn families(about: &About) -> Vec<Family> {
    let mut families = vec![
        Family::info(
            "spliced_build",
            "The version, and the subcommand that runs.",
        )
        .with(
            vec![
                ("version", about.version.into()),
                ("command", about.command.into()),
            ],
            true,
        ),
        Family::gauge(
            "process_start_time",
            "When the process started, since the beginning of 1970.",
        )
        .in_unit(Unit::Seconds)
        .with(vec![], seconds(about.started)),
        Family::gauge(
            "spliced_draining",
            "Whether a signal has asked the process to end (1), or not (0).",
        )
        .with(vec![], about.drains),
        Family::counter(
            "spliced_config_reloads",
            "Attempts to read the configuration again, by their result.",
        )
        .with(vec![("result", "success".into())], about.reloads)
        .with(vec![("result", "failure".into())], about.failed_reloads),
        Family::gauge(
            "spliced_config_last_reload_successful",
            "Whether the last reload, or the start, has succeeded (1), or not (0).",
        )
        .with(vec![], !about.last_reload_failed),
        Family::gauge(
            "spliced_config_last_reload_success_timestamp",
            "When the configuration was read that is in effect, since the beginning of 1970.",
        )
        .in_unit(Unit::Seconds)
        .with(vec![], seconds(about.configured)),
    ];
    if let Some(count) = descriptors::open_now() {
        families
            .push(Family::gauge("process_open_fds", "The open descriptors.").with(vec![], count));
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        families.push(
            Family::gauge(
                "process_max_fds",
                "The most descriptors that may be open (RLIMIT_NOFILE).",
            )
            .with(vec![], most),
        );
    }
    families
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
