//! The contract of datagrams: each arrives once or not at all, whole, by itself, and at no other client.

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind, Read as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use netlab::Scratch;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use socket2::{Domain, SockAddr, Socket, Type};

use super::bounds::RESTING;
use super::crowd::Crowd;
use super::{Over, bytes, client, inet, named, receive, socket};
use crate::patience::PATIENCE;
use crate::random::Random;
use crate::relay::Relay;

/// What makes a datagram's contents, and so its length, different from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mark {
    client: u32,
    sequence: u32,
    is_answer: bool,
}

impl Mark {
    const BYTES: usize = 9;

    fn datagram(self) -> Vec<u8> {
        let seed = u64::from(self.client) << 33
            | u64::from(self.sequence) << 1
            | u64::from(self.is_answer);
        let mut random = Random::seeded(seed);
        let length = random.below(1400) as usize;
        let mut datagram = Vec::with_capacity(Self::BYTES + length);
        datagram.extend(self.client.to_ne_bytes());
        datagram.extend(self.sequence.to_ne_bytes());
        datagram.push(self.is_answer.into());
        datagram.extend(bytes(&mut random, length));
        datagram
    }

    /// The mark of a datagram that has arrived, which must be as it was sent.
    fn of(datagram: &[u8]) -> Self {
        let (client, rest) = datagram.split_first_chunk().expect("a client");
        let (sequence, rest) = rest.split_first_chunk().expect("a number");
        let mark = Self {
            client: u32::from_ne_bytes(*client),
            sequence: u32::from_ne_bytes(*sequence),
            is_answer: rest[0] == 1,
        };
        assert!(mark.datagram() == datagram, "{mark:?} differs");
        mark
    }

    fn answer(self) -> Self {
        Self {
            is_answer: true,
            ..self
        }
    }
}

/// A socket of either kind. `name` is its address as the command line has it, with the port 0 for any.
fn bound(name: &str) -> Socket {
    let address = address(name);
    let domain = match address.as_socket() {
        Some(SocketAddr::V4(_)) => Domain::IPV4,
        Some(SocketAddr::V6(_)) => Domain::IPV6,
        None => Domain::UNIX,
    };
    let socket = Socket::new(domain, Type::DGRAM, None).expect("a socket");
    socket.bind(&address).expect(name);
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a time limit");
    socket
}

fn address(name: &str) -> SockAddr {
    match name.split_once(':').expect("a kind") {
        ("udp", inet) => inet.parse::<SocketAddr>().expect("an address").into(),
        (_, path) => SockAddr::unix(path).expect("a path"),
    }
}

/// The target's end: what has arrived there, and who has sent it.
#[derive(Default)]
struct Arrived {
    marks: HashSet<Mark>,
    senders: HashMap<SockAddr, u32>,
}

impl Arrived {
    fn add(&mut self, datagram: &[u8], from: SockAddr) -> Mark {
        let mark = Mark::of(datagram);
        assert!(!mark.is_answer && self.marks.insert(mark), "{mark:?} twice");
        let client = *self.senders.entry(from).or_insert(mark.client);
        assert_eq!(client, mark.client, "two clients have one session");
        mark
    }
}

