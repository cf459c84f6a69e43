//! The control thread: health checks, DNS, and what happens after a time. Never a client's bytes.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::client_names::ClientNames;
use crate::socket_address::SocketAddress;

/// How many names in SRV records are resolved at once. Each takes a thread, since getaddrinfo(3) blocks. Names that
/// clients ask for take none (`client_names.rs`).
const RESOLVERS: usize = 16;

/// Runs tasks on the control thread, which starts with the first one and ends when the last clone is
/// dropped.
#[derive(Clone, Default)]
pub(crate) struct Control {
    running: Arc<Mutex<Option<Running>>>,
    names: Arc<ClientNames>,
}

struct Running {
    runtime: Handle,
    _end: oneshot::Sender<()>,
}

impl Control {
    /// Runs `task`. Without a thread for it, the task is dropped, and the log says so.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            match start() {
                Ok(started) => *running = Some(started),
                Err(error) => {
                    tracing::error!("{error:#}; servers are neither checked nor resolved");
                    return;
                }
            }
        }
        if let Some(running) = &*running {
            drop(running.runtime.spawn(task));
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
        .max_blocking_threads(RESOLVERS)
        .build()
        .context("cannot start the runtime of the control thread; raise the limits")?;
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel::<()>();
    thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            // It ends with an error when the sender is dropped.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })
        .context("cannot start the control thread; raise the limits")?;
    Ok(Running {
        runtime: handle,
        _end: end,
    })
}
