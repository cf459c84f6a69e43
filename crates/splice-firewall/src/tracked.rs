//! What connection tracking knows of a connection.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;

use crate::netlink::{DumpError, NESTED, Socket, attribute};
use crate::segment::TCP;

/// Asks connection tracking of one network namespace.
#[derive(Debug)]
pub struct Tracking(Socket);

/// `CTA_*` (linux/netfilter/nfnetlink_conntrack.h).
mod cta {
    pub(super) const TUPLE_ORIGINAL: u16 = 1;
    pub(super) const STATUS: u16 = 3;
    pub(super) const PROTOCOL_STATE: u16 = 4;
    pub(super) const TUPLE_IP: u16 = 1;
    pub(super) const TUPLE_PROTOCOL: u16 = 2;
    pub(super) const NUMBER: u16 = 1;
    pub(super) const SOURCE_PORT: u16 = 2;
    pub(super) const DESTINATION_PORT: u16 = 3;
    pub(super) const STATE_OF_TCP: u16 = 1;
    pub(super) const TCP_STATE: u16 = 1;
    pub(super) const TCP_FLAGS_ORIGINAL: u16 = 4;
    pub(super) const TCP_FLAGS_REPLY: u16 = 5;
}

/// `IPS_SEEN_REPLY`.
const SEEN_REPLY: u32 = 1 << 1;
/// `IP_CT_TCP_FLAG_BE_LIBERAL`.
const LIBERAL: u8 = 1 << 3;
/// `TCP_CONNTRACK_ESTABLISHED`.
const ESTABLISHED: u8 = 3;

impl Tracking {
    /// For this thread's network namespace.
    ///
    /// # Errors
    /// If no netlink socket can be created.
    pub fn new() -> io::Result<Self> {
        Socket::new().map(Self)
    }

    /// Whether it has an entry in the state ESTABLISHED whose first packet had these addresses. Not for certain
    /// without the module nf_conntrack_netlink, and then `false`.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN.
    pub fn knows(&mut self, from: SocketAddr, to: SocketAddr) -> io::Result<bool> {
        let (family, tuple) = identity(from, to);
        let mut is_established = false;
        let asked = self.0.get_tracked(family, &tuple, |message| {
            let of = message.attributes;
            let status = of.u32(cta::STATUS).unwrap_or(0);
            let state = of
                .nested(cta::PROTOCOL_STATE)
                .and_then(|state| state.nested(cta::STATE_OF_TCP))
                .and_then(|state| state.u8(cta::TCP_STATE));
            is_established = status & SEEN_REPLY != 0 && state == Some(ESTABLISHED);
        });
        match asked {
            Ok(()) => Ok(is_established),
            Err(DumpError::Answer(Errno::NOENT | Errno::INVAL | Errno::OPNOTSUPP)) => Ok(false),
            Err(DumpError::Answer(errno)) => Err(errno.into()),
            Err(DumpError::System(error)) => Err(error),
            Err(DumpError::Changed) => Ok(false),
        }
    }

    /// Has it take segments of a connection for valid wherever they stand, since it has not seen all of them
    /// (`nf_ct_tcp_is_liberal`). Nothing happens to one that it does not know.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, or without the module nf_conntrack_netlink.
    pub fn be_liberal(&mut self, from: SocketAddr, to: SocketAddr) -> io::Result<()> {
        let (family, tuple) = identity(from, to);
        // `struct nf_ct_tcp_flags`: which, and what they become.
        let flags = [LIBERAL, LIBERAL];
        let of_tcp = [cta::TCP_FLAGS_ORIGINAL, cta::TCP_FLAGS_REPLY]
            .map(|direction| attribute(direction, &flags))
            .concat();
        let of_tcp = attribute(cta::STATE_OF_TCP | NESTED, &of_tcp);
        let state = attribute(cta::PROTOCOL_STATE | NESTED, &of_tcp);
        match self.0.change_tracked(family, &[tuple, state].concat()) {
            Ok(()) | Err(DumpError::Changed | DumpError::Answer(Errno::NOENT)) => Ok(()),
            Err(DumpError::Answer(errno)) => Err(errno.into()),
            Err(DumpError::System(error)) => Err(error),
        }
    }
}

/// How a connection is named, by what the packets of one direction carry: the family, and the attribute.
fn identity(from: SocketAddr, to: SocketAddr) -> (u8, Vec<u8>) {
    // `AF_INET`, `AF_INET6`; `CTA_IP_*`.
    let (family, [source, destination]) = match from {
        SocketAddr::V4(_) => (2, [1, 2]),
        SocketAddr::V6(_) => (10, [3, 4]),
    };
    let address = |kind, of: SocketAddr| match of.ip() {
        IpAddr::V4(v4) => attribute(kind, &v4.octets()),
        IpAddr::V6(v6) => attribute(kind, &v6.octets()),
    };
    let addresses = [address(source, from), address(destination, to)].concat();
    let ports = [
        attribute(cta::NUMBER, &[TCP]),
        attribute(cta::SOURCE_PORT, &from.port().to_be_bytes()),
        attribute(cta::DESTINATION_PORT, &to.port().to_be_bytes()),
    ]
    .concat();
    let tuple = [
        attribute(cta::TUPLE_IP | NESTED, &addresses),
        attribute(cta::TUPLE_PROTOCOL | NESTED, &ports),
    ]
    .concat();
    (family, attribute(cta::TUPLE_ORIGINAL | NESTED, &tuple))
}
