//! A child process that does not outlive its guard.

use std::fs;
use std::path::Path;
use std::process::{self, Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// How often an ending is looked for; short against anything that a caller waits for.
const POLL_EVERY: Duration = Duration::from_millis(2);

/// A parent that dies before the child has asked for the signal never causes it, so the child looks
/// once more who its parent is. `$0` is the pid that it ought to be.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// A running child, killed and reaped on drop.
///
/// Commands made by [`Process::command`] or [`crate::Namespace::command`] are killed by the kernel as
/// well when the *thread* that spawned them ends (`PR_SET_PDEATHSIG`), so spawn from one that lives
/// as long as the child is wanted: the test's own thread, not a closure given to
/// [`crate::Namespace::enter`].
#[derive(Debug)]
pub struct Process {
    child: Child,
    what: String,
}

impl Process {
    /// A command that the kernel kills when the thread that spawned it ends. Every program in the
    /// chain replaces the one before it, so the child's pid is that of `program`.
    pub fn command(program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("setpriv");
        // What others' programs say is read, and some complain of a language that is not installed.
        command.env("LC_ALL", "C");
        command
            .args(["--pdeathsig", "KILL", "--", "sh", "-c", UNLESS_ORPHANED])
            .arg(process::id().to_string())
            .arg(program.as_ref());
        command
    }

    /// Starts `command`.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let what = format!("{command:?}");
        let child = command.spawn().with_context(|| {
            format!("cannot start {what}: is util-linux (setpriv, nsenter) installed?")
        })?;
        Ok(Self { child, what })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, or `None` while it runs.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("cannot wait for {}", self.what))
    }

    /// CPU time that its threads have had so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        let directory = format!("/proc/{}/task", self.id());
        let threads = fs::read_dir(&directory)
            .with_context(|| format!("cannot read {directory}: did {} end?", self.what))?;
        let mut nanoseconds = 0;
        for thread in threads.flatten() {
            let path = thread.path().join("schedstat");
            // A thread may have ended since.
            let text = fs::read_to_string(&path).unwrap_or_default();
            // First field: time on the CPU in ns (Documentation/scheduler/sched-stats.rst).
            let first = text.split_ascii_whitespace().next();
            nanoseconds += first
                .map_or(Ok(0), str::parse::<u64>)
                .with_context(|| format!("{} does not begin with a number", path.display()))?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // The child is reaped by `self` alone, so its pid is not yet anybody else's.
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("cannot signal {}", self.what))
    }

    /// Waits at most `patience` for it to end by itself; `None` when it did not.
    pub fn wait_at_most(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(POLL_EVERY);
        }
    }

    /// The child itself, for its pipes.
    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a child that has ended and been reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
