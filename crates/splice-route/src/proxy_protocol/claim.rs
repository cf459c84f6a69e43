//! Which addresses a sender may claim for its client.

use std::net::IpAddr;

use super::{Endpoints, Header};
use crate::progress::Fault;

const UNSPECIFIED: Fault = Fault("the PROXY header names an unspecified address as the client");
const MULTICAST: Fault = Fault("the PROXY header names a multicast or broadcast address");
const LOOPBACK: Fault = Fault("the PROXY header names a loopback address");
const OWN: Fault = Fault("the PROXY header names an address of this host as the client");
const MAYBE_OWN: Fault = Fault(
    "whether the PROXY header names an address of this host as the client cannot be found out",
);

impl Header {
    /// Both ends of the client's connection, if the header may be believed. `None`: use those of the
    /// connection itself.
    ///
    /// `sender` is the peer of the connection, `None` for a UNIX socket. `is_own` tells the addresses of
    /// this host, `None` if it cannot; only senders on this host may claim one for a client, since servers
    /// often trust clients that come from the host itself.
    pub fn endpoints(
        &self,
        sender: Option<IpAddr>,
        is_own: impl Fn(IpAddr) -> Option<bool>,
    ) -> Result<Option<Endpoints>, Fault> {
        let Some(endpoints) = self.endpoints else {
            return Ok(None);
        };
        let sent_here = sender.is_none_or(|sender| {
            let sender = sender.to_canonical();
            sender.is_loopback() || is_own(sender) == Some(true)
        });
        let source = endpoints.source.ip();
        // Senders write 0.0.0.0 for a destination that they do not know.
        if is_this_network(source) {
            return Err(UNSPECIFIED);
        }
        for address in [source, endpoints.destination.ip()] {
            if is_group(address) {
                return Err(MULTICAST);
            }
            if address.is_loopback() && !sent_here {
                return Err(LOOPBACK);
            }
        }
        if sent_here {
            return Ok(Some(endpoints));
        }
        match is_own(source) {
            Some(false) => Ok(Some(endpoints)),
            Some(true) => Err(OWN),
            None => Err(MAYBE_OWN),
        }
    }
}

/// RFC 6890: nothing comes from 0.0.0.0/8 but a host that has no address yet.
fn is_this_network(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_unspecified(),
    }
}

fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    }
}
