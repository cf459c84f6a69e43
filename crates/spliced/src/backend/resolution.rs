//! A name that one connection waits for.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

use super::Control;

/// The addresses of a name, or why there are none.
type Answer = Result<Vec<SocketAddr>, String>;

/// A question to the system's resolver, which the control thread waits for. Dropped, it is asked no more,
/// so that clients that come and go leave nothing behind.
#[derive(Debug)]
pub(crate) struct Resolution(oneshot::Receiver<Answer>);

impl Resolution {
    /// Asks for the addresses of `name`, and calls `wake` when there is an answer.
    pub(crate) fn start(
        control: &Control,
        name: String,
        port: u16,
        wake: impl FnOnce() + Send + 'static,
    ) -> Self {
        let (mut sender, receiver) = oneshot::channel();
        let threads = Arc::clone(control.for_clients());
        control.spawn(async move {
            let found = tokio::select! {
                () = sender.closed() => return,
                found = resolve(threads, name, port) => found,
            };
            if sender.send(found).is_ok() {
                wake();
            }
        });
        Self(receiver)
    }

    /// The answer, once it is there.
    pub(crate) fn take(&mut self) -> Option<Answer> {
        self.0.try_recv().ok()
    }
}

async fn resolve(threads: Arc<Semaphore>, name: String, port: u16) -> Answer {
    let thread = threads.acquire_owned().await;
    let question = move || {
        // Given back by the thread itself: the question goes on when nobody waits for it any more.
        let _thread = thread;
        (name, port).to_socket_addrs()
    };
    match spawn_blocking(question).await {
        Ok(Ok(found)) => Ok(found.collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use netlab::until;

    use super::*;

    #[test]
    fn a_question_that_nobody_waits_for_leaves_nothing_behind() {
        let control = Control::default();
        let threads = Arc::clone(control.for_clients());
        let all = threads.available_permits().try_into().expect("few");
        let _busy = threads.try_acquire_many(all).expect("all threads are free");
        let held = Arc::strong_count(&threads);
        let name = || "name.invalid".to_owned();
        let questions: Vec<_> = (0..100)
            .map(|_| Resolution::start(&control, name(), 1, || ()))
            .collect();
        until("all wait", || Arc::strong_count(&threads) >= held + 100);
        drop(questions);
        until("none waits", || Arc::strong_count(&threads) == held);
    }
}
