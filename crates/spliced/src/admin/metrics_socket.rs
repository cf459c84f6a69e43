//! The TCP address for metrics: how a process gets it, and who comes there.
//!
//! ```text
//! opening ──bound──▶ listening, until the process ends
//!  │  ▲
//!  ▼  │ RETRY_AFTER
//! waiting (another process has the address, or something fails)
//! ```

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use splice::Address;

use super::server::Server;
use crate::socket_address::SocketAddress;

/// The pause after a failure of this host, and until the address is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Listens at `address` on a thread of its own as soon as that can be, unless `is_over` by then.
///
/// # Errors
/// If there can be no thread. What else stands in the way is logged.
pub(super) fn open(address: Address, server: Arc<Server>, is_over: Arc<AtomicBool>) -> Result<()> {
    let listen = move || {
        if let Some(listener) = bound(&address, &is_over) {
            accept(&listener, &server);
        }
    };
    thread::Builder::new()
        .name("metrics".into())
        .spawn(listen)
        .context("cannot start the thread of the address for metrics")?;
    Ok(())
}

fn bound(address: &Address, is_over: &AtomicBool) -> Option<TcpListener> {
    let mut has_failed = false;
    while !is_over.load(Ordering::Relaxed) {
        match bind(address) {
            Ok((listener, at)) => {
                tracing::info!("metrics are at http://{at}/metrics");
                return Some(listener);
            }
            Err(error) => {
                if !has_failed {
                    tracing::warn!(
                        "nobody can read the metrics at {address}: {error:#}; it is tried again every second"
                    );
                }
                has_failed = true;
                thread::sleep(RETRY_AFTER);
            }
        }
    }
    None
}

fn bind(address: &Address) -> Result<(TcpListener, SocketAddr)> {
    let resolved = SocketAddress::to_listen(address)?;
    let resolved: Vec<_> = resolved.iter().filter_map(SocketAddress::inet).collect();
    let listener = TcpListener::bind(&resolved[..])?;
    let at = listener.local_addr()?;
    Ok((listener, at))
}

/// Hands each client to the server.
fn accept(listener: &TcpListener, server: &Server) {
    loop {
        match listener.accept() {
            // Nobody else is harmed if there is no room for it.
            Ok((client, _)) => drop(server.serve_metrics(client)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => thread::sleep(RETRY_AFTER),
        }
    }
}
