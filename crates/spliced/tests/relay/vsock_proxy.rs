//! `spliced run` with listeners and servers of VSOCK, through its loopback (`vsock_loopback`, Linux 5.6 on).

use std::os::fd::{AsRawFd as _, OwnedFd};

use netlab::Scratch;
use nix::sys::socket::{VsockAddr, bind, connect};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, listen, recv, send, socket_with,
    sockopt,
};
use serde_json::Value;

use crate::log::Log;
use crate::patience::{PATIENCE, until, until_found};
use crate::payload::Payload;
use crate::peer::{Peer, exchange};
use crate::proxy::Proxy;
use crate::relay::{Relay, command};
use crate::seqpacket::{accepted, at, connected, message, server_at};
use crate::server::Server;
use crate::usage::failure;

/// TCP in, VSOCK to the proxy, which passes over a server that is gone, and reads the first bytes.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn vsock_listeners_route_and_pass_over_a_server_that_is_gone() {
    const BYTES: u64 = 1_000_000;
    let scratch = Scratch::new("vsock-proxy").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new();
    let proxy = Proxy::run(&format!(
        "[[listener]]\nname = \"l\"\naddress = \"vsock::70710\"\naccess_log = {:?}\n[[listener.route]]\nsni = \"example.org\"\n\
         reset = true\n[[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = [\"vsock:1:70711\", {:?}]\n",
        log.path, server.address
    ));
    let outer = Relay::to("vsock:1:70710", &[]);
    let client = Peer::connect(&outer.address);
    // The route needs a byte.
    client.send(Payload::new(9), 0, 1000);
    let far = server.accept();
    far.expect(Payload::new(9), 0, 1000);
    exchange(&client, &far, 1, BYTES, BYTES);
    let entry = until_found("it is logged", || log.entries().into_iter().next());
    let address = entry["client"].as_str().expect("an address");
    assert!(address.starts_with("vsock:"), "{entry}");
    for (field, value) in [
        ("route", 2.into()),
        ("server", Value::from(server.address.as_str())),
        ("engine", "copy".into()),
        (
            "why_engine",
            "no other engine takes its kind of socket".into(),
        ),
        ("outcome", "end of stream".into()),
    ] {
        assert_eq!(entry[field], value, "{field} of {entry}");
    }
    let gone = &proxy.of("backends", "b")["servers"][0];
    let last = gone["last_error"].to_string();
    assert!(last.contains("refused"), "{gone}");
}

/// Messages in, over VSOCK to the proxy, and to the server that is there.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn vsock_listeners_keep_messages_apart() {
    let scratch = Scratch::new("vsock-proxy").expect("a directory");
    let server = server_at(&scratch, "one");
    let servers = ["vsock-seqpacket:1:70713".to_owned(), at(&scratch, "one")];
    let proxy = Proxy::run(&format!(
        "[[listener]]\nname = \"l\"\naddress = \"vsock-seqpacket::70712\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = {servers:?}\n"
    ));
    let _outer = Relay::between(&at(&scratch, "relay"), "vsock-seqpacket:1:70712", &[]);
    let client = connected(&scratch);
    let far = accepted(&server);
    for size in [1, 4096, 65_536] {
        let text = Payload::new(1).bytes(size);
        for (from, to) in [(&client, &far), (&far, &client)] {
            send(from, &text, SendFlags::empty()).expect("it is sent");
            assert!(message(to) == text, "{size} bytes differ");
        }
    }
    let session = &proxy.sessions()[0];
    assert_eq!(session["client_to_target_messages"], 3);
    drop(client);
    assert!(message(&far).is_empty());
}

/// The kernel sends the part of a message that its peer has room for, and then reports that it has sent none.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn no_part_of_a_message_passes_for_a_whole_one() {
    const COUNT: usize = 40;
    const BYTES: usize = 90_001;
    let scratch = Scratch::new("vsock-torn").expect("a directory");
    let log = Log::below(&scratch);
    let server = server_at(&scratch, "target");
    let _inner = Relay::between("vsock-seqpacket::70714", &at(&scratch, "target"), &[]);
    let _outer = Relay::between(
        &at(&scratch, "relay"),
        "vsock-seqpacket:1:70714",
        &["--access-log", &log.path],
    );
    let client = connected(&scratch);
    sockopt::set_socket_timeout(&client, sockopt::Timeout::Send, Some(PATIENCE)).expect("a limit");
    let text = |number: usize| Payload::new(number as u64).bytes(BYTES);
    // Nobody reads.
    let failed =
        (0..COUNT).find(|number| send(&client, &text(*number), SendFlags::NOSIGNAL).is_err());
    assert!(failed.is_some(), "there is room for all of them");
    let entry = until_found("it is logged", || log.entries().into_iter().next());
    let outcome = entry["outcome"].to_string();
    assert!(outcome.contains("Message too long"), "{entry}");
    let far = accepted(&server);
    let mut buffer = vec![0; 2 * BYTES];
    let mut whole = 0;
    while let Ok((_, length @ 1..)) = recv(&far, &mut buffer[..], RecvFlags::empty()) {
        assert!(
            buffer[..length] == text(whole),
            "message {whole} differs: {length} bytes"
        );
        whole += 1;
    }
    assert!((1..COUNT).contains(&whole), "{whole} messages");
}

