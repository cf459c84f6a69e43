//! What `trace` and `scrape` have in common: ping-pong on one of many connections of a relay, beside something that is
//! there in every other round.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::record::{About, Record};
use crate::output::Output;
use crate::relay::{Relay, Start};
use crate::results::Workload;
use crate::site::Site;

/// A tenth of each measurement does not count.
pub(super) const WARM_UP_OF: u32 = 10;

/// Descriptors of the relay, or of this program, beside two for each connection.
pub(super) const OTHER_FILES: u64 = 200;

/// A relay with an engine and an option of its own.
pub(super) fn start(
    site: &Site,
    spliced: &Path,
    engine: &str,
    option: [&OsStr; 2],
) -> Result<Relay> {
    let address = Site::relay(0);
    let mut command = site.lab.relay().command(&spliced.to_string_lossy());
    command
        .args(["relay", &address.to_string(), &Site::server().to_string()])
        .args(["--engine", engine, "--threads", "1"])
        .args(option);
    match Relay::start(site, "spliced", command, address, &[])? {
        Start::Running(relay) => Ok(relay),
        Start::Refused(why) => bail!("spliced says: {why}"),
    }
}

/// What was measured, and of what.
pub(super) struct Measured<'a> {
    pub(super) site: &'a Site,
    pub(super) title: &'a str,
    pub(super) cpu: usize,
    pub(super) rounds: u32,
    pub(super) spliced: &'a Path,
    pub(super) workload: Workload,
    pub(super) is_sound: bool,
}

impl Measured<'_> {
    /// Writes the results.
    pub(super) fn finish(self, record: Record, output: Option<&Output>) -> Result<ExitCode> {
        let about = About {
            site: self.site,
            title: self.title,
            cpu: self.cpu,
            rounds: self.rounds,
            warm_up: "a tenth of each measurement",
            spliced: Some(self.spliced),
            contestants: Vec::new(),
            absent: Vec::new(),
            notes: Vec::new(),
        };
        record.finish(output, about, vec![self.workload], self.is_sound)
    }
}
