//! Relays of datagrams.

mod bounds;
mod contract;
mod crowd;
mod dns;
pub(crate) mod header;
mod icmp;
mod limits;
mod quic;
mod udp;
mod unix;
mod usage;
mod vpn;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::patience::{PATIENCE, until_found};
use crate::random::Random;
use crate::relay::Relay;

/// The longest datagram of UDP over IPv4, in bytes: 65535 without the two headers.
const LONGEST: usize = 65_507;

/// The same over IPv6, whose header is not part of the length.
const LONGEST_V6: usize = 65_527;

/// Says that a test is over when it ends, also by a panic.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A UDP socket that does not wait for ever.
pub(crate) fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).expect(address);
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a time limit");
    socket
}

/// A socket of a client of `relay`.
pub(crate) fn client(relay: &Relay) -> UdpSocket {
    client_of(&relay.address)
}

/// The same, of the listener at `address`.
pub(crate) fn client_of(address: &str) -> UdpSocket {
    let relay = inet(address);
    let own = if relay.is_ipv4() {
        "127.0.0.1:0"
    } else {
        "[::1]:0"
    };
    let socket = socket(own);
    socket.connect(relay).expect("it connects");
    socket
}

/// An address with its kind.
fn inet(address: &str) -> SocketAddr {
    let address = address.strip_prefix("udp:").expect("a UDP socket");
    address.parse().expect("an address")
}

pub(crate) fn named(socket: &UdpSocket) -> String {
    format!("udp:{}", socket.local_addr().expect("its address"))
}

/// Receives a datagram and who has sent it.
pub(crate) fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = vec![0; LONGEST_V6 + 1];
    let (length, from) = socket.recv_from(&mut buffer).expect("a datagram");
    buffer.truncate(length);
    (buffer, from)
}

/// `length` pseudo-random bytes.
fn bytes(random: &mut Random, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_ne_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Sends `question` until `target` receives it, whatever was lost while nobody listened. Returns who sent it
/// there.
pub(crate) fn ask_until_received(
    client: &UdpSocket,
    target: &UdpSocket,
    question: &[u8],
) -> SocketAddr {
    target.set_nonblocking(true).expect("non-blocking");
    let from = until_found("the question arrives", || {
        // An error of an earlier datagram.
        let _ = client.send(question);
        let mut buffer = vec![0; LONGEST];
        match target.recv_from(&mut buffer) {
            Ok((length, from)) if buffer[..length] == *question => Some(from),
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    });
    target.set_nonblocking(false).expect("blocking");
    from
}
