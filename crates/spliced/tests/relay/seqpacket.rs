//! Sockets with connections and message boundaries, and VSOCK.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use netlab::{Need, Scratch, available};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept,
    bind, connect, getpeername, listen, recv, send, shutdown, socket_with, sockopt,
};
use rustix::process::Signal;

use crate::log::Log;
use crate::patience::{PATIENCE, until, until_found};
use crate::payload::Payload;
use crate::relay::{CUT_SHORT, Relay, command};
use crate::usage::failure;

/// Around what changes the way of a message; the send buffer of a new socket takes the longest.
const SIZES: [usize; 7] = [1, 0, 64, 4096, 65_536, 0, 150_000];

/// The longest message that is passed on.
const LONGEST: usize = 4 << 20;

pub(crate) fn at(scratch: &Scratch, name: &str) -> String {
    format!("seqpacket:{}", scratch.path().join(name).display())
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.expect("a socket");
    patient(&socket);
    socket
}

fn patient(socket: &OwnedFd) {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(PATIENCE)).expect("a limit");
}

pub(crate) fn server(scratch: &Scratch) -> OwnedFd {
    server_at(scratch, "target")
}

pub(crate) fn server_at(scratch: &Scratch, name: &str) -> OwnedFd {
    let socket = socket();
    let address = SocketAddrUnix::new(scratch.path().join(name)).expect("a path");
    bind(&socket, &address).expect("it is bound");
    listen(&socket, 4096).expect("it listens");
    socket
}

pub(crate) fn connected(scratch: &Scratch) -> OwnedFd {
    try_connect(scratch).expect("it connects")
}

pub(crate) fn try_connect(scratch: &Scratch) -> Result<OwnedFd, Errno> {
    let socket = socket();
    let address = SocketAddrUnix::new(scratch.path().join("relay")).expect("a path");
    connect(&socket, &address)?;
    Ok(socket)
}

pub(crate) fn accepted(server: &OwnedFd) -> OwnedFd {
    let socket = accept(server).expect("a connection");
    patient(&socket);
    socket
}

/// A message; an empty one is also what the end of the stream looks like.
pub(crate) fn message(socket: &OwnedFd) -> Vec<u8> {
    let mut buffer = vec![0; LONGEST + 1];
    let (_, length) = recv(socket, &mut buffer[..], RecvFlags::empty()).expect("a message");
    buffer.truncate(length);
    buffer
}

pub(crate) fn relay(scratch: &Scratch, options: &[&str]) -> Relay {
    Relay::between(&at(scratch, "relay"), &at(scratch, "target"), options)
}

#[test]
fn messages_keep_their_boundaries_and_each_direction_ends_by_itself() {
    let scratch = Scratch::new("seqpacket").expect("a directory");
    let log = Log::below(&scratch);
    let server = server(&scratch);
    let mut relay = relay(&scratch, &["--access-log", &log.path]);
    assert_eq!(relay.address, at(&scratch, "relay"));
    let client = connected(&scratch);
    let far = accepted(&server);
    for (salt, size) in (0..).zip(SIZES) {
        let text = Payload::new(salt).bytes(size);
        send(&client, &text, SendFlags::empty()).expect("it is sent");
        assert!(message(&far) == text, "{size} bytes differ at the server");
        send(&far, &text, SendFlags::empty()).expect("it is sent");
        assert!(
            message(&client) == text,
            "{size} bytes differ at the client"
        );
    }
    // The empty messages above were none of these ends.
    shutdown(&client, Shutdown::Write).expect("the end");
    assert!(message(&far).is_empty());
    send(&far, b"after", SendFlags::empty()).expect("it is sent");
    assert_eq!(message(&client), b"after");
    drop(far);
    assert!(message(&client).is_empty());
    until("the connection ends", || !log.entries().is_empty());
    let entry = &log.entries()[0];
    let count = SIZES.len() as u64;
    assert_eq!(entry["client_to_target_messages"], count);
    assert_eq!(entry["target_to_client_messages"], count + 1);
    let bytes = SIZES.iter().sum::<usize>() as u64;
    assert_eq!(entry["client_to_target_bytes"], bytes);
    assert_eq!(entry["outcome"], "end of stream");
    relay.terminate();
    assert!(!scratch.path().join("relay").exists());
}

