//! Rings: splices through which bytes come back to where they were.
//!
//! ```text
//! source ──splice──▶ drain ──connection──▶ its peer, a source ──splice──▶ ... ──▶ source
//! ```
//!
//! OpenBSD counts how often a packet was spliced and gives up at `M_MAXLOOP` (`somove`). Bytes of a
//! Linux socket have no such counter. So the splices that close a ring are found by the addresses
//! of their sockets, and share what passes are left. A ring that leaves this process is not found.

use std::net::SocketAddr;

use crate::socket::Socket;

/// How often bytes may be spliced in a ring: `M_MAXLOOP` of OpenBSD's `sys/mbuf.h`.
pub(crate) const PASSES_MOST: u32 = 128;

/// Where a splice leads from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// The source's own address, and its peer's; datagram sockets may have none.
    from: (SocketAddr, Option<SocketAddr>),
    /// The same of the drain.
    to: (SocketAddr, Option<SocketAddr>),
}

impl Path {
    pub(crate) fn between(source: &Socket<'_>, drain: &Socket<'_>) -> Option<Self> {
        Some(Self {
            from: source.addresses()?,
            to: drain.addresses()?,
        })
    }

    /// Whether what this one moves arrives at the source of `next`.
    pub(crate) fn leads_to(&self, next: &Self) -> bool {
        let (own, peer) = self.to;
        let arrives_at = |socket: SocketAddr| {
            // A datagram socket may be bound to a port of all addresses.
            let is_of = |peer: SocketAddr| socket.ip().is_unspecified() || peer.ip() == socket.ip();
            peer.is_some_and(|peer| peer.port() == socket.port() && is_of(peer))
        };
        arrives_at(next.from.0) && next.from.1.is_none_or(|from| from == own)
    }
}

/// The ring that the last of `paths` closes: the places of its members.
pub(crate) fn closed_by(last: &Path, paths: &[Path]) -> Option<Vec<usize>> {
    let mut members = Vec::new();
    let mut at = last;
    loop {
        if at.leads_to(last) {
            return Some(members);
        }
        let next = paths.iter().position(|path| at.leads_to(path))?;
        if members.contains(&next) {
            // A ring that `last` only feeds.
            return None;
        }
        members.push(next);
        at = &paths[next];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// A splice of the socket with port `from`, whose peer has the next port, to port `to`.
    fn path(from: u16, to: u16) -> Path {
        Path {
            from: (address(from), Some(address(from + 1))),
            to: (address(to), Some(address(to - 1))),
        }
    }

    #[test]
    fn a_ring_is_closed_by_its_last_member_only() {
        // 10 has the peer 11, and so on; each leads to the next one.
        let paths = [path(10, 21), path(20, 31)];
        assert_eq!(closed_by(&path(30, 41), &paths), None);
        assert_eq!(closed_by(&path(30, 11), &paths), Some(vec![0, 1]));
        assert_eq!(closed_by(&path(30, 31), &[]), Some(vec![]));
    }

    #[test]
    fn a_socket_of_all_addresses_gets_what_is_sent_to_one() {
        let to_itself = |host: [u8; 4]| Path {
            from: (SocketAddr::from((host, 10)), None),
            to: (address(20), Some(address(10))),
        };
        for (host, is_ring) in [
            ([0; 4], true),
            ([127, 0, 0, 1], true),
            ([127, 0, 0, 2], false),
        ] {
            assert_eq!(closed_by(&to_itself(host), &[]).is_some(), is_ring);
        }
    }

    #[test]
    fn a_splice_that_feeds_a_ring_is_not_of_it() {
        let ring = [path(10, 21), path(20, 11)];
        assert_eq!(closed_by(&path(30, 11), &ring), None);
    }
}
