//! What the packet filters of this host mean for a relay, logged when it starts.

use std::net::SocketAddr;

use splice::firewall::{Connection, End, Family, PacketFilters, Verdict};

use crate::socket_address::SocketAddress;

/// Connections that the packet filters keep out of `segment`.
#[derive(Clone, Debug)]
pub(crate) struct KeptBack {
    /// Clients or a target, as in "connections with the target".
    pub(crate) whom: &'static str,
    /// All of them; otherwise perhaps some.
    pub(crate) certainly: bool,
    pub(crate) why: String,
}

/// The packet filters as they are now. Reading them takes some milliseconds. Without a right to, `segment`
/// cannot be used, which is reported elsewhere.
pub(crate) fn read() -> Option<PacketFilters> {
    PacketFilters::read()
        .inspect_err(|error| tracing::debug!("{error}"))
        .ok()
}

/// What the packet filters keep out of `segment`.
pub(crate) fn kept_back(
    filters: &PacketFilters,
    listening: &[SocketAddress],
    targets: &[SocketAddress],
) -> Vec<KeptBack> {
    let clients = listening.iter().filter_map(inet).map(of_clients);
    let servers = targets.iter().filter_map(inet).map(of_server);
    clients
        .flatten()
        .chain(servers)
        .filter_map(|connection| of(filters, &connection))
        .collect()
}

/// Logs why the packet filters keep some or all connections out of `segment`.
pub(crate) fn log_what_is_kept_back(listening: &[SocketAddress], targets: &[SocketAddress]) {
    let Some(filters) = read() else {
        return;
    };
    for KeptBack {
        whom,
        certainly,
        why,
    } in kept_back(&filters, listening, targets)
    {
        if certainly {
            tracing::warn!(
                "segment is not used for connections with {whom}, since the packet filters would stop \
                 them: {why}; --bypass-firewall overrides this"
            );
        } else {
            tracing::info!(
                "some connections with {whom} may be copied and not spliced, because of the packet filters: {why}"
            );
        }
    }
}

fn inet(address: &SocketAddress) -> Option<SocketAddr> {
    match address {
        SocketAddress::Inet(address) => Some(*address),
        _ => None,
    }
}

/// Any client of a listening socket, for each family that it accepts.
fn of_clients(listening: SocketAddr) -> Vec<Connection> {
    let known = !listening.ip().is_unspecified();
    let families = match listening {
        SocketAddr::V4(_) => vec![Family::Ipv4],
        SocketAddr::V6(_) if known => vec![Family::Ipv6],
        SocketAddr::V6(_) => vec![Family::Ipv4, Family::Ipv6],
    };
    let connection = |family| Connection {
        local: End {
            address: known.then(|| listening.ip()),
            port: Some(listening.port()),
        },
        ..Connection::any(family)
    };
    families.into_iter().map(connection).collect()
}

/// The first dynamic port (RFC 6335, section 6), in place of the one that the kernel is going to pick for
/// the relay's end.
const DYNAMIC_PORT: u16 = 49152;

fn of_server(target: SocketAddr) -> Connection {
    Connection {
        local: End {
            address: None,
            port: Some(DYNAMIC_PORT),
        },
        peer: End {
            address: Some(target.ip()),
            port: Some(target.port()),
        },
        accepted: false,
        ..Connection::any(if target.is_ipv4() {
            Family::Ipv4
        } else {
            Family::Ipv6
        })
    }
}

fn of(filters: &PacketFilters, connection: &Connection) -> Option<KeptBack> {
    let whom = match (connection.accepted, connection.family) {
        (true, Family::Ipv4) => "clients over IPv4",
        (true, Family::Ipv6) => "clients over IPv6",
        (false, _) => "the target",
    };
    let (certainly, why) = match filters.judge(connection) {
        Verdict::Accepts => return None,
        Verdict::Stops(why) => (true, why),
        Verdict::Unknown(why) => (false, why),
    };
    Some(KeptBack {
        whom,
        certainly,
        why: why.to_string(),
    })
}
