//! UDP to UDP: boundaries, contents, addresses.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};

use netlab::{Lab, Namespace, Need, available};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{UdpGroSegment, UdpGsoSegment};
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{LONGEST, LONGEST_V6, bytes, client, inet, named, receive, socket};
use crate::forbidden_call::ForbiddenCall;
use crate::patience::until;
use crate::random::Random;
use crate::relay::{BINARY, Relay};

/// Around what changes the way of a datagram: nothing, a segment, a page, a fragment.
const SIZES: [usize; 9] = [0, 1, 63, 64, 1472, 1473, 4096, 9000, 65_000];

fn every_size_arrives(listen: &str, target: &str, longest: usize) {
    let target = socket(target);
    let relay = Relay::between(listen, &named(&target), &[]);
    let client = client(&relay);
    let mut random = Random::of_run(1);
    for size in SIZES.into_iter().chain([longest]) {
        let (question, answer) = (bytes(&mut random, size), bytes(&mut random, size));
        client.send(&question).expect("it is sent");
        let (received, from) = receive(&target);
        assert!(received == question, "{size} bytes differ at the target");
        target.send_to(&answer, from).expect("it is answered");
        let (received, from) = receive(&client);
        assert!(received == answer, "{size} bytes differ at the client");
        assert_eq!(from, inet(&relay.address));
    }
}

#[test]
fn datagrams_of_every_size_keep_their_boundaries_both_ways() {
    every_size_arrives("udp:127.0.0.1:0", "127.0.0.1:0", LONGEST);
}

#[test]
fn datagrams_go_over_ipv6_and_between_the_families() {
    every_size_arrives("udp:[::1]:0", "[::1]:0", LONGEST_V6);
    every_size_arrives("udp:[::1]:0", "127.0.0.1:0", LONGEST);
    every_size_arrives("udp:127.0.0.1:0", "[::1]:0", LONGEST);
}

#[test]
fn each_of_many_clients_has_a_session_of_its_own() {
    const CLIENTS: usize = 100;
    const ROUNDS: usize = 20;
    let target = socket("127.0.0.1:0");
    let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &["--threads", "3"]);
    let clients: Vec<_> = (0..CLIENTS).map(|_| client(&relay)).collect();
    let mut random = Random::of_run(2);
    let mut sessions: HashMap<usize, SocketAddr> = HashMap::new();
    for _ in 0..ROUNDS {
        for (number, client) in clients.iter().enumerate() {
            let size = random.below(1400) as usize;
            let question = bytes(&mut random, size);
            client.send(&question).expect("it is sent");
            let (received, from) = receive(&target);
            assert!(received == question, "client {number}: bytes differ");
            assert_eq!(*sessions.entry(number).or_insert(from), from);
            target.send_to(&received, from).expect("it is answered");
            let (received, _) = receive(client);
            assert!(received == question, "client {number}: the answer differs");
        }
    }
    let mut ports: Vec<_> = sessions.values().map(SocketAddr::port).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), CLIENTS);
}

/// Many datagrams in one call come out as they were, before the relay has the kernel merge them and then
/// (`UDP_SEGMENT`, `UDP_GRO`).
#[test]
fn merged_datagrams_come_out_one_by_one() {
    const SEGMENT: usize = 1000;
    const WHOLE: usize = 20;
    const TRAINS: usize = 3;
    let target = socket("127.0.0.1:0");
    let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &[]);
    let client = client(&relay);
    let mut random = Random::of_run(3);
    let segment = SEGMENT as i32;
    for socket in [&client, &target] {
        setsockopt(socket, UdpGsoSegment, &segment).expect("segmentation");
    }
    for _ in 0..TRAINS {
        // The last one is shorter.
        let message = bytes(&mut random, WHOLE * SEGMENT + 7);
        client.send(&message).expect("it is sent");
        let mut from = None;
        for piece in message.chunks(SEGMENT) {
            let (received, sender) = receive(&target);
            assert!(received == piece, "{} bytes differ", piece.len());
            from = Some(sender);
        }
        target
            .send_to(&message, from.expect("a sender"))
            .expect("it is answered");
        for piece in message.chunks(SEGMENT) {
            let (received, _) = receive(&client);
            assert!(received == piece, "{} bytes differ", piece.len());
        }
    }
}

/// The relay has the kernel merge what comes in trains, and sends it on in one piece, which a target that wants such pieces gets.
#[test]
fn trains_go_on_together() {
    const SEGMENT: usize = 1000;
    const WHOLE: usize = 20;
    let target = socket("127.0.0.1:0");
    setsockopt(&target, UdpGroSegment, &true).expect("merging");
    let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &[]);
    let client = client(&relay);
    setsockopt(&client, UdpGsoSegment, &(SEGMENT as i32)).expect("segmentation");
    let message = bytes(&mut Random::of_run(4), WHOLE * SEGMENT);
    until("a train arrives in one piece", || {
        client.send(&message).expect("it is sent");
        let mut left = &message[..];
        let mut pieces = 0;
        while !left.is_empty() {
            let (received, _) = receive(&target);
            assert!(
                left.starts_with(&received),
                "{} bytes differ",
                received.len()
            );
            left = &left[received.len()..];
            pieces += 1;
        }
        pieces == 1
    });
}