/// The send buffers of the relay grow with the messages.
#[test]
fn the_longest_messages_arrive_whole() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("long-seqpacket").expect("a directory");
    let server = server(&scratch);
    let _relay = relay(&scratch, &[]);
    let client = connected(&scratch);
    let far = accepted(&server);
    for peer in [&client, &far] {
        sockopt::set_socket_send_buffer_size_force(peer, LONGEST).expect("a buffer");
    }
    for (salt, size) in (0..).zip([212_961, 1 << 20, 7, LONGEST]) {
        let text = Payload::new(salt).bytes(size);
        for (from, to) in [(&client, &far), (&far, &client)] {
            send(from, &text, SendFlags::empty()).expect("it is sent");
            assert!(message(to) == text, "{size} bytes differ");
        }
    }
}

/// A server that closes with something unread has its last messages delivered, and its socket has no name.
#[test]
fn last_messages_arrive_and_servers_see_no_strange_name() {
    let scratch = Scratch::new("last-seqpacket").expect("a directory");
    let log = Log::below(&scratch);
    let server = server(&scratch);
    let _relay = relay(&scratch, &["--access-log", &log.path]);
    let client = connected(&scratch);
    let far = accepted(&server);
    send(&client, b"read", SendFlags::empty()).expect("it is sent");
    assert_eq!(message(&far), b"read");
    let name = SocketAddrUnix::try_from(getpeername(&far).expect("a peer").expect("an address"));
    let name = name.expect("a UNIX socket");
    assert!(name.path().is_none(), "{name:?}");
    assert!(
        name.abstract_name().is_none_or(<[u8]>::is_empty),
        "{name:?}"
    );
    send(&client, b"unread", SendFlags::empty()).expect("it is sent");
    until("it arrives", || {
        ioctl_fionread(&far).is_ok_and(|bytes| bytes == 6)
    });
    for text in [&b"last"[..], b"words"] {
        send(&far, text, SendFlags::empty()).expect("it is sent");
    }
    drop(far);
    for text in [&b"last"[..], b"words", b""] {
        assert_eq!(message(&client), text);
    }
    let entry = until_found("it is logged", || log.entries().into_iter().next());
    assert_eq!(entry["outcome"], "reset by target");
    assert_eq!(entry["target_to_client_messages"], 2);
}

/// Both kinds of listeners keep it while they drain: a client is refused, and whoever starts at the path takes it over.
#[test]
fn the_file_of_a_listener_goes_with_the_process() {
    for kind in ["unix", "seqpacket"] {
        let scratch = Scratch::new("draining-file").expect("a directory");
        let [near, far] = ["relay", "target"].map(|name| scratch.path().join(name));
        let address = |path: &Path| format!("{kind}:{}", path.display());
        let server: OwnedFd = match kind {
            "unix" => UnixListener::bind(&far).expect("it listens").into(),
            _ => server(&scratch),
        };
        let mut relay = Relay::between(&address(&near), &address(&far), &[]);
        let client: OwnedFd = match kind {
            "unix" => UnixStream::connect(&near).expect("it connects").into(),
            _ => connected(&scratch),
        };
        let far = accepted(&server);
        relay.signal(Signal::TERM);
        relay.wait_logged("no longer accepting");
        assert!(near.exists(), "{kind}");
        drop((client, far));
        assert_eq!(relay.wait_end().code(), Some(0));
        assert!(!near.exists(), "{kind}");
    }
}

/// A receiver that does not read holds its sender up, and nothing is lost.
#[test]
fn a_receiver_that_does_not_read_stops_its_sender_only() {
    const SIZE: usize = 1000;
    let scratch = Scratch::new("slow-seqpacket").expect("a directory");
    let server = server(&scratch);
    let _relay = relay(&scratch, &[]);
    let slow = connected(&scratch);
    let slow_far = accepted(&server);
    let mut sent = 0;
    let mut full = 0;
    // Full for good: nobody reads, so waiting changes nothing once the relay has had its turn.
    until("its sender has to wait", || {
        let text = Payload::new(sent).bytes(SIZE);
        match send(&slow, &text, SendFlags::DONTWAIT) {
            Ok(_) => {
                sent += 1;
                full = 0;
            }
            Err(Errno::AGAIN) => full += 1,
            Err(error) => panic!("{error}"),
        }
        full > 20
    });
    let other = connected(&scratch);
    let other_far = accepted(&server);
    send(&other, b"others go on", SendFlags::empty()).expect("it is sent");
    assert_eq!(message(&other_far), b"others go on");
    for salt in 0..sent {
        assert!(
            message(&slow_far) == Payload::new(salt).bytes(SIZE),
            "message {salt}"
        );
    }
    let text = Payload::new(sent).bytes(SIZE);
    send(&slow, &text, SendFlags::empty()).expect("it is sent");
    assert!(message(&slow_far) == text);
}

