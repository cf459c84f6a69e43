//! Signals: what each one requests, and who acts on it.
//!
//! ```text
//!             there is something to undo          the connections are over
//! Starting ────────────────────────────▶ Running ──────────────────────────▶ Ending
//!     │ a request to stop                   │ a request to stop, and a second     │ a second request
//!     ▼                                     ▼                                     ▼
//! the process ends here, with status 0   the relay is notified                the process ends here
//! ```
//!
//! A request to stop is SIGTERM, SIGINT, or SIGHUP where there is a terminal and no configuration. The next one comes at
//! least [`SAME_REQUEST`] later; a signal that comes sooner belongs to the same request.

use std::fs::{self, File};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, SigmaskHow};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator;
use signal_hook::low_level::{emulate_default_handler, exit, signal_name};

use crate::diagnostics::Diagnostics;

/// Two signals within this time are one request: timeout(1) sends SIGTERM to its child and then to the
/// whole process group, a terminal that hangs up sends SIGHUP and so does its shell, and nobody
/// presses Ctrl-C twice on purpose and expects the connections to have had time in between.
const SAME_REQUEST: Duration = Duration::from_secs(1);

const CANNOT_HANDLE: &str = "signals cannot be handled";

/// The signals that this process catches.
#[derive(Debug)]
pub(crate) struct Signals {
    caught: iterator::Signals,
    has_terminal: bool,
}

/// What a signal asks of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// To drain; the second time, to end at once.
    Stop,
    /// To open the log files again.
    Reopen,
    /// To read the configuration again.
    Reload,
}

/// Which phase the relay is in.
#[derive(Debug)]
pub(crate) struct Progress(Arc<Mutex<Phase>>);

#[derive(Clone, Copy, Debug)]
enum Phase {
    Starting,
    Running,
    /// With the exit status of a process that a signal ends now.
    Ending(u8),
}

impl Signals {
    /// Catches the signals; they wait until [`watch`](Self::watch) or [`leave_to_default`] handles them. The
    /// program has to call this first of all.
    ///
    /// [`leave_to_default`]: Self::leave_to_default
    pub(crate) fn catch() -> Result<Self> {
        // A signal that comes between sigaction(2) and the entry of its action would have no effect
        // (`handler` of signal-hook-registry). Blocked, it waits.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let before = before.context(CANNOT_HANDLE)?;
        let signals = Self::install();
        before.thread_set_mask().context(CANNOT_HANDLE)?;
        signals
    }

    fn install() -> Result<Self> {
        let caught = iterator::Signals::new([SIGTERM, SIGINT]).context(CANNOT_HANDLE)?;
        // Past RLIMIT_FSIZE a log's write(2) fails as on a full disk, where by default the process
        // would be killed.
        for signal in [SIGUSR1, SIGUSR2, SIGXFSZ] {
            caught.add_signal(signal).context(CANNOT_HANDLE)?;
        }
        // nohup(1) starts a program with SIGHUP ignored.
        if !is_ignored(SIGHUP) {
            caught.add_signal(SIGHUP).context(CANNOT_HANDLE)?;
        }
        Ok(Self {
            caught,
            // Tested now: when the terminal hangs up, it may already be gone.
            has_terminal: File::open("/dev/tty").is_ok(),
        })
    }

    /// Gives every signal its default action.
    pub(crate) fn leave_to_default(mut self) -> Result<()> {
        start_thread(move || {
            for signal in self.caught.forever() {
                // It ends the process; otherwise nothing can be done.
                let _ = emulate_default_handler(signal);
            }
        })
    }

    /// Calls `tell` for every signal, and for those of `others`, which are caught from now on.
    pub(crate) fn hand_over(
        mut self,
        others: &[i32],
        tell: impl Fn(i32) + Send + 'static,
    ) -> Result<()> {
        for signal in others {
            self.caught.add_signal(*signal).context(CANNOT_HANDLE)?;
        }
        start_thread(move || self.caught.forever().for_each(tell))
    }

    /// Starts the thread that calls `tell` for every request. SIGHUP asks for a reload if there is a
    /// configuration to reload, with a terminal or without.
    pub(crate) fn watch(
        mut self,
        diagnostics: Diagnostics,
        has_configuration: bool,
        tell: impl Fn(Request) + Send + 'static,
    ) -> Result<Progress> {
        let progress = Progress(Arc::new(Mutex::new(Phase::Starting)));
        let seen = Progress(Arc::clone(&progress.0));
        start_thread(move || {
            let mut stop = StopRequests::default();
            for signal in self.caught.forever() {
                match signal {
                    SIGHUP if has_configuration => tell(Request::Reload),
                    SIGHUP if !self.has_terminal => tell(Request::Reopen),
                    SIGUSR1 => tell(Request::Reopen),
                    SIGUSR2 => tracing::info!("SIGUSR2 has no meaning here and is ignored"),
                    SIGXFSZ => {}
                    _ if stop.is_new(Instant::now()) => seen.stop(signal, &diagnostics, &tell),
                    _ => {}
                }
            }
        })?;
        Ok(progress)
    }
}

impl Progress {
    /// From now on there may be something to undo, or a client: a signal no longer ends the process at
    /// once.
    pub(crate) fn running(&self) {
        *self.lock() = Phase::Running;
    }

    /// From now on the relay ignores requests: another one ends the process with `status`.
    pub(crate) fn ending(&self, status: u8) {
        *self.lock() = Phase::Ending(status);
    }

    fn stop(&self, signal: i32, diagnostics: &Diagnostics, tell: &impl Fn(Request)) {
        // Locked until the process has ended: the relay must not go on and bind a socket file.
        let phase = self.lock();
        let name = signal_name(signal).unwrap_or("a signal");
        match *phase {
            Phase::Starting => {
                tracing::info!("stopped by {name} before it accepted any connection");
                diagnostics.finish();
                exit(0);
            }
            Phase::Running => tell(Request::Stop),
            Phase::Ending(status) => {
                tracing::warn!("{name} ended the relay before its logs were written");
                diagnostics.finish();
                exit(status.into());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        // Every change is a single assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Distinguishes a new request from the same one again.
#[derive(Debug, Default)]
pub(crate) struct StopRequests {
    last: Option<Instant>,
}

impl StopRequests {
    pub(crate) fn is_new(&mut self, now: Instant) -> bool {
        let is_new = self.last.is_none_or(|last| now - last >= SAME_REQUEST);
        if is_new {
            self.last = Some(now);
        }
        is_new
    }
}

fn start_thread(work: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name("signals".into())
        .spawn(work)
        .map(drop)
        .context("cannot start the thread that waits for signals")
}

/// Whether this process was started with `signal` ignored.
fn is_ignored(signal: i32) -> bool {
    // The standard library has no sigaction(2); see proc_pid_status(5).
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_within_a_second_are_one_request() {
        let mut requests = StopRequests::default();
        let start = Instant::now();
        assert!(requests.is_new(start));
        assert!(!requests.is_new(start + Duration::from_millis(1)));
        assert!(!requests.is_new(start + Duration::from_millis(999)));
        let second = start + SAME_REQUEST;
        assert!(requests.is_new(second));
        // Otherwise a burst of signals would end the process while it resets connections.
        assert!(!requests.is_new(second + Duration::from_millis(1)));
        assert!(requests.is_new(second + SAME_REQUEST));
    }
}