/// Whatever the kernel merges of what one client sends, single datagrams of another do not have it forget where they end.
#[test]
fn trains_beside_single_datagrams_stay_apart() {
    const SEGMENT: usize = 100;
    const WHOLE: usize = 8;
    const TRAINS: usize = 3;
    let target = socket("127.0.0.1:0");
    let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &[]);
    let (trains, singles) = (client(&relay), client(&relay));
    setsockopt(&trains, UdpGsoSegment, &(SEGMENT as i32)).expect("segmentation");
    let train = [b't'; WHOLE * SEGMENT];
    for count in (0..70).cycle().take(200) {
        for _ in 0..count {
            singles.send(b"single").expect("it is sent");
        }
        for _ in 0..TRAINS {
            trains.send(&train).expect("it is sent");
        }
        for _ in 0..count + TRAINS * WHOLE {
            let (received, _) = receive(&target);
            assert!(
                received == b"single" || received == train[..SEGMENT],
                "{} bytes after {count} single datagrams",
                received.len()
            );
        }
    }
}

/// The congestion marks of the IP header go with a datagram (RFC 3168), as QUIC expects it.
#[test]
fn congestion_marks_are_kept() {
    /// ECT(0).
    const MARK: u32 = 2;
    let target = socket("127.0.0.1:0");
    let receiver = UdpSocketState::new((&target).into()).expect("its options");
    let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &[]);
    let client = client(&relay);
    SockRef::from(&client)
        .set_tos_v4(MARK)
        .expect("it is marked");
    client.send(b"marked").expect("it is sent");
    let mut buffer = [0u8; 64];
    let mut meta = [RecvMeta::default()];
    until("it arrives", || {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        receiver
            .recv((&target).into(), &mut slices, &mut meta)
            .is_ok()
    });
    assert_eq!(meta[0].ecn, Some(EcnCodepoint::Ect0));
    assert_eq!(&buffer[..meta[0].len], b"marked");
}

/// A listener on every address answers from the one that the client has sent to.
#[test]
fn a_wildcard_listener_answers_from_the_address_that_was_asked() {
    if !available(Need::Netns) {
        return;
    }
    let host = Namespace::new("own-addresses").expect("a namespace");
    let target = host.enter(|| socket("127.0.0.1:0")).expect("the namespace");
    let name = named(&target);
    let mut inside = host.command(BINARY);
    inside
        .args(["relay", "udp::7000", &name])
        .env_remove("SPLICED_LOG");
    let relay = Relay::spawn(&mut inside);
    assert_eq!(relay.address, "udp:[::]:7000");
    for (own, asked) in [
        ("127.0.0.5:0", "127.0.0.1:7000"),
        ("127.0.0.5:0", "127.0.0.9:7000"),
        ("127.0.0.1:0", "127.1.2.3:7000"),
        ("[::1]:0", "[::1]:7000"),
    ] {
        let client = host.enter(|| socket(own)).expect("the namespace");
        client.send_to(b"question", asked).expect("it is sent");
        let (_, from) = receive(&target);
        target.send_to(b"answer", from).expect("it is answered");
        let (received, from) = receive(&client);
        assert_eq!(received, b"answer");
        assert_eq!(from, asked.parse().expect("an address"));
    }
    // One client that asks two addresses has two sessions, since each expects its own answers.
    let client = host.enter(|| socket("127.0.0.5:0")).expect("the namespace");
    let ports = ["127.0.0.1:7000", "127.0.0.9:7000"].map(|asked| {
        client.send_to(b"question", asked).expect("it is sent");
        receive(&target).1.port()
    });
    assert_ne!(ports[0], ports[1]);
    let loopback: IpAddr = [127, 0, 0, 1].into();
    assert_eq!(target.local_addr().expect("its address").ip(), loopback);
}

/// Nobody can answer from a broadcast address, nor to port 0. What a client causes that way is its own affair: others'
/// trains and congestion marks are kept. Each thread gets a copy, and one passes it on.
#[test]
fn a_client_of_a_broadcast_address_is_answered_and_costs_others_nothing() {
    const MARK: u32 = 2;
    if !available(Need::Netns) {
        return;
    }
    let host = Namespace::new("broadcast").expect("a namespace");
    let target = host.enter(|| socket("127.0.0.1:0")).expect("the namespace");
    let name = named(&target);
    let mut inside = host.command(BINARY);
    let arguments = ["relay", "udp:0.0.0.0:7000", &name, "--threads", "4"];
    inside.args(arguments).env_remove("SPLICED_LOG");
    let _relay = Relay::spawn(&mut inside);
    let client = host.enter(|| socket("127.0.0.5:0")).expect("the namespace");
    client.set_broadcast(true).expect("its option");
    let mut session = None;
    for _ in 0..20 {
        let asked = "127.255.255.255:7000";
        client.send_to(b"to all", asked).expect("it is sent");
        let (_, from) = receive(&target);
        assert_eq!(*session.get_or_insert(from), from);
        target.send_to(b"answer", from).expect("it is answered");
        let (received, from) = receive(&client);
        assert_eq!(received, b"answer");
        assert_eq!(from, "127.0.0.1:7000".parse().expect("an address"));
    }
    let other = host.enter(|| socket("127.0.0.6:0")).expect("the namespace");
    SockRef::from(&other).set_tos_v4(MARK).expect("its mark");
    other.connect("127.0.0.1:7000").expect("it connects");
    let receiver = UdpSocketState::new((&target).into()).expect("its options");
    other.send(b"marked").expect("it is sent");
    let mut buffer = [0; 64];
    let mut meta = [RecvMeta::default()];
    until("it arrives", || {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let received = receiver.recv((&target).into(), &mut slices, &mut meta);
        received.is_ok()
    });
    assert_eq!(meta[0].ecn, Some(EcnCodepoint::Ect0));
}

