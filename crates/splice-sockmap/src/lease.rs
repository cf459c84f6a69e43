//! What outlives its owner without harm: pinned programs and maps, with a heartbeat.
//!
//! ```text
//!          take                        release
//! nothing ──────▶ held (beat) ──────────────────────────▶ nothing
//!                   │ killed, dropped, or too late            ▲
//!                   ▼                                         │ the next take
//!                 lapsed: every message is passed ────────────┘
//! ```

use std::fs;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use splice_base::error::{Error, ErrorKind, Result};

use crate::heartbeat::{Heartbeat, SET};
use crate::loaded::{Loaded, PINNED};
use crate::pins::{Lock, Names, Pins, leave};

/// The directory of a lease has directories of sets only.
const NO_NAMES: Names = Names {
    kept: &[],
    attached: &[],
};

/// How long what an earlier owner has left may take to leave when the next one takes the lease.
const LEAVE_MOST: Duration = Duration::from_secs(1);

/// The right to redirect what sockets of other processes send and receive, for as long as its owner lives.
///
/// What is loaded [with a lease](crate::Redirections::leased) is pinned, so the sockets keep it if their owner dies. Without a
/// [heartbeat](Self::beat) the lease lapses, for good: every message goes where it would go without the redirects. The
/// next [`take`](Self::take) clears what has been left.
#[derive(Debug)]
pub struct Lease {
    pins: Pins,
    _lock: Lock,
    heartbeat: Arc<Heartbeat>,
    left_behind: usize,
}

impl Lease {
    /// Takes the lease of a directory below a BPF file system, which it makes, and clears what an earlier owner has left
    /// there. A heartbeat that is older than `stale_after` is that of a dead owner. [Beat](Self::beat) some ten times
    /// as often.
    ///
    /// # Errors
    /// - [`ErrorKind::System`] if another process has it, the directory is in no BPF file system, or what is pinned there is
    ///   of another version.
    /// - [`ErrorKind::BpfRefused`] without the rights.
    pub fn take(directory: impl AsRef<Path>, stale_after: Duration) -> Result<Self> {
        let directory = directory.as_ref();
        let pins = Pins::at(directory, NO_NAMES);
        let lock = pins.take()?.ok_or_else(|| {
            Error::new(
                ErrorKind::System,
                format!(
                    "another process has the lease of {}: end it, or choose another directory",
                    directory.display()
                ),
            )
        })?;
        let (left_behind, next) = clear(directory, LEAVE_MOST)?;
        let heartbeat = Heartbeat::begin(pins.clone(), next, stale_after)?;
        Ok(Self {
            pins,
            _lock: lock,
            heartbeat: Arc::new(heartbeat),
            left_behind,
        })
    }

    /// Says that the owner lives. Whether the lease still holds: one that has lapsed stays so, and another has to be taken.
    pub fn beat(&self) -> bool {
        let holds = !self.heartbeat.has_lapsed();
        if holds {
            self.heartbeat.beat();
        }
        holds
    }

    /// How many sets of maps of earlier owners are still there. Their sources receive by a program of that time, which
    /// passes everything; a source that is removed in full flow would lose bytes. They go once those are closed, or what
    /// was redirected has been read.
    pub fn left_behind(&self) -> usize {
        self.left_behind
    }

    /// Ends the lease: everything that can leave without a loss leaves, and the pins go.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if something has not left after `most`: sources that receive and are open, or bytes that nobody has
    /// read. Its pins stay for the next [`take`](Self::take), and it passes every message.
    pub fn release(self, most: Duration) -> Result<()> {
        self.heartbeat.end();
        match clear(self.pins.directory(), most)? {
            (0, _) => self.pins.remove(),
            (left, _) => Err(Error::new(
                ErrorKind::System,
                format!(
                    "{left} sets of maps in {} have sources that are open, or bytes that nobody has read: they pass every \
                     message, and the next lease clears them",
                    self.pins.directory().display()
                ),
            )),
        }
    }

    pub(crate) fn heartbeat(&self) -> &Arc<Heartbeat> {
        &self.heartbeat
    }
}

/// Clears what can leave. How many sets are left, and the first number that none has.
fn clear(directory: &Path, most: Duration) -> Result<(usize, u32)> {
    let mut next = 0;
    let left = leave(most, || {
        let mut left = 0;
        next = 0;
        for (number, path) in sets(directory)? {
            let pins = Pins::at(&path, PINNED);
            if Loaded::leave_all(&pins)? {
                pins.remove()?;
            } else {
                left += 1;
                next = next.max(number.saturating_add(1));
            }
        }
        Ok(left)
    })?;
    Ok((left, next))
}

fn sets(directory: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let entries = match fs::read_dir(directory) {
        // Somebody has removed it under its owner.
        Err(error) if error.kind() == Io::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| {
            Error::system(format!("cannot read {}", directory.display()), error)
        })?,
    };
    let directories = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|of| of.is_dir()));
    let sets = directories.filter_map(|entry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix(SET)?.parse().ok()?;
        Some((number, entry.path()))
    });
    Ok(sets.collect())
}
