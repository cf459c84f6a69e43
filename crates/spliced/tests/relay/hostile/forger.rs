//! Who sends forged segments: a raw socket beside an end of the connection.

use std::net::{IpAddr, SocketAddr};

use netlab::Namespace;
use socket2::{Domain, Socket, Type};

use super::icmp::IcmpError;
use super::segment::Segment;
use super::stage::Family;

/// `IPPROTO_RAW`: packets have their IP header already, and nothing is received.
const WITH_HEADER: i32 = 255;

#[derive(Debug)]
pub(super) struct Forger {
    socket: Socket,
}

impl Forger {
    pub(super) fn in_namespace(namespace: &Namespace, family: Family) -> Self {
        let domain = match family {
            Family::V4 => Domain::IPV4,
            Family::V6 => Domain::IPV6,
        };
        let made = namespace.enter(|| Socket::new(domain, Type::RAW, Some(WITH_HEADER.into())));
        Self {
            socket: made.expect("entered").expect("a raw socket"),
        }
    }

    pub(super) fn send(&self, segment: &Segment) {
        self.send_packet(segment.to.ip(), &segment.packet());
    }

    pub(super) fn send_error(&self, error: &IcmpError) {
        self.send_packet(error.segment.from.ip(), &error.packet());
    }

    fn send_packet(&self, to: IpAddr, packet: &[u8]) {
        // A raw socket has no ports, and IPv6 refuses any but 0.
        let to = SocketAddr::new(to, 0);
        let sent = self.socket.send_to(packet, &to.into()).expect("sent");
        assert_eq!(sent, packet.len());
    }
}
