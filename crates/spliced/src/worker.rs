//! A thread with an event loop, which runs listeners and their connections.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use splice::{EngineChoice, EventLoop, Remote, Waker};

use crate::listener::Listener;
use crate::service::Service;

pub(crate) struct Worker {
    remote: Remote,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread. If its loop fails later, `on_failure` hears why.
    ///
    /// # Errors
    /// If the loop cannot be set up.
    pub(crate) fn start(
        busy_poll: Option<Duration>,
        on_failure: impl FnOnce(Error) + Send + 'static,
    ) -> Result<Self> {
        let (ready, started) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("loop".into())
            .spawn(move || {
                let mut event_loop = match EventLoop::new() {
                    Ok(event_loop) => event_loop,
                    Err(error) => return drop(ready.send(Err(error))),
                };
                if let Some(time) = busy_poll
                    && let Err(error) = event_loop.set_busy_poll(time)
                {
                    tracing::warn!("{error}; only reads poll the device");
                }
                let _ = ready.send(Ok(event_loop.remote()));
                // A panic is a bug, and a relay without its listeners must not look alive. The loop
                // closes everything that it holds.
                let ended = catch_unwind(AssertUnwindSafe(|| event_loop.run()));
                on_failure(match ended {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error.into(),
                    Err(_) => {
                        anyhow!("an event loop of the relay panicked; please report this bug")
                    }
                });
            })
            .context("cannot start the thread of an event loop")?;
        let remote = started
            .recv()
            .context("an event loop panicked as it started; please report this bug")??;
        Ok(Self { remote, thread })
    }

    /// Loads what an engine needs, so that the first connection does not wait for it.
    ///
    /// # Errors
    /// If the engine cannot be used.
    pub(crate) fn prepare(&self, engine: EngineChoice) -> Result<()> {
        Ok(self.on_loop(move |event_loop| event_loop.prepare(engine))??)
    }

    /// Accepts connections on `socket` from now on.
    ///
    /// # Errors
    /// If the loop has failed.
    pub(crate) fn listen(
        &self,
        socket: OwnedFd,
        shared: bool,
        service: Arc<Service>,
    ) -> Result<Waker> {
        self.on_loop(move |event_loop| {
            event_loop.spawn(Box::new(Listener::new(socket, shared, service)))
        })
    }

    fn on_loop<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut EventLoop) -> T + Send + 'static,
    ) -> Result<T> {
        let (sender, answer) = mpsc::channel();
        self.remote
            .run(move |event_loop| drop(sender.send(act(event_loop))))?;
        answer.recv().context("an event loop has ended")
    }

    /// Calls `reached` once the loop has handled everything that was asked of it before, such as
    /// closing a listener. A loop that has failed has no listeners any more.
    pub(crate) fn when_reached(&self, reached: impl Fn() + Clone + Send + 'static) {
        let ran = self.remote.run({
            let reached = reached.clone();
            move |_| reached()
        });
        if ran.is_err() {
            reached();
        }
    }

    /// Has the loop end, and reset the connections that are left.
    pub(crate) fn end(&self) {
        self.remote.end();
    }

    /// Waits for the thread. A panic there has been printed, and does not keep the other threads from
    /// ending their connections.
    pub(crate) fn join(self) {
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use netlab::PATIENCE;

    use super::*;

    /// The program ends with this error.
    #[test]
    fn a_panic_in_a_loop_is_reported() {
        let (sender, failures) = mpsc::channel();
        let on_failure = move |error| drop(sender.send(error));
        let worker = Worker::start(None, on_failure).expect("a worker");
        worker
            .remote
            .run(|_| panic!("the bug of this test"))
            .expect("it runs");
        let error: Error = failures
            .recv_timeout(PATIENCE)
            .expect("the failure is reported");
        assert!(error.to_string().contains("bug"), "{error}");
        worker.thread.join().expect("the panic was caught");
    }
}
