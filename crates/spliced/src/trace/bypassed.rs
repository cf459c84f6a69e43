//! A bypass for the connection of a trial, as 'spliced bypass' has one.
//!
//! It covers a control group of its own, in which nobody is but two threads of the trial. Its pins are in a file system that
//! only the bypass's thread sees, so they go with the process. A kill leaves the empty control group.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::gettid;
use splice::bypass::{Bypass, Options};

use crate::bypass::control_group;

/// Where the file system of BPF is mounted, for the thread alone.
const MOUNTED: &str = "/sys/fs/bpf";

/// A group whose last thread has just ended may still count as busy.
const LEAVE_AGAIN: Duration = Duration::from_millis(2);
const LEAVE_TRIES: u32 = 500;

/// What the control group of a trial is called, before the number of the process.
const NAME: &str = "spliced-trace-";

/// Removes those of trials that were ended by a signal. One with a thread cannot be removed.
fn clear(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(NAME) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A running bypass, until this is dropped.
#[derive(Debug)]
pub(super) struct Bypassed {
    group: Group,
    redirected: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A control group for threads of this process.
#[derive(Clone, Debug)]
pub(super) struct Group(PathBuf);

impl Group {
    fn new() -> Result<Self> {
        let groups =
            fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let mounts = control_group::mounted();
        let (Some(own), Some(root)) = (own, mounts.first()) else {
            return Err(anyhow!(
                "there are no control groups of version 2 (mount -t cgroup2), and the bypass covers those"
            ));
        };
        let before = root.join(own);
        clear(&before);
        let path = before.join(format!("{NAME}{}", std::process::id()));
        let made =
            fs::create_dir(&path).and_then(|()| fs::write(path.join("cgroup.type"), "threaded"));
        made.with_context(|| format!("cannot make the control group {}", path.display()))?;
        Ok(Self(path))
    }

    /// Has this thread be in it, and what it starts.
    pub(super) fn enter(&self) -> Result<()> {
        let thread = gettid().as_raw_nonzero().to_string();
        let entered = fs::write(self.0.join("cgroup.threads"), thread);
        entered.with_context(|| format!("cannot enter the control group {}", self.0.display()))
    }

    fn remove(&self) {
        for _ in 0..LEAVE_TRIES {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(LEAVE_AGAIN);
        }
    }
}

impl Bypassed {
    /// # Errors
    /// Without a right, or if the kernel lacks something.
    pub(super) fn start() -> Result<Self> {
        let mut own = Self {
            group: Group::new()?,
            redirected: Arc::default(),
            is_over: Arc::default(),
            thread: None,
        };
        let options = Options {
            pins: Path::new(MOUNTED).join("trace"),
            // The trial shows the way. What the filters of this host say is another question, and nobody asks FIONREAD.
            bypass_firewall: true,
            despite_fionread: true,
            ..Options::of(vec![own.group.0.clone()])
        };
        let (redirected, is_over) = (Arc::clone(&own.redirected), Arc::clone(&own.is_over));
        let (ready, started) = channel();
        let work = move || {
            let begun = private_pins().and_then(|()| Ok(Bypass::start(&options)?));
            let mut bypass = match begun {
                Ok(bypass) => bypass,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            while bypass.turn() && !is_over.load(Ordering::Relaxed) {
                let messages = bypass.status().sum().redirected_messages;
                redirected.store(messages, Ordering::Relaxed);
                bypass.wait();
            }
            // Its sockets are closed by now. What is pinned goes with the thread in any case.
            let _ = bypass.stop(Duration::ZERO);
        };
        let named = thread::Builder::new().name("bypass".into()).spawn(work);
        own.thread = Some(named.context("cannot start the thread bypass")?);
        started.recv().context("the bypass's thread has ended")??;
        Ok(own)
    }

    /// The group whose connections it covers.
    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// How many messages it has handed over.
    pub(super) fn redirected(&self) -> u64 {
        self.redirected.load(Ordering::Relaxed)
    }
}

impl Drop for Bypassed {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.group.remove();
    }
}

/// Gives this thread a file system for pins that nobody else sees.
fn private_pins() -> Result<()> {
    const CANNOT: &str =
        "cannot mount a file system for pins; run it as root, or give it CAP_SYS_ADMIN";
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).context(CANNOT)?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).context(CANNOT)?;
    mount("spliced-trace", MOUNTED, "bpf", MountFlags::empty(), None).context(CANNOT)
}