/// `clients` clients of each kind at once, each with `rounds` numbered datagrams, `at_once` of which are on their way.
fn keeps_the_contract(listen: &str, to: &str, clients: u32, rounds: u32, at_once: usize) {
    let scratch = Scratch::new("contract").expect("a directory");
    let below = |name: &str, file: &str| match name {
        "unixgram" => format!("unixgram:{}", scratch.path().join(file).display()),
        udp => udp.to_owned(),
    };
    let target = bound(&below(to, "target"));
    let to = match target.local_addr().expect("its address").as_socket() {
        Some(inet) => format!("udp:{inet}"),
        None => below(to, "target"),
    };
    let relay = Relay::between(&below(listen, "relay"), &to, &[]);
    let relay_address = address(&relay.address);
    let sockets: Vec<_> = (0..clients)
        .map(|number| {
            let client = bound(&below(listen, &number.to_string()));
            client.connect(&relay_address).expect("it connects");
            client
        })
        .collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let mut arrived = Arrived::default();
            target.set_nonblocking(true).expect("non-blocking");
            let mut buffer = vec![0; 2000];
            while !is_over.load(Ordering::Relaxed) {
                match peeked(&target, &mut buffer) {
                    Ok((length, from)) => {
                        let mark = arrived.add(&buffer[..length], from.clone());
                        let answer = mark.answer().datagram();
                        target.send_to(&answer, &from).expect("it is answered");
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
            arrived
        });
        // The other thread ends after a failure as well.
        let over = Over(&is_over);
        let mut buffer = vec![0; 2000];
        for sequence in 0..rounds {
            for (start, group) in (0..).step_by(at_once).zip(sockets.chunks(at_once)) {
                let marks = (start..).map(|client| Mark {
                    client,
                    sequence,
                    is_answer: false,
                });
                let marks: Vec<_> = marks.take(group.len()).collect();
                for (mark, client) in marks.iter().zip(group) {
                    client.send(&mark.datagram()).expect("it is sent");
                }
                for (mark, client) in marks.iter().zip(group) {
                    let (length, _) = peeked(client, &mut buffer).expect("an answer");
                    assert_eq!(Mark::of(&buffer[..length]), mark.answer());
                }
            }
        }
        drop(over);
        let arrived = echo.join().expect("no panic");
        assert_eq!(arrived.marks.len(), (clients * rounds) as usize);
        assert_eq!(arrived.senders.len(), clients as usize);
    });
    for client in &sockets {
        client.set_nonblocking(true).expect("non-blocking");
        assert!(peeked(client, &mut [0; 1]).is_err(), "an answer came twice");
    }
}

/// Receives a datagram of either kind of socket, and its sender.
fn peeked(socket: &Socket, buffer: &mut [u8]) -> io::Result<(usize, SockAddr)> {
    let mut socket: &Socket = socket;
    let (_, from) = socket.peek_from(&mut [])?;
    Ok((socket.read(buffer)?, from))
}

const UDP_4: &str = "udp:127.0.0.1:0";
const UDP_6: &str = "udp:[::1]:0";
const UNIX: &str = "unixgram";

/// More datagrams at a time than a batch, and fewer than a socket's buffer holds.
const AT_ONCE: usize = 50;

/// Fewer than a UNIX socket holds (`net.unix.max_dgram_qlen` is 10).
const AT_ONCE_UNIX: usize = 5;

#[test]
fn a_thousand_clients_of_udp_keep_their_datagrams_apart() {
    keeps_the_contract(UDP_4, UDP_4, 1000, 10, AT_ONCE);
}

#[test]
fn clients_of_ipv6_and_of_the_other_family_keep_their_datagrams_apart() {
    keeps_the_contract(UDP_6, UDP_6, 200, 10, AT_ONCE);
    keeps_the_contract(UDP_6, UDP_4, 200, 10, AT_ONCE);
    keeps_the_contract(UDP_4, UDP_6, 200, 10, AT_ONCE);
}

#[test]
fn clients_of_unix_sockets_and_mixes_keep_their_datagrams_apart() {
    keeps_the_contract(UNIX, UNIX, 100, 10, AT_ONCE_UNIX);
    keeps_the_contract(UDP_4, UNIX, 100, 10, AT_ONCE_UNIX);
    keeps_the_contract(UNIX, UDP_6, 100, 10, AT_ONCE_UNIX);
}

