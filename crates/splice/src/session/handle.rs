//! The handle of a pair.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::observer::Observer;
use super::status::Status;
use crate::counters::Counters;
use crate::name::EngineName;
use crate::outcome::Outcome;
use crate::reactor::Remote;

/// The handle of a pair. Dropping it ends the pair and closes both sockets.
pub struct Handle {
    status: Arc<Status>,
    /// The pair's loop; `None` once the pair is detached.
    home: Option<Remote>,
}

impl Handle {
    pub(crate) fn new(status: Arc<Status>, home: Remote) -> Self {
        Self {
            status,
            home: Some(home),
        }
    }

    /// The bytes moved so far: at most one turn of the loop old, exact once the pair has ended.
    pub fn counters(&self) -> Counters {
        self.status.meter.read()
    }

    /// Whether an engine in the kernel has the pair.
    #[cfg(test)]
    pub(crate) fn is_taken(&self) -> bool {
        self.status.meter.has_kernel()
    }

    /// Reads how many bytes this process itself has moved, while the pair runs.
    #[cfg(test)]
    pub(crate) fn by_user_space(&self) -> impl Fn() -> u64 + Send + 'static {
        let status = Arc::clone(&self.status);
        move || status.meter.by_user_space()
    }

    /// What an engine in the kernel had carried at the end, retransmissions included, in bytes.
    #[cfg(test)]
    pub(crate) fn forwarded_bytes(&self) -> u64 {
        let carried = &self.status.meter.carried_bytes;
        carried.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The part of it that an engine in the kernel has moved without this process; 0 once the pair
    /// has ended.
    pub fn redirected(&self) -> Counters {
        self.status.meter.in_kernel()
    }

    /// The engine in use, and the reason in words.
    pub fn engine(&self) -> (EngineName, Cow<'static, str>) {
        self.status.engine()
    }

    /// What others may read the pair by, who have no say in it.
    pub fn observer(&self) -> Observer {
        Observer::new(Arc::clone(&self.status))
    }

    /// How the pair ended; `None` while it runs.
    pub fn outcome(&self) -> Option<Outcome> {
        self.status.outcome()
    }

    /// Waits until the pair has ended. Then both sockets are closed.
    ///
    /// Do not call it on the thread that turns the pair's loop: it would block the loop.
    pub fn wait(self) -> Outcome {
        loop {
            if let Some(outcome) = self.wait_timeout(Duration::MAX) {
                return outcome;
            }
        }
    }

    /// Waits for at most `timeout` until the pair has ended; `None` if it still runs.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Outcome> {
        self.status.wait(timeout)
    }

    /// Lets the pair run without a handle until it ends by itself.
    pub fn detach(mut self) {
        self.home = None;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(home) = &self.home
            && self.outcome().is_none()
        {
            let status = Arc::clone(&self.status);
            // Messages are read in order, so the pair is on its loop by then. A loop that has ended
            // has closed it.
            let _ = home.run(move |event_loop| {
                if let Some(key) = status.key() {
                    event_loop.close(key);
                }
            });
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}
