//! UNIX datagram sockets, to one another and to UDP.

use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use netlab::Scratch;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use socket2::SockRef;

use super::{bytes, client, named, receive, socket};
use crate::log::Log;
use crate::patience::PATIENCE;
use crate::random::Random;
use crate::relay::Relay;

/// The sizes of datagrams that both kinds take.
const SIZES: [usize; 6] = [0, 1, 64, 1500, 9000, 65_507];

fn bound(scratch: &Scratch, name: &str) -> UnixDatagram {
    let socket = UnixDatagram::bind(scratch.path().join(name)).expect("it is bound");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a time limit");
    socket
}

fn at(scratch: &Scratch, name: &str) -> String {
    format!("unixgram:{}", scratch.path().join(name).display())
}

#[test]
fn unix_datagrams_keep_their_boundaries_both_ways() {
    let scratch = Scratch::new("unixgram").expect("a directory");
    let target = bound(&scratch, "target");
    let relay = Relay::between(&at(&scratch, "relay"), &at(&scratch, "target"), &[]);
    assert_eq!(relay.address, at(&scratch, "relay"));
    let client = bound(&scratch, "client");
    client
        .connect(scratch.path().join("relay"))
        .expect("it connects");
    let mut random = Random::of_run(4);
    let mut buffer = vec![0; 300_000];
    for size in SIZES.into_iter().chain([150_000]) {
        let (question, answer) = (bytes(&mut random, size), bytes(&mut random, size));
        client.send(&question).expect("it is sent");
        let (length, from) = target.recv_from(&mut buffer).expect("it arrives");
        assert!(buffer[..length] == question, "{size} bytes differ");
        target.send_to_addr(&answer, &from).expect("it is answered");
        let length = client.recv(&mut buffer).expect("it arrives");
        assert!(buffer[..length] == answer, "{size} bytes of answer differ");
    }
    drop(relay);
}

#[test]
fn udp_clients_reach_a_unix_target_and_the_reverse() {
    let scratch = Scratch::new("both-kinds").expect("a directory");
    let mut random = Random::of_run(5);
    let mut buffer = vec![0; 70_000];

    let unix_target = bound(&scratch, "target");
    let relay = Relay::between("udp:127.0.0.1:0", &at(&scratch, "target"), &[]);
    let udp_client = client(&relay);
    for size in SIZES {
        let question = bytes(&mut random, size);
        udp_client.send(&question).expect("it is sent");
        let (length, from) = unix_target.recv_from(&mut buffer).expect("it arrives");
        assert!(buffer[..length] == question, "{size} bytes differ");
        unix_target
            .send_to_addr(&question, &from)
            .expect("it is answered");
        assert!(receive(&udp_client).0 == question, "{size} bytes of answer");
    }

    let udp_target = socket("127.0.0.1:0");
    let abstract_name = format!("spliced-test-both-{}", std::process::id());
    let listen = format!("unixgram:@{abstract_name}");
    let relay = Relay::between(&listen, &named(&udp_target), &[]);
    assert_eq!(relay.address, listen);
    let unix_client = bound(&scratch, "client");
    let name = SocketAddr::from_abstract_name(&abstract_name);
    let name = name.expect("a name");
    for size in SIZES {
        let question = bytes(&mut random, size);
        unix_client
            .send_to_addr(&question, &name)
            .expect("it is sent");
        let (received, from) = receive(&udp_target);
        assert!(received == question, "{size} bytes differ");
        udp_target.send_to(&question, from).expect("it is answered");
        let length = unix_client.recv(&mut buffer).expect("it arrives");
        assert!(buffer[..length] == question, "{size} bytes of answer");
    }
}

/// Whether a session fails or none can be opened: each of a client's datagrams that the target refuses is told of.
#[test]
fn a_target_that_is_gone_is_told_of_each_time() {
    let scratch = Scratch::new("unix-gone").expect("a directory");
    let target = bound(&scratch, "target");
    let relay = Relay::between("udp:127.0.0.1:0", &at(&scratch, "target"), &[]);
    let client = client(&relay);
    client.send(b"taken").expect("it is sent");
    assert_eq!(target.recv(&mut [0; 10]).expect("it arrives"), 5);
    drop(target);
    let refused = |client: &UdpSocket| {
        client.send(b"refused").expect("it is sent");
        client.recv(&mut [0; 10]).expect_err("no answer").kind()
    };
    for _ in 0..3 {
        assert_eq!(refused(&client), ErrorKind::ConnectionRefused);
    }
    fs::remove_file(scratch.path().join("target")).expect("its file");
    for _ in 0..3 {
        assert_eq!(refused(&client), ErrorKind::ConnectionRefused);
    }
}

