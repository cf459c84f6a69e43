//! An event loop in a thread whose id is known.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use splice::{EventLoop, Remote};

use crate::support::system_calls::SystemCalls;

pub(crate) struct DrivenLoop {
    pub(crate) remote: Remote,
    pub(crate) calls: SystemCalls,
    running: Option<JoinHandle<()>>,
}

impl DrivenLoop {
    /// Counts its system calls from before its first turn.
    pub(crate) fn counted() -> Self {
        let (sender, receiver) = mpsc::channel();
        let running = thread::spawn(move || {
            let mut event_loop = EventLoop::new().expect("an event loop");
            sender
                .send((event_loop.remote(), SystemCalls::of_this_thread()))
                .expect("the test waits");
            event_loop.run().expect("a loop that runs");
        });
        let (remote, calls) = receiver.recv().expect("a loop");
        Self {
            remote,
            calls,
            running: Some(running),
        }
    }
}

impl Drop for DrivenLoop {
    fn drop(&mut self) {
        self.remote.end();
        if let Some(running) = self.running.take() {
            let ended = running.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}