/// A message of length zero, which VSOCK does not have, is not lost in silence.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn an_empty_message_to_vsock_ends_its_connection() {
    let scratch = Scratch::new("vsock-empty").expect("a directory");
    let log = Log::below(&scratch);
    let server = server_at(&scratch, "target");
    let _inner = Relay::between("vsock-seqpacket::70715", &at(&scratch, "target"), &[]);
    let _outer = Relay::between(
        &at(&scratch, "relay"),
        "vsock-seqpacket:1:70715",
        &["--access-log", &log.path],
    );
    let client = connected(&scratch);
    let far = accepted(&server);
    send(&client, b"before", SendFlags::empty()).expect("it is sent");
    assert_eq!(message(&far), b"before");
    send(&client, b"", SendFlags::empty()).expect("it is sent");
    let entry = until_found("it is logged", || log.entries().into_iter().next());
    let outcome = entry["outcome"].to_string();
    assert!(
        outcome.contains("target failed: Operation not supported"),
        "{entry}"
    );
    assert_eq!(entry["client_to_target_messages"], 1, "{entry}");
}

/// The relay finds both sides closed, and ends the one after the other.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn a_connection_that_both_sides_have_closed_has_ended_in_order() {
    for (number, kind) in [(16, "vsock"), (18, "vsock-seqpacket")] {
        let [near, far] = [0, 1].map(|more| format!("{kind}:1:707{}", number + more));
        let scratch = Scratch::new("vsock-closed").expect("a directory");
        let log = Log::below(&scratch);
        let listen = near.replace(":1:", "::");
        let relay = Relay::between(&listen, &far, &["--access-log", &log.path]);
        let server = vsock_server(&far);
        let client = vsock_client(&near);
        let served = accepted(&server);
        for (from, to) in [(&client, &served), (&served, &client)] {
            send(from, b"text", SendFlags::empty()).expect("it is sent");
            assert_eq!(message(to), b"text");
        }
        relay.hold_still();
        drop((client, served));
        relay.go_on();
        let entry = until_found("it is logged", || log.entries().into_iter().next());
        assert_eq!(entry["outcome"], "end of stream", "{entry}");
        for way in ["client_to_target_bytes", "target_to_client_bytes"] {
            assert_eq!(entry[way], 4, "{entry}");
        }
    }
}

/// Nobody has such a context identifier, as of a machine that is off.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn a_server_on_a_machine_that_is_off_is_down() {
    let server = Server::new();
    let proxy = Proxy::run(&format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = [\"vsock:77:70711\", {:?}]\nhealth = {{ tcp = true, fall = 1 }}\n",
        server.address
    ));
    let gone = || proxy.of("backends", "b")["servers"][0].clone();
    let gone = until_found("checks find it down", || {
        Some(gone()).filter(|gone| gone["state"] == "down")
    });
    let why = gone["last_error"].to_string();
    assert!(why.contains("context identifier"), "{gone}");
    let client = Peer::connect(&proxy.address("l"));
    let payload = Payload::new(7);
    client.send(payload, 0, 1);
    // The checks connect to it, too, and send nothing.
    let served = until_found("it is served", || {
        Some(server.accept()).filter(|peer| matches!(peer.read_some(payload, 0), Ok(1)))
    });
    exchange(&client, &served, 1, 1000, 1000);
}

/// Consistent hashing knows the clients by their machines.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn clients_of_one_machine_stay_on_their_server() {
    const CLIENTS: usize = 6;
    let servers = [Server::new(), Server::new(), Server::new()];
    let addresses = servers.each_ref().map(|server| server.address.as_str());
    let proxy = Proxy::run(&format!(
        "[[listener]]\nname = \"l\"\naddress = \"vsock::70720\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nbalance = \"consistent\"\nservers = {addresses:?}\n"
    ));
    let _clients: Vec<_> = (0..CLIENTS)
        .map(|_| vsock_client("vsock:1:70720"))
        .collect();
    until("all are joined", || {
        proxy.count("l", "joined") == CLIENTS as u64
    });
    let backend = proxy.of("backends", "b");
    let counts = backend["servers"].as_array().expect("servers").iter();
    let counts: Vec<_> = counts
        .map(|server| server["connections"].as_u64())
        .collect();
    assert!(counts.contains(&Some(CLIENTS as u64)), "{counts:?}");
}

/// The loopback is reached by the host's identifier, too, where no transport leads to another machine.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn a_target_is_this_relay_by_each_identifier_of_this_machine() {
    for target in ["vsock:1:70721", "vsock:2:70721"] {
        let sentence = failure(&mut command(&["relay", "vsock::70721", target]), 2);
        assert!(sentence.contains("is this relay itself"), "{sentence}");
    }
}

fn vsock_address(name: &str) -> (SocketType, VsockAddr) {
    let mut parts = name.split(':');
    let kind = match parts.next() {
        Some("vsock") => SocketType::STREAM,
        _ => SocketType::SEQPACKET,
    };
    let mut number = || parts.next().expect("a number").parse().expect("a number");
    let cid = number();
    (kind, VsockAddr::new(cid, number()))
}

fn vsock_socket(kind: SocketType) -> OwnedFd {
    let made = socket_with(AddressFamily::VSOCK, kind, SocketFlags::CLOEXEC, None);
    let socket = made.expect("a socket");
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).expect("a limit");
    socket
}

fn vsock_server(name: &str) -> OwnedFd {
    let (kind, address) = vsock_address(name);
    let socket = vsock_socket(kind);
    bind(socket.as_raw_fd(), &address).expect("it is bound");
    listen(&socket, 16).expect("it listens");
    socket
}

fn vsock_client(name: &str) -> OwnedFd {
    let (kind, address) = vsock_address(name);
    let socket = vsock_socket(kind);
    connect(socket.as_raw_fd(), &address).expect("it connects");
    socket
}
