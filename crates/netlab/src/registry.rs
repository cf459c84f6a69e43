//! Everything that this process creates outside of itself, so that a signal can remove it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::{env, io, process, thread};

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::ip::ip;
use crate::own_group;

/// The prefix of every name, so that [`sweep`] removes nothing that belongs to others.
const PREFIX: &str = "spl";

/// Where iproute2 keeps the names of network namespaces (`NETNS_RUN_DIR`).
pub(crate) const NAMESPACES: &str = "/run/netns";

/// Something that outlives the process unless it is removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Leftover {
    /// A network namespace, by its name.
    Namespace(String),
    /// A directory with all that is in it, and a file system that may be mounted on it.
    Directory(PathBuf),
    /// A control group, by its directory.
    ControlGroup(PathBuf),
}

impl Leftover {
    fn remove(&self) -> Result<()> {
        match self {
            Self::Namespace(name) => ip(&["netns", "delete", name]),
            Self::Directory(path) => {
                // EINVAL if nothing is mounted there.
                let _ = unmount(path, UnmountFlags::DETACH);
                fs::remove_dir_all(path)
                    .with_context(|| format!("cannot remove the directory {}", path.display()))
            }
            Self::ControlGroup(path) => remove_group(path)
                .with_context(|| format!("cannot remove the control group {}", path.display())),
        }
    }
}

/// Removes a control group and those in it, which a process may have left that was killed. The files belong to the kernel
/// and need not be removed.
fn remove_group(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_group(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

static REGISTERED: Mutex<BTreeSet<Leftover>> = Mutex::new(BTreeSet::new());
static STARTED: Once = Once::new();
static COUNTER: AtomicU32 = AtomicU32::new(0);
/// Whether the program handles the next signal.
static GRACEFUL: AtomicBool = AtomicBool::new(false);
/// The signal that the program handles; 0 for none.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

/// From now on the first SIGINT, SIGTERM or SIGHUP does not end the process: [`interrupted`] returns it, so
/// that the program can save its results and end by itself. The second signal ends the process.
pub fn end_gracefully() -> Result<()> {
    start()?;
    GRACEFUL.store(true, Ordering::Release);
    Ok(())
}

/// The signal that arrived after [`end_gracefully`], if any.
pub fn interrupted() -> Option<i32> {
    Some(INTERRUPTED.load(Ordering::Acquire)).filter(|&signal| signal != 0)
}

fn registered() -> MutexGuard<'static, BTreeSet<Leftover>> {
    // A panic cannot leave the set half changed.
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

/// Creates `leftover` with `make`. The set stays locked meanwhile: a signal waits until `leftover` exists
/// and then removes it, and nothing is created after the signal.
pub(crate) fn create(leftover: Leftover, make: impl FnOnce() -> Result<()>) -> Result<()> {
    start()?;
    let mut registered = registered();
    registered.insert(leftover.clone());
    let made = make();
    if made.is_err() {
        registered.remove(&leftover);
        // A part of it may exist. Removing the rest fails, which does not matter.
        let _ = leftover.remove();
    }
    made
}

/// Removes what [`create`] made.
pub(crate) fn remove(leftover: &Leftover) {
    if registered().remove(leftover)
        && let Err(error) = leftover.remove()
    {
        // Drop cannot return an error.
        eprintln!("netlab: {error:#}");
    }
}

/// Removes what dead processes have left behind, for example after SIGKILL. Each name contains the pid of
/// its process.
pub fn sweep() {
    let mut places = vec![
        (
            PathBuf::from(NAMESPACES),
            namespace_at as fn(&Path, String) -> Leftover,
        ),
        (env::temp_dir(), directory_at),
    ];
    // Without control groups there is none to remove.
    places.extend(
        own_group::directory()
            .ok()
            .map(|parent| (parent, control_group_at as _)),
    );
    for (directory, wrap) in places {
        // Without the directory there is nothing to remove.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if pid_in(&name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                // This fails if another process sweeps at the same time.
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
                // Locked until the process ends, so that nothing new is created.
                let registered = registered();
                for leftover in registered.iter() {
                    let _ = leftover.remove();
                }
                // Ends the process by the signal's default action, which a shell recognises.
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
    fn a_name_contains_its_pid() {
        assert_eq!(pid_in(&unique_name("relay")), Some(std::process::id()));
    }

    #[test]
    fn a_foreign_name_has_no_pid() {
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