/// Trains of several clients at a time (`UDP_SEGMENT`), which the kernel merges again on their way (`UDP_GRO`).
#[test]
fn trains_of_several_clients_arrive_as_single_datagrams() {
    /// What they send in a round fits into the target's buffer, also if each datagram comes alone.
    const CLIENTS: u8 = 6;
    const ROUNDS: u8 = 10;
    const CARS: u8 = 12;
    const CAR_BYTES: usize = 700;
    let target = socket("127.0.0.1:0");
    let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &["--threads", "2"]);
    let clients: Vec<_> = (0..CLIENTS).map(|_| client(&relay)).collect();
    let size = CAR_BYTES as i32;
    let car = |client: u8, round: u8, car: u8| {
        let length = CAR_BYTES - usize::from(car == CARS - 1) * 5;
        let mut bytes = vec![client ^ round ^ car; length];
        bytes[..3].copy_from_slice(&[client, round, car]);
        bytes
    };
    let train = |client, round| -> Vec<u8> {
        (0..CARS)
            .flat_map(|number| car(client, round, number))
            .collect()
    };
    setsockopt(&target, UdpGsoSegment, &size).expect("segmentation");
    for client in &clients {
        setsockopt(client, UdpGsoSegment, &size).expect("segmentation");
    }
    for round in 0..ROUNDS {
        for (number, client) in (0..).zip(&clients) {
            client.send(&train(number, round)).expect("it is sent");
        }
        let mut sessions = HashMap::new();
        let mut next_cars = [0; CLIENTS as usize];
        for _ in 0..u32::from(CLIENTS) * u32::from(CARS) {
            let (received, from) = receive(&target);
            let number = received[0];
            let next = &mut next_cars[usize::from(number)];
            assert!(
                received == car(number, round, *next),
                "{:?}",
                &received[..3]
            );
            *next += 1;
            sessions.insert(number, from);
        }
        for (number, session) in sessions {
            target
                .send_to(&train(number, round), session)
                .expect("it is answered");
        }
        for (number, client) in (0..).zip(&clients) {
            for next in 0..CARS {
                assert!(receive(client).0 == car(number, round, next));
            }
        }
    }
}

#[test]
fn twenty_thousand_sessions_come_and_go_and_leave_nothing() {
    sessions_come_and_go(20_000);
}

#[test]
#[ignore = "soak: takes minutes"]
fn a_million_sessions_come_and_go_and_leave_nothing() {
    sessions_come_and_go(1_000_000);
}

/// Clients that ask once, most of whose sessions make room.
fn sessions_come_and_go(clients: u32) {
    /// Fewer than a socket's buffer holds, and than the sessions that may be open.
    const AT_ONCE: u32 = 50;
    const MOST: usize = 400;
    const GROWTH_BYTES: u64 = 4 << 20;
    let target = socket("127.0.0.1:0");
    let most = MOST.to_string();
    let options = ["--max-sessions", &most, "--idle-timeout", "2s"];
    let mut relay = Relay::between("udp:127.0.0.1:0", &named(&target), &options);
    let before = relay.descriptors();
    let crowd = Crowd::of(inet(&relay.address));
    let mut buffer = [0; 2000];
    let mut memory = 0;
    for start in (0..clients).step_by(AT_ONCE as usize) {
        let mark = |client| Mark {
            client,
            sequence: 0,
            is_answer: false,
        };
        for client in start..start + AT_ONCE {
            crowd.send(client, &mark(client).datagram());
        }
        let mut asked = HashSet::new();
        for _ in 0..AT_ONCE {
            let (received, from) = receive(&target);
            let mark = Mark::of(&received);
            assert!(asked.insert(mark), "{mark:?} twice");
            let answer = mark.answer().datagram();
            target.send_to(&answer, from).expect("it is answered");
        }
        for _ in 0..AT_ONCE {
            let (client, length) = crowd.receive(&mut buffer);
            let answer = Mark::of(&buffer[..length]);
            assert_eq!(answer, mark(client).answer());
            assert!(asked.remove(&mark(client)), "{answer:?} twice");
        }
        if start == clients / 4 {
            memory = relay.resident_bytes();
        }
        assert!(relay.all_descriptors() <= before + MOST + RESTING + 8);
    }
    let growth = relay.resident_bytes().saturating_sub(memory);
    assert!(growth < GROWTH_BYTES, "{growth} bytes");
    relay.wait_descriptors(before);
    relay.terminate();
    relay.wait_logged(&format!("{clients} sessions, "));
    relay.wait_logged(&format!("to the target {clients} datagrams, dropped 0"));
    relay.wait_logged(&format!("to the clients {clients} datagrams, dropped 0"));
}
