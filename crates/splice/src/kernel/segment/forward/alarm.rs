//! What wakes the thread that looks after forwarded connections.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;
use std::time::Duration;

/// It rings once however often it was asked to.
#[derive(Default)]
pub(super) struct Alarm {
    rings: Mutex<bool>,
    rang: Condvar,
}

impl Alarm {
    /// Waits until it rings, and for so long at most.
    pub(super) fn wait(&self, at_most: Duration) {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .rang
            .wait_timeout_while(rings, at_most, |rings| !*rings);
        let (mut rings, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *rings = false;
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rang.notify_one();
    }
}
