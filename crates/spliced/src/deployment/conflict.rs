//! Addresses that a new listener cannot have, since another one of this process has them.

use anyhow::{Error, anyhow};

use crate::listener::InUse;
use crate::socket_address::SocketAddress;

/// The addresses of a listener that a change takes away.
pub(super) struct Held<'a> {
    pub(super) name: String,
    pub(super) addresses: &'a [SocketAddress],
    /// An earlier change has removed it, and it has sessions.
    pub(super) is_former: bool,
}

/// Says so if an address is in use by one of these.
pub(super) fn explain<'a>(error: Error, mut held: impl Iterator<Item = Held<'a>>) -> Error {
    let Some(InUse(address)) = error.downcast_ref() else {
        return error;
    };
    let found = held.find(|held| held.addresses.iter().any(|own| collide(own, address)));
    match found {
        Some(Held {
            name,
            is_former: false,
            ..
        }) => anyhow!(
            "cannot listen on {address}: listener {name} of this process holds it until this change is \
             made; remove that listener in a reload of its own first, or restart"
        ),
        Some(Held { name, .. }) => anyhow!(
            "cannot listen on {address}: listener {name} of this process was removed and holds it until its \
             sessions have ended; reload again then, or restart"
        ),
        None => error,
    }
}

fn collide(own: &SocketAddress, new: &SocketAddress) -> bool {
    match (own.inet(), new.inet()) {
        (Some(own), Some(new)) => {
            let has_all = own.ip().is_unspecified() || new.ip().is_unspecified();
            own.port() == new.port() && (has_all || own.ip() == new.ip())
        }
        _ => own == new,
    }
}
