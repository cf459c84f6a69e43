//! A name that one connection waits for.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use splice::Waker;

use super::Control;

/// The addresses of a name, or why there are none.
type Answer = Result<Vec<SocketAddr>, String>;

/// A question to the system's resolver, which the control thread waits for.
#[derive(Debug)]
pub(crate) struct Resolution(Arc<Mutex<Option<Answer>>>);

impl Resolution {
    /// Asks for the addresses of `name`, and wakes `waker` when there is an answer.
    pub(crate) fn start(control: &Control, name: String, port: u16, waker: Waker) -> Self {
        let answer = Arc::new(Mutex::new(None));
        let place = Arc::clone(&answer);
        control.spawn(async move {
            let found = tokio::net::lookup_host((name, port)).await;
            let found = found
                .map(Iterator::collect)
                .map_err(|error| error.to_string());
            *lock(&place) = Some(found);
            waker.wake();
        });
        Self(answer)
    }

    /// The answer, once it is there.
    pub(crate) fn take(&self) -> Option<Answer> {
        lock(&self.0).take()
    }
}

fn lock(answer: &Mutex<Option<Answer>>) -> MutexGuard<'_, Option<Answer>> {
    // Set in one assignment.
    answer.lock().unwrap_or_else(PoisonError::into_inner)
}
