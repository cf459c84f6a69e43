//! Whether the bytes of an established connection really arrive under a fixture's rules.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Namespace, until_found};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::fixture::{Backend, Expectation, Fixture, Truth};
use crate::host::Host;

/// After this number of timeouts the bytes of a sender count as blocked. One may be a delay of the machine.
const TIMEOUTS: u32 = 2;

/// The interval for reading the table: the kernel walks the sockets of all namespaces for it.
const READ_TABLE_EVERY: Duration = Duration::from_millis(100);

const MESSAGE: &[u8] = b"does this arrive?";

/// Opens the connections, loads the rules, sends a message in both directions on each, and compares.
pub(crate) fn holds(name: &str) {
    holds_for(name, &Fixture::read(name));
}

/// The same for a fixture that is not in a file.
pub(crate) fn holds_for(name: &str, fixture: &Fixture) {
    // Most of the time passes while the test waits for dropped bytes.
    thread::scope(|scope| {
        for &backend in &fixture.backends {
            scope.spawn(move || holds_with(name, fixture, backend));
        }
    });
}

fn holds_with(name: &str, fixture: &Fixture, backend: Backend) {
    let host = Host::new(fixture);
    host.follow();
    let mut listeners = Listeners::default();
    let mut pairs: Vec<_> = fixture
        .expectations
        .iter()
        .filter_map(|expectation| Some((expectation, expectation.truth?)))
        .map(|(expectation, truth)| {
            let pair = Pair::open(&host, &mut listeners, expectation);
            (pair, expectation, truth)
        })
        .collect();
    host.load_all(fixture, backend);
    host.unfollow();
    for (pair, ..) in &mut pairs {
        pair.send();
    }
    for (pair, expectation, truth) in &mut pairs {
        let what = format!("{name} ({backend:?}): {}", expectation.text);
        let found = until_found(&what, || pair.look(&host));
        assert_eq!(found, *truth, "{what}");
    }
}

/// Both ends of a connection.
struct Pair<'a> {
    local: TcpStream,
    peer: TcpStream,
    /// The bytes that have arrived here, and at the peer.
    arrived: [usize; 2],
    /// When the table was last read.
    read_table: Instant,
    expectation: &'a Expectation,
}

impl<'a> Pair<'a> {
    fn open(host: &Host, listeners: &mut Listeners, expectation: &'a Expectation) -> Self {
        let far = if expectation.is_on_loopback() {
            &host.namespace
        } else {
            &host.peers
        };
        let (local, peer) = if expectation.accepted {
            let (peer, local) = listeners.connect(
                (far, expectation.peer),
                (&host.namespace, expectation.local),
            );
            (local, peer)
        } else {
            listeners.connect(
                (&host.namespace, expectation.local),
                (far, expectation.peer),
            )
        };
        for end in [&local, &peer] {
            end.set_nonblocking(true).expect("O_NONBLOCK");
        }
        Self {
            local,
            peer,
            arrived: [0; 2],
            read_table: Instant::now(),
            expectation,
        }
    }

    fn send(&mut self) {
        for end in [&mut self.local, &mut self.peer] {
            // A filter at the output may return an error: the socket retransmits by itself.
            let _ = end.write_all(MESSAGE);
        }
    }

    /// What has happened to the messages, once it is certain.
    fn look(&mut self, host: &Host) -> Option<Truth> {
        for (end, arrived) in [&mut self.local, &mut self.peer]
            .into_iter()
            .zip(&mut self.arrived)
        {
            let mut buffer = [0; MESSAGE.len()];
            match end.read(&mut buffer) {
                Ok(0) => return Some(Truth::Blocked),
                Ok(length) => *arrived += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A filter has reset it.
                Err(_) => return Some(Truth::Blocked),
            }
        }
        let [here, there] = self.arrived;
        if here == MESSAGE.len() && there == MESSAGE.len() {
            return Some(Truth::Passes);
        }
        if self.read_table.elapsed() < READ_TABLE_EVERY {
            return None;
        }
        self.read_table = Instant::now();
        let far = if self.expectation.is_on_loopback() {
            &host.namespace
        } else {
            &host.peers
        };
        let (local, peer) = (self.expectation.local, self.expectation.peer);
        let stopped = (there == 0 && timeouts(&host.namespace, local, peer) >= TIMEOUTS)
            || (here == 0 && timeouts(far, peer, local) >= TIMEOUTS);
        stopped.then_some(Truth::Blocked)
    }
}

/// The listeners, one for each address. They stay open to the end: a child of another test may keep a closed
/// listener open for a moment, and another one could not be bound then.
#[derive(Default)]
struct Listeners(BTreeMap<SocketAddr, TcpListener>);

impl Listeners {
    /// Connects one address to another, and returns the ends in this order.
    fn connect(
        &mut self,
        from: (&Namespace, SocketAddr),
        to: (&Namespace, SocketAddr),
    ) -> (TcpStream, TcpStream) {
        let listener = self.0.entry(to.1).or_insert_with(|| {
            let listener = to.0.enter(|| TcpListener::bind(to.1));
            listener.expect("a namespace").expect("a listener")
        });
        let open = || {
            let family = if from.1.is_ipv4() {
                AddressFamily::INET
            } else {
                AddressFamily::INET6
            };
            let kind = (SocketType::STREAM, SocketFlags::CLOEXEC);
            let socket = rustix::net::socket_with(family, kind.0, kind.1, None)?;
            rustix::net::bind(&socket, &from.1)?;
            rustix::net::connect(&socket, &to.1)?;
            rustix::io::Result::Ok(TcpStream::from(socket))
        };
        let near = from.0.enter(open).expect("a namespace");
        let near =
            near.unwrap_or_else(|error| panic!("cannot connect {from:?} to {to:?}: {error}"));
        let (far, _) = listener.accept().expect("the other end");
        (near, far)
    }
}

/// How often a socket has timed out without an ACK, from /proc/net/tcp: the retransmissions (`retrnsmt`) and
/// the probes (`timeout`). A socket sends probes while its own host's filters drop the first copy of a
/// segment.
fn timeouts(namespace: &Namespace, local: SocketAddr, remote: SocketAddr) -> u32 {
    let path = match local {
        SocketAddr::V4(_) => "/proc/thread-self/net/tcp",
        SocketAddr::V6(_) => "/proc/thread-self/net/tcp6",
    };
    let table = namespace.enter(|| std::fs::read_to_string(path));
    let table = table.expect("a namespace").expect("the table of sockets");
    let ends = [local, remote].map(as_in_table);
    let field = |line: &str| -> Option<u32> {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let mine = **fields.get(1)? == ends[0] && **fields.get(2)? == ends[1];
        let retransmissions = u32::from_str_radix(fields.get(6)?, 16).ok()?;
        let probes: u32 = fields.get(8)?.parse().ok()?;
        mine.then_some(retransmissions + probes)
    };
    table.lines().find_map(field).unwrap_or(0)
}

/// An address and a port in the format of /proc/net/tcp: the words of the address are in network order, and
/// printed in the byte order of this machine (`get_tcp4_sock`, `get_tcp6_sock`).
fn as_in_table(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| {
        let word = [word[0], word[1], word[2], word[3]];
        format!("{:08X}", u32::from_ne_bytes(word))
    });
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}
