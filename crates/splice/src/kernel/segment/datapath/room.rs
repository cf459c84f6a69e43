//! Room for a datapath: its descriptors must leave some for the connections that it is for.

use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use splice_base::descriptors;
use splice_base::error::{Error, ErrorKind, Result};

/// What the datapath of a network namespace keeps open (47 on Linux 6.18), its first devices (two each), and what libbpf
/// needs while it loads the programs.
const OF_DATAPATH: u64 = 60;

/// What is left beside it: two for each connection, and what else the program opens.
const LEFT: u64 = 32;

/// The limit that would have been enough when it was first too low: what is told does not change with the connections.
static ENOUGH: OnceLock<u64> = OnceLock::new();

/// Nobody is served whose connection gets no descriptor: then it is better to copy.
///
/// # Errors
/// If there are too few. It is the same one for as long as the limit stays: it is told once.
pub(super) fn require() -> Result<()> {
    let limit = getrlimit(Resource::Nofile).current;
    match limit.zip(descriptors::free()) {
        Some((limit, free)) if free < OF_DATAPATH + LEFT => Err(too_few(limit, free)),
        _ => Ok(()),
    }
}

fn too_few(limit: u64, free: u64) -> Error {
    let why = format!(
        "of the {limit} file descriptors that the process may have (RLIMIT_NOFILE), fewer than {} are free: {OF_DATAPATH} for the \
         program and {LEFT} for connections",
        OF_DATAPATH + LEFT
    );
    let enough = ENOUGH.get_or_init(|| limit.saturating_add(OF_DATAPATH + LEFT - free));
    // It may be over when connections have ended.
    Error::new(ErrorKind::BpfRefused, why)
        .with_source(Errno::MFILE)
        .with_remedy(format!(
            "raise RLIMIT_NOFILE to {enough} (ulimit -n, or LimitNOFILE= of its service)"
        ))
}