/// The answers to it would come back as questions, for ever.
#[test]
fn a_datagram_that_is_said_to_come_from_the_listener_is_dropped() {
    const UDP_HEADER_BYTES: u16 = 8;
    if !available(Need::Netns) {
        return;
    }
    let host = Namespace::new("forged").expect("a namespace");
    let target = host.enter(|| socket("127.0.0.1:0")).expect("the namespace");
    let name = named(&target);
    for listener in ["0.0.0.0:7000", "[::]:7000", "127.0.0.1:7000"] {
        let mut inside = host.command(BINARY);
        let listener = format!("udp:{listener}");
        inside
            .args(["relay", &listener, &name, "--threads", "1"])
            .env_remove("SPLICED_LOG");
        let relay = Relay::spawn(&mut inside);
        let ports = [7000_u16, 7000, UDP_HEADER_BYTES + 4, 0].map(u16::to_be_bytes);
        let forged = [&ports.concat()[..], b"loop"].concat();
        let sent = host.enter(|| {
            let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP))?;
            let local: SocketAddr = ([127, 0, 0, 1], 0).into();
            raw.send_to(&forged, &local.into())
        });
        assert_eq!(sent.expect("the namespace").expect("sent"), forged.len());
        relay.wait_logged("it is said to come from");
        let other = host.enter(|| socket("127.0.0.1:0")).expect("the namespace");
        other.send_to(b"other", "127.0.0.1:7000").expect("sent");
        assert_eq!(receive(&target).0, b"other");
    }
}

/// Programs that send from the port that they listen on are clients, also where the relay cannot know its host's addresses.
#[test]
fn a_client_with_the_port_of_the_listener_is_served_without_netlink() {
    if !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().expect("namespaces");
    let target = lab.relay().enter(|| socket("127.0.0.1:0"));
    let target = target.expect("entered");
    let Some(mut inside) = ForbiddenCall::NETLINK.spliced(lab.relay().command("perl")) else {
        return;
    };
    inside.args(["relay", "udp:0.0.0.0:7000", &named(&target)]);
    let _relay = Relay::spawn(inside.env_remove("SPLICED_LOG"));
    let client = lab.client().enter(|| socket("0.0.0.0:7000"));
    let client = client.expect("entered");
    client.connect((Lab::RELAY_V4, 7000)).expect("it connects");
    client.send(b"question").expect("it is sent");
    let (received, from) = receive(&target);
    assert_eq!(received, b"question");
    target.send_to(b"answer", from).expect("it is answered");
    assert_eq!(receive(&client).0, b"answer");
}

/// Merged datagrams that are too long for the next link cannot go out merged, and go out as fragments.
#[test]
fn merged_datagrams_pass_a_narrower_link_one_by_one() {
    const SEGMENT: usize = 1000;
    const WHOLE: usize = 10;
    const NARROW: &str = "600";
    if !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().expect("namespaces");
    for (namespace, device) in [(lab.relay(), Lab::TO_SERVER), (lab.server(), Lab::TO_RELAY)] {
        let mut ip = namespace.command("ip");
        let set = ip.args(["link", "set", device, "mtu", NARROW]).status();
        assert!(set.expect("ip").success());
    }
    let at_server = format!("{}:7001", Lab::SERVER_V4);
    let target = lab.server().enter(|| socket(&at_server)).expect("entered");
    let at_relay = format!("udp:{}:7000", Lab::RELAY_V4);
    let mut inside = lab.relay().command(BINARY);
    inside
        .args(["relay", &at_relay, &named(&target)])
        .env_remove("SPLICED_LOG");
    let relay = Relay::spawn(&mut inside);
    let client = lab
        .client()
        .enter(|| {
            let client = socket(&format!("{}:0", Lab::CLIENT_V4));
            client.connect(inet(&relay.address)).expect("it connects");
            client
        })
        .expect("entered");
    let message = bytes(&mut Random::of_run(6), WHOLE * SEGMENT);
    setsockopt(&client, UdpGsoSegment, &(SEGMENT as i32)).expect("segmentation");
    client.send(&message).expect("it is sent");
    for piece in message.chunks(SEGMENT) {
        assert!(receive(&target).0 == piece, "{} bytes differ", piece.len());
    }
}
