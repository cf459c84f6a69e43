//! Waiting, beside the loops, until no program runs any more that may have seen a former state.
//!
//! A grace period of RCU is sure to end, after up to some ten milliseconds. A sender whose burst gets lost meanwhile probes
//! once, after two ticks and two round trips (`tcp_schedule_loss_probe`), and then waits for 200 ms. So another thread visits
//! every CPU, which proves the same in microseconds, if it is let do so and no CPU is held up. Who is done first ends the
//! wait.

use std::mem;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use splice_bpf::{wait_for_programs, wait_for_softirqs};

/// Where the kernel cannot tell (`EINVAL` with `nohz_full`): no program runs for so long, nor does a softirq.
const LONGEST_RUN: Duration = Duration::from_millis(100);

/// One wait, asked for by a pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Wait {
    is_over: Arc<AtomicBool>,
}

impl Wait {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Acquire)
    }

    fn end(&self, waker: Waker) {
        if !self.is_over.swap(true, AcqRel) {
            waker.wake();
        }
    }
}

/// The waits of a process.
#[derive(Debug)]
pub(super) struct Grace {
    by_rcu: Arc<Waits>,
    by_visits: Arc<Waits>,
}

/// Those that end in one way. A thread does them all, as long as there are any.
#[derive(Debug)]
struct Waits {
    name: &'static str,
    /// Whether it is proved that they are over.
    wait: fn() -> bool,
    asked: Mutex<Asked>,
}

#[derive(Debug, Default)]
struct Asked {
    waits: Vec<(Wait, Waker)>,
    thread_runs: bool,
}

impl Default for Grace {
    fn default() -> Self {
        let by_rcu = || {
            if wait_for_programs().is_err() {
                thread::sleep(LONGEST_RUN);
            }
            true
        };
        Self {
            by_rcu: Waits::new("grace", by_rcu),
            by_visits: Waits::new("grace-visits", || wait_for_softirqs().is_ok()),
        }
    }
}

impl Grace {
    /// Begins to wait; calls the waker afterwards.
    pub(super) fn ask(&self, waker: Waker) -> Wait {
        let wait = Wait::default();
        self.by_visits.ask(&wait, waker.clone());
        if !self.by_rcu.ask(&wait, waker) {
            self.by_rcu.run();
        }
        wait
    }
}

impl Waits {
    fn new(name: &'static str, wait: fn() -> bool) -> Arc<Self> {
        Arc::new(Self {
            name,
            wait,
            asked: Mutex::default(),
        })
    }

    /// Whether a thread does it.
    fn ask(self: &Arc<Self>, wait: &Wait, waker: Waker) -> bool {
        let mut asked = self.asked();
        // A visit may not return for long.
        asked.waits.retain(|(wait, _)| !wait.is_over());
        asked.waits.push((wait.clone(), waker));
        if !asked.thread_runs {
            let waits = Arc::clone(self);
            let thread = thread::Builder::new().name(self.name.into());
            asked.thread_runs = thread.spawn(move || waits.run()).is_ok();
        }
        asked.thread_runs
    }

    fn run(&self) {
        loop {
            let waits = mem::take(&mut self.asked().waits);
            if (self.wait)() {
                for (wait, waker) in waits {
                    wait.end(waker);
                }
            }
            let mut asked = self.asked();
            if asked.waits.is_empty() {
                asked.thread_runs = false;
                return;
            }
        }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        // Every change is complete before anything can panic.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
