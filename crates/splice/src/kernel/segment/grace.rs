//! Waiting, beside the loops, until no program runs any more that may have seen a former state.

use std::mem;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use splice_bpf::wait_for_programs;

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
}

/// The waits of a process. One thread does them all, as long as there are any.
#[derive(Debug, Default)]
pub(super) struct Grace {
    asked: Mutex<Asked>,
}

#[derive(Debug, Default)]
struct Asked {
    waits: Vec<(Wait, Waker)>,
    thread_runs: bool,
}

impl Grace {
    /// Begins to wait; calls the waker afterwards.
    pub(super) fn ask(self: &Arc<Self>, waker: Waker) -> Wait {
        let wait = Wait::default();
        let mut asked = self.asked();
        asked.waits.push((wait.clone(), waker));
        if !asked.thread_runs {
            let grace = Arc::clone(self);
            let thread = thread::Builder::new().name("grace".into());
            asked.thread_runs = thread.spawn(move || grace.run()).is_ok();
            if !asked.thread_runs {
                drop(asked);
                self.run();
            }
        }
        wait
    }

    fn run(&self) {
        loop {
            let waits = mem::take(&mut self.asked().waits);
            if wait_for_programs().is_err() {
                thread::sleep(LONGEST_RUN);
            }
            for (wait, waker) in waits {
                wait.is_over.store(true, Release);
                waker.wake();
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
