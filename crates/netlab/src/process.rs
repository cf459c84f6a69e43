//! A child process that does not outlive its guard.

use std::fs;
use std::path::Path;
use std::process::{self, Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// The interval at which to look for the end of a process; short against anything that a caller waits for.
const POLL_EVERY: Duration = Duration::from_millis(2);

/// If the parent dies before the child has requested the signal, there is no signal. So the child checks its
/// parent afterwards: `$0` is the expected pid.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// A running child, killed and reaped on drop.
///
/// The kernel also kills commands of [`Process::command`] and [`crate::Namespace::command`] when the *thread*
/// that spawned them ends (`PR_SET_PDEATHSIG`). Spawn them from a thread that lives long enough: the test's
/// own thread, not a closure for [`crate::Namespace::enter`].
#[derive(Debug)]
pub struct Process {
    child: Child,
    what: String,
}

impl Process {
    /// A command that the kernel kills when the thread that spawned it ends. Each program in the chain
    /// executes the next one, so the child's pid is that of `program`.
    pub fn command(program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("setpriv");
        // Tests read the output of programs, and some programs warn about a missing locale.
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

    /// The CPU time that its threads have used so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        let directory = format!("/proc/{}/task", self.id());
        let threads = fs::read_dir(&directory)
            .with_context(|| format!("cannot read {directory}: did {} end?", self.what))?;
        let mut nanoseconds = 0;
        for thread in threads.flatten() {
            let path = thread.path().join("schedstat");
            // The thread may have ended.
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
        // Only `self` reaps the child, so its pid has not been reused.
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("cannot signal {}", self.what))
    }

    /// Waits at most `patience` for it to end by itself; `None` if it does not.
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
        // Both fail only for a child that has been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
