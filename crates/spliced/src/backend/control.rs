//! The control thread: health checks, DNS, and what happens after a time. Never a client's bytes.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::thread;

use anyhow::{Context as _, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::client_names::ClientNames;
use crate::socket_address::SocketAddress;

/// Runs tasks on the control thread, which ends when the last clone is dropped.
///
/// Nothing starts it when a task comes: descriptors could be short by then, and a task that is lost would be missed
/// for good.
#[derive(Clone, Default)]
pub(crate) struct Control {
    running: Arc<OnceLock<Running>>,
    names: Arc<ClientNames>,
}

struct Running {
    runtime: Handle,
    _end: oneshot::Sender<()>,
}

impl Control {
    /// Starts the thread, if it does not run. A relay with one server has no tasks, and does without, until an order adds
    /// another server.
    ///
    /// # Errors
    /// If the thread or its event loop cannot be created.
    pub(crate) fn start(&self) -> Result<()> {
        if self.running.get().is_some() {
            return Ok(());
        }
        let running = start()?;
        // A second one would end at once.
        let _ = self.running.set(running);
        Ok(())
    }

    /// Runs `task`, once the thread has been started.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.running.get() {
            Some(running) => drop(running.runtime.spawn(task)),
            None => tracing::error!("a task of the control thread is lost: it was not started"),
        }
    }

    /// `address` of a name that a client has asked for, of those in the order `tried`, has answered.
    pub(crate) fn answered(
        &self,
        name: &str,
        port: u16,
        address: &SocketAddress,
        tried: &[SocketAddress],
    ) {
        self.names.answered(name, port, address, tried);
    }

    pub(super) fn names(&self) -> Arc<ClientNames> {
        Arc::clone(&self.names)
    }
}

fn start() -> Result<Running> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .context(
            "cannot create the event loop of the control thread, which checks servers and resolves names; raise the \
             limit on descriptors (RLIMIT_NOFILE; LimitNOFILE= of systemd)",
        )?;
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel::<()>();
    thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            // It ends with an error when the sender is dropped.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })
        .context(
            "cannot start the control thread, which checks servers and resolves names; raise the limit on threads \
             (RLIMIT_NPROC, pids.max; TasksMax= of systemd)",
        )?;
    Ok(Running {
        runtime: handle,
        _end: end,
    })
}