#[test]
fn limits_hold_and_a_second_signal_cuts() {
    let scratch = Scratch::new("seqpacket-limits").expect("a directory");
    let server = server(&scratch);
    let mut relay = relay(&scratch, &["--max-connections", "1"]);
    let first = connected(&scratch);
    let first_far = accepted(&server);
    let second = connected(&scratch);
    send(&second, b"waits", SendFlags::empty()).expect("it is sent");
    send(&first, b"first", SendFlags::empty()).expect("it is sent");
    assert_eq!(message(&first_far), b"first");
    drop((first, first_far));
    let second_far = accepted(&server);
    assert_eq!(message(&second_far), b"waits");
    relay.signal_until_it_ends(Signal::TERM);
    assert_eq!(relay.wait_end().code(), Some(CUT_SHORT));
    relay.wait_logged("no longer accepting; 1 connection left");
    assert!(message(&second).is_empty());
}

#[test]
fn what_does_not_fit_is_refused_in_one_sentence() {
    for (arguments, parts) in [
        (&["seqpacket:/x", "unix:/y"][..], &["cannot be joined"][..]),
        (&["seqpacket:/x", "udp::1"], &["cannot be joined"]),
        (&["vsock::1", "seqpacket:/y"], &["cannot be joined"]),
        (&["seqpacket:/x", "seqpacket:/x"], &["this relay itself"]),
        (
            &["seqpacket:/x", "seqpacket:/y", "--engine", "pipe"],
            &["--engine pipe does not take seqpacket:/x"],
        ),
        (
            &["seqpacket:/x", "seqpacket:/y", "--keepalive", "off"],
            &["--keepalive is for TCP"],
        ),
        (
            &["seqpacket:/x", "seqpacket:/y", "--max-sessions", "3"],
            &["--max-sessions"],
        ),
        (
            &["unix:/x", "unix:/y", "--user-timeout", "9s"],
            &["--user-timeout is for TCP"],
        ),
        (
            &["unix:/x", "127.0.0.1:1", "--from-syn"],
            &["--from-syn is for TCP"],
        ),
        (
            &["127.0.0.1:1", "unix:/x", "--bypass-firewall"],
            &["--bypass-firewall is for TCP"],
        ),
        (&[":0", "vsock::80"], &["names no machine to connect to"]),
        (&[":0", "vsock:x:80"], &["CID:PORT"]),
        (&["seqpacket:", "seqpacket:/y"], &["write seqpacket:/path"]),
    ] {
        let arguments = [&["relay"], arguments].concat();
        let sentence = failure(&mut command(&arguments), 2);
        for part in parts {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

/// Nothing is connected before a client comes, so this needs no VSOCK.
#[test]
fn a_relay_to_vsock_listens_where_it_says() {
    let relay = Relay::between(":0", "vsock:2:70709", &[]);
    assert!(relay.address.starts_with("[::]:"), "{}", relay.address);
    assert_ne!(relay.port(), "0");
    let port = relay.port();
    for own in ["127.0.0.1", "[::1]"] {
        let client = crate::peer::Peer::connect(&format!("{own}:{port}"));
        drop(client);
    }
}

/// Through the loopback of VSOCK (`vsock_loopback`, Linux 5.6 on): TCP in, VSOCK between two relays, TCP out.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn vsock_streams_carry_tcp() {
    const BYTES: u64 = 3_000_000;
    let server = crate::server::Server::new();
    let inner = Relay::between("vsock::70707", &server.address, &[]);
    let outer = Relay::to("vsock:1:70707", &[]);
    let client = crate::peer::Peer::connect(&outer.address);
    let far = server.accept();
    crate::peer::exchange(&client, &far, 1, BYTES, BYTES);
    drop((inner, outer));
}

/// The same for messages: between two relays they go over VSOCK.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn vsock_keeps_messages_apart() {
    let scratch = Scratch::new("vsock-messages").expect("a directory");
    let server = server(&scratch);
    let near = at(&scratch, "relay");
    let inner = Relay::between("vsock-seqpacket::70708", &at(&scratch, "target"), &[]);
    let outer = Relay::between(&near, "vsock-seqpacket:1:70708", &[]);
    let client = connected(&scratch);
    let far = accepted(&server);
    for (salt, size) in (0..).zip(SIZES) {
        // A VSOCK socket does not tell an empty message from the end of the stream.
        if size > 0 {
            let text = Payload::new(salt).bytes(size);
            send(&client, &text, SendFlags::empty()).expect("it is sent");
            assert!(message(&far) == text, "{size} bytes differ at the server");
            send(&far, &text, SendFlags::empty()).expect("it is sent");
            assert!(
                message(&client) == text,
                "{size} bytes differ at the client"
            );
        }
    }
    shutdown(&client, Shutdown::Write).expect("the end");
    assert!(message(&far).is_empty());
    drop((inner, outer));
}
