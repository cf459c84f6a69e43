//! A thread with an event loop and the listeners on it.

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
    listeners: Vec<Waker>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread. If its loop fails later, `on_failure` hears why.
    ///
    /// # Errors
    /// If the loop, or an engine that was asked for by name, cannot be set up.
    pub(crate) fn start(
        sockets: Vec<OwnedFd>,
        shared: bool,
        service: &Arc<Service>,
        busy_poll: Option<Duration>,
        on_failure: impl FnOnce(Error) + Send + 'static,
    ) -> Result<Self> {
        let (ready, started) = mpsc::channel();
        let service = Arc::clone(service);
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
                let listeners: Vec<_> = sockets
                    .into_iter()
                    .map(|socket| Listener::new(socket, shared, Arc::clone(&service)))
                    .map(|listener| event_loop.spawn(Box::new(listener)))
                    .collect();
                let prepared = match service.options.engine {
                    EngineChoice::Auto if !service.may_promote() => Ok(()),
                    engine => event_loop.prepare(engine),
                };
                // The relay refuses to start if an engine was asked for by name; `auto` does without it.
                if let Err(error) = prepared
                    && service.options.engine != EngineChoice::Auto
                {
                    return drop(ready.send(Err(error)));
                }
                drop(service);
                let _ = ready.send(Ok((event_loop.remote(), listeners)));
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
        let (remote, listeners) = started
            .recv()
            .context("an event loop panicked as it started; please report this bug")??;
        Ok(Self {
            remote,
            listeners,
            thread,
        })
    }

    /// Has the listeners accept their backlogs and close, and calls `closed` when they have. A loop that
    /// has failed has no listeners any more.
    pub(crate) fn stop_listening(&self, closed: impl Fn() + Clone + Send + 'static) {
        self.listeners.iter().for_each(Waker::close);
        // The loop reads its messages in order, so this one comes after the listeners have closed.
        let ran = self.remote.run({
            let closed = closed.clone();
            move |_| closed()
        });
        if ran.is_err() {
            closed();
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
        let service = Arc::new(Service::echo(None));
        let (sender, failures) = mpsc::channel();
        let on_failure = move |error| drop(sender.send(error));
        let worker = Worker::start(Vec::new(), false, &service, None, on_failure);
        let worker = worker.expect("a worker");
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
