//! What exists outside of this process because of it, so that a signal can take it away.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::{env, process, thread};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::ip::ip;
use crate::own_group;

/// First part of every name, so that [`sweep`] never mistakes what belongs to somebody else.
const PREFIX: &str = "spl";

/// Where iproute2 keeps the names of network namespaces (`NETNS_RUN_DIR`).
pub(crate) const NAMESPACES: &str = "/run/netns";

/// Something that outlives the process unless it is removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Leftover {
    /// A network namespace, by its name.
    Namespace(String),
    /// A directory with all that is in it.
    Directory(PathBuf),
    /// A control group, by its directory.
    ControlGroup(PathBuf),
}

impl Leftover {
    fn remove(&self) -> Result<()> {
        match self {
            Self::Namespace(name) => ip(&["netns", "delete", name]),
            Self::Directory(path) => fs::remove_dir_all(path)
                .with_context(|| format!("cannot remove the directory {}", path.display())),
            // Its files are the kernel's.
            Self::ControlGroup(path) => fs::remove_dir(path)
                .with_context(|| format!("cannot remove the control group {}", path.display())),
        }
    }
}

static REGISTERED: Mutex<BTreeSet<Leftover>> = Mutex::new(BTreeSet::new());
static STARTED: Once = Once::new();
static COUNTER: AtomicU32 = AtomicU32::new(0);
/// Whether the next signal is the program's to handle.
static GRACEFUL: AtomicBool = AtomicBool::new(false);
/// The signal that was left to the program; 0 is no signal.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

/// From now on the first SIGINT, SIGTERM or SIGHUP does not end the process: it only shows in
/// [`interrupted`], so that the program can write down what it has and end by itself. The second one
/// ends it as ever.
pub fn end_gracefully() -> Result<()> {
    start()?;
    GRACEFUL.store(true, Ordering::Release);
    Ok(())
}

/// The signal that came after [`end_gracefully`], if one did.
pub fn interrupted() -> Option<i32> {
    Some(INTERRUPTED.load(Ordering::Acquire)).filter(|&signal| signal != 0)
}

fn registered() -> MutexGuard<'static, BTreeSet<Leftover>> {
    // A panic while the set was locked leaves a set, not half of one.
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name that no other process and no other call uses: prefix, pid, counter, role.
pub(crate) fn unique_name(role: &str) -> String {
    let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}-{}-{counter}-{role}", process::id())
}

/// The pid in a name made by [`unique_name`].
fn pid_in(name: &str) -> Option<u32> {
    let mut parts = name.splitn(4, '-');
    let (prefix, pid, counter, _role) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    counter.parse::<u32>().ok()?;
    pid.parse().ok().filter(|_| prefix == PREFIX)
}

/// Makes `leftover` with `make`. The set stays locked meanwhile: a signal that arrives in the middle
/// waits until the thing exists and then removes it, and nothing is made after the signal.
pub(crate) fn create(leftover: Leftover, make: impl FnOnce() -> Result<()>) -> Result<()> {
    start()?;
    let mut registered = registered();
    registered.insert(leftover.clone());
    let made = make();
    if made.is_err() {
        registered.remove(&leftover);
        // Some of it may exist; what does not cannot be removed, which is no news here.
        let _ = leftover.remove();
    }
    made
}

/// Removes what [`create`] made.
pub(crate) fn remove(leftover: &Leftover) {
    if registered().remove(leftover)
        && let Err(error) = leftover.remove()
    {
        // A guard's drop has nobody to return an error to.
        eprintln!("netlab: {error:#}");
    }
}

/// Removes what processes that no longer run have left behind. A process that was killed outright
/// had no chance to; the name of each thing carries its pid.
pub fn sweep() {
    let mut places = vec![
        (
            PathBuf::from(NAMESPACES),
            namespace_at as fn(&Path, String) -> Leftover,
        ),
        (env::temp_dir(), directory_at),
    ];
    // Where control groups cannot be made, none were left.
    places.extend(
        own_group::directory()
            .ok()
            .map(|parent| (parent, control_group_at as _)),
    );
    for (directory, wrap) in places {
        // No such directory means that nothing was left there.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if pid_in(&name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                // Another process may be sweeping too; the first one wins.
                let _ = wrap(&directory, name).remove();
            }
        }
    }
}

fn namespace_at(_directory: &Path, name: String) -> Leftover {
    Leftover::Namespace(name)
}

fn directory_at(directory: &Path, name: String) -> Leftover {
    Leftover::Directory(directory.join(name))
}

fn control_group_at(directory: &Path, name: String) -> Leftover {
    Leftover::ControlGroup(directory.join(name))
}

/// Sweeps once and starts the thread that waits for a signal to end the process.
fn start() -> Result<()> {
    let mut outcome = Ok(());
    STARTED.call_once(|| {
        sweep();
        outcome = watch_signals();
    });
    outcome
}

fn watch_signals() -> Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for SIGINT and SIGTERM")?;
    thread::Builder::new()
        .name("netlab-signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if GRACEFUL.swap(false, Ordering::AcqRel) {
                    INTERRUPTED.store(signal, Ordering::Release);
                    continue;
                }
                // Held to the end: whoever wants to make something new waits here for ever.
                let registered = registered();
                for leftover in registered.iter() {
                    let _ = leftover.remove();
                }
                // Ends the process as if the signal had not been caught, so that a shell sees it.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        })
        .context("cannot start the thread that watches for signals")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{pid_in, unique_name};

    #[test]
    fn a_name_carries_its_pid() {
        assert_eq!(pid_in(&unique_name("relay")), Some(std::process::id()));
    }

    #[test]
    fn names_of_others_have_no_pid() {
        for name in [
            "spl",
            "spl-1",
            "spl-1-2",
            "spl-x-1-relay",
            "spliced-1-2-relay",
            "split-1-1-a",
        ] {
            assert_eq!(pid_in(name), None, "{name}");
        }
    }
}