/// A UNIX socket takes no trains: what the kernel has merged goes out one by one.
#[test]
fn merged_datagrams_reach_a_unix_socket_one_by_one() {
    const CARS: [usize; 3] = [100, 100, 50];
    /// The kernel begins to merge them after some.
    const TRAINS: usize = 20;
    let scratch = Scratch::new("unix-trains").expect("a directory");
    let mut buffer = [0; 1000];
    let message = bytes(&mut Random::of_run(12), CARS.iter().sum());
    let cars: Vec<_> = message.chunks(CARS[0]).collect();

    let unix_target = bound(&scratch, "target");
    let relay = Relay::between("udp:127.0.0.1:0", &at(&scratch, "target"), &[]);
    let udp_client = client(&relay);
    setsockopt(&udp_client, UdpGsoSegment, &(CARS[0] as i32)).expect("segmentation");
    for _ in 0..TRAINS {
        udp_client.send(&message).expect("it is sent");
        for car in &cars {
            let length = unix_target.recv(&mut buffer).expect("it arrives");
            assert!(buffer[..length] == **car, "{length} bytes");
        }
    }

    let udp_target = socket("127.0.0.1:0");
    let relay = Relay::between(&at(&scratch, "relay"), &named(&udp_target), &[]);
    let unix_client = bound(&scratch, "client");
    let path = scratch.path().join("relay");
    unix_client.send_to(b"question", path).expect("it is sent");
    let (_, session) = receive(&udp_target);
    setsockopt(&udp_target, UdpGsoSegment, &(CARS[0] as i32)).expect("segmentation");
    for _ in 0..TRAINS {
        udp_target
            .send_to(&message, session)
            .expect("it is answered");
        for car in &cars {
            let length = unix_client.recv(&mut buffer).expect("it arrives");
            assert!(buffer[..length] == **car, "{length} bytes");
        }
    }
    drop(relay);
}

#[test]
fn a_client_without_a_name_is_relayed_one_way() {
    let scratch = Scratch::new("unnamed").expect("a directory");
    let log = Log::below(&scratch);
    let target = bound(&scratch, "target");
    let options = ["--access-log", &log.path];
    let mut relay = Relay::between(&at(&scratch, "relay"), &at(&scratch, "target"), &options);
    let client = UnixDatagram::unbound().expect("a socket");
    client
        .connect(scratch.path().join("relay"))
        .expect("it connects");
    client.send(b"one way").expect("it is sent");
    let mut buffer = [0; 100];
    let (length, from) = target.recv_from(&mut buffer).expect("it arrives");
    assert_eq!(&buffer[..length], b"one way");
    target.send_to_addr(b"nobody", &from).expect("it is sent");
    relay.terminate();
    let entry = &log.entries()[0];
    assert_eq!(entry["client"], "unnamed");
    assert_eq!(entry["target_to_client_dropped"], 1);
    assert!(!scratch.path().join("relay").exists());
}

/// What a target that does not read has no room for is dropped and counted; the relay does not wait.
#[test]
fn a_target_that_does_not_read_stops_nobody() {
    const MANY: u64 = 2000;
    let scratch = Scratch::new("full").expect("a directory");
    let log = Log::below(&scratch);
    let target = bound(&scratch, "target");
    let options = ["--access-log", &log.path];
    let mut relay = Relay::between(&at(&scratch, "relay"), &at(&scratch, "target"), &options);
    let client = bound(&scratch, "client");
    client
        .connect(scratch.path().join("relay"))
        .expect("it connects");
    for _ in 0..MANY {
        // It waits while the relay's queue is full, so that none is lost before the relay.
        client.send(&[7; 100]).expect("it is sent");
    }
    relay.terminate();
    let entry = &log.entries()[0];
    let count = |name: &str| entry[name].as_u64().expect("a number");
    let (passed, dropped) = (
        count("client_to_target_datagrams"),
        count("client_to_target_dropped"),
    );
    assert_eq!(passed + dropped, MANY);
    assert!(dropped > 0);
    let mut buffer = [0; 200];
    for _ in 0..passed {
        assert_eq!(target.recv(&mut buffer).expect("it has arrived"), 100);
    }
}

/// A datagram that the other kind of socket does not take is counted, and those after it are passed on.
#[test]
fn a_datagram_that_is_too_long_for_the_target_is_dropped_and_counted() {
    let scratch = Scratch::new("too-long").expect("a directory");
    let log = Log::below(&scratch);
    let target = socket("127.0.0.1:0");
    let options = ["--access-log", &log.path];
    let mut relay = Relay::between(&at(&scratch, "relay"), &named(&target), &options);
    let client = bound(&scratch, "client");
    client
        .connect(scratch.path().join("relay"))
        .expect("it connects");
    client.send(&[7; 65_508]).expect("it is sent");
    client.send(b"short").expect("it is sent");
    assert_eq!(receive(&target).0, b"short");
    // More than a buffer of the relay holds.
    SockRef::from(&client)
        .set_send_buffer_size(300_000)
        .expect("its buffer");
    client.send(&[7; 240_000]).expect("it is sent");
    client.send(b"short").expect("it is sent");
    assert_eq!(receive(&target).0, b"short");
    relay.terminate();
    let entry = &log.entries()[0];
    assert_eq!(entry["client_to_target_dropped"], 2);
    assert_eq!(entry["client_to_target_datagrams"], 2);
    relay.wait_logged("dropped 2 (no room 0, too long 2, no way 0)");
}
