//! A connection of the relay's own to a server that is suspect: what happens to it is no client's doing.
//!
//! ```text
//! suspect ──▶ connecting ──made──▶ listening ──RESET_WITHIN──▶ the clients may be the reason
//!                 │                    └──reset──▶ the server is taken out
//!                 └──not made──▶ the server is taken out
//! ```

use std::io::ErrorKind;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::time::{sleep, timeout};

use super::Backend;
use super::health::Cause;
use super::own_connection::{self, Failure};
use super::server::Server;

/// A server that resets every connection does so at once. One that waits longer may wait for a client that
/// says something.
const RESET_WITHIN: Duration = Duration::from_millis(500);

/// The least time between two probes of one server: clients must not be able to have it connected to as
/// often as they like. As the default of HAProxy's `inter`.
const EVERY: Duration = Duration::from_secs(2);

/// Finds out whether it is the fault of `server`, unless that is being found out, or does not matter since it
/// could not be taken out.
pub(super) fn start(backend: &Arc<Backend>, server: &Arc<Server>) {
    if !backend.may_take_out(server) || server.set_probed(true) {
        return;
    }
    backend
        .control
        .spawn(run(Arc::downgrade(backend), Arc::downgrade(server)));
}

async fn run(backend: Weak<Backend>, server: Weak<Server>) {
    probe(&backend, &server).await;
    sleep(EVERY).await;
    if let Some(server) = server.upgrade() {
        server.set_probed(false);
    }
}

async fn probe(backend: &Weak<Backend>, server: &Weak<Server>) {
    let (Some(backend), Some(server)) = (backend.upgrade(), server.upgrade()) else {
        return;
    };
    let plan = backend.plan();
    let opened = async {
        let addresses = own_connection::addresses(&server.target, plan.connect_timeout).await?;
        own_connection::open(&plan, &server.target, &addresses, plan.connect_timeout).await
    };
    let is_reset = match opened.await {
        Ok(mut socket) => {
            let read = timeout(RESET_WITHIN, socket.read_u8()).await;
            own_connection::end(socket, own_connection::First::Relay, EVERY).await;
            matches!(read, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionReset)
        }
        Err(Failure::Reset) => true,
        Err(Failure::Server(why)) => return backend.take_out(&server, Cause::Refused, &why),
        Err(Failure::Here(why)) => return backend.tell_shortage(&server, &why),
    };
    if is_reset {
        let why = "it resets connections before its first byte, this relay's own too";
        backend.take_out(&server, Cause::Resets, why);
    }
}
