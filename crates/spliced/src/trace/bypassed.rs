//! A bypass for the connection of a trial, as 'spliced bypass' has one.
//!
//! It covers a control group of its own, in which nobody is but two threads of the trial. Its pins are in a file system that
//! only the bypass's thread sees, so they go with the process. A kill leaves the empty control group.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use splice::bypass::{Bypass, Options};

use crate::bypass::OwnGroup;

/// Where the file system of BPF is mounted, for the thread alone.
const MOUNTED: &str = "/sys/fs/bpf";

/// What the control group of a trial is called, before the number of the process.
const GROUP: &str = "spliced-trace-";

/// A running bypass, until this is dropped.
#[derive(Debug)]
pub(super) struct Bypassed {
    group: Arc<OwnGroup>,
    redirected: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bypassed {
    /// # Errors
    /// Without a right, or if the kernel lacks something.
    pub(super) fn start() -> Result<Self> {
        let mut own = Self {
            group: Arc::new(OwnGroup::of_threads(GROUP)?),
            redirected: Arc::default(),
            is_over: Arc::default(),
            thread: None,
        };
        let options = Options {
            pins: Path::new(MOUNTED).join("trace"),
            // The trial shows the way. What the filters of this host say is another question, and nobody asks FIONREAD.
            bypass_firewall: true,
            despite_fionread: true,
            ..Options::of(vec![own.group.path().to_owned()])
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
    pub(super) fn group(&self) -> &Arc<OwnGroup> {
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
