//! Targets that are the relay itself, which would relay to itself without end.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;

use netlab::{Namespace, Need, Process, Scratch, available, present};
use splice_base::socket_option::vsock_local_cid;

use crate::forbidden_call::ForbiddenCall;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay, command, output};
use crate::resolver::{NAME, relay_between, with_name_server};
use crate::server::{Server, ask, try_ask};
use crate::target::ANSWER_TOO_OLD;
use crate::usage::failure;

/// Free, since each test has a namespace of its own.
const PORT: u16 = 7000;

fn with_address(namespace: &Namespace, address: &str) {
    ip(namespace, &format!("address add {address} dev lo"));
}

fn ip(namespace: &Namespace, words: &str) {
    let mut command = namespace.command("ip");
    let output = output(command.args(words.split(' ')));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_target_that_is_the_relay_is_refused_under_each_of_its_addresses() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("itself").expect("a namespace");
    with_address(&namespace, "10.9.8.7/32");
    with_address(&namespace, "fd00::7/128");
    with_address(&namespace, "fe80::7/64");
    // A range whose TCP is routed here.
    ip(
        &namespace,
        "-6 route add local 2a00:9::/64 dev lo table 100",
    );
    ip(
        &namespace,
        &format!("-6 rule add ipproto tcp dport {PORT} lookup 100"),
    );
    for (listen, target) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("127.0.0.1", "[::ffff:127.0.0.1]"),
        ("[::1]", "[::1]"),
        ("", ""),
        ("", "localhost"),
        ("localhost", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("", "127.9.9.9"),
        ("", "[::1]"),
        ("", "10.9.8.7"),
        ("", "[fd00::7]"),
        ("", "[2a00:9::9]"),
        ("", "[fe80::7%lo]"),
        ("0.0.0.0", "10.9.8.7"),
        ("[::]", "10.9.8.7"),
        ("10.9.8.7", "10.9.8.7"),
    ] {
        let mut command = namespace.command(BINARY);
        let [listen, target] = [listen, target].map(|host| format!("{host}:{PORT}"));
        command
            .args(["relay", &listen, &target])
            .env_remove("SPLICED_LOG");
        let sentence = failure(&mut command, 2);
        for part in [&target, "this relay itself", "choose another target"] {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

/// Another host's address, as far as the relay could know.
#[test]
fn a_target_that_may_be_the_relay_is_refused() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("itself").expect("a namespace");
    let Some(mut command) = ForbiddenCall::NETLINK.spliced(namespace.command("perl")) else {
        return;
    };
    let target = format!("203.0.113.7:{PORT}");
    command.args(["relay", &format!(":{PORT}"), &target, "--engine", "copy"]);
    let output = output(&mut command);
    let said = String::from_utf8_lossy(&output.stderr);
    for part in [
        "whether 203.0.113.7 is an address of this host cannot be found out, so it is refused",
        "this relay itself",
    ] {
        assert!(said.contains(part), "no {part:?} in {said:?}");
    }
    assert_eq!(output.status.code(), Some(2), "{said}");
}

#[test]
fn a_socket_file_is_recognised_under_each_of_its_paths() {
    let scratch = Scratch::new("itself").expect("a directory");
    let directory = scratch.path().join("directory");
    fs::create_dir(&directory).expect("a directory");
    symlink("directory", scratch.path().join("link")).expect("a link");
    let below = |path: &str| format!("unix:{}/{path}", scratch.path().display());
    let name = format!("unix:@spliced-test-itself-{}", std::process::id());
    for (listen, target) in [
        (&below("directory/socket"), &below("directory/socket")),
        (&below("directory/socket"), &below("link/socket")),
        (
            &below("directory/socket"),
            &below("link/../directory/./socket"),
        ),
        (&name, &name),
    ] {
        let mut command = Process::command(BINARY);
        command.args(["relay", listen, target]);
        let sentence = failure(command.env_remove("SPLICED_LOG"), 2);
        for part in [target, "this relay itself", "choose another target"] {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
        let left = fs::read_dir(&directory).expect("the directory").count();
        assert_eq!(left, 0, "its socket file is left behind");
    }
}

#[test]
fn other_addresses_of_the_target_are_used() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("itself").expect("a namespace");
    let served = namespace.enter(|| {
        let server = Server::on(&format!("[::1]:{PORT}")).answering();
        let mut command = Process::command(BINARY);
        let listen = format!("127.0.0.1:{PORT}");
        command.args(["relay", &listen, &format!("localhost:{PORT}")]);
        let relay = Relay::spawn(command.env_remove("SPLICED_LOG"));
        let told = relay.wait_logged("this relay itself");
        assert!(told.contains(&listen), "{told}");
        ask(&Peer::connect(&relay.address), 0, 1000, 1000);
        server.finish()
    });
    assert_eq!(served.expect("entered"), [0]);
}

#[test]
fn a_name_that_later_resolves_to_the_relay_is_refused() {
    with_name_server(|names, scratch| {
        const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
        let _server = Server::on(&format!("{ELSEWHERE}:{PORT}")).answering();
        names.answer_with(Some(ELSEWHERE));
        let listen = format!("127.0.0.1:{PORT}");
        let mut command = relay_between(scratch, &listen, &format!("{NAME}:{PORT}"));
        let mut relay = Relay::spawn(&mut command);
        let before = relay.descriptors();
        ask(&Peer::connect(&relay.address), 0, 1000, 1000);
        names.answer_with(Some(Ipv4Addr::LOCALHOST));
        std::thread::sleep(ANSWER_TOO_OLD);
        // This client triggers a new resolution. It gets the old answer, unless the new one comes before it is served.
        let _ = try_ask(&Peer::connect(&relay.address), 1, 1000, 1000);
        netlab::until("the new answer is known", || {
            let client = Peer::connect(&relay.address);
            let _ = client.try_send(crate::payload::Payload::new(0), 0, 1);
            relay.lines_logged(&format!("{listen} is this relay itself")) > 0
        });
        Peer::is_reset_by(&relay.address);
        relay.wait_descriptors(before);
        relay.terminate();
    });
}

#[test]
fn an_address_that_later_becomes_local_is_refused() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("itself").expect("a namespace");
    let mut command = namespace.command(BINARY);
    let listen = format!(":{PORT}");
    let target = format!("10.9.8.7:{PORT}");
    command.args(["relay", &listen, &target]);
    let mut relay = Relay::spawn(command.env_remove("SPLICED_LOG"));
    let address = format!("127.0.0.1:{PORT}");
    let before = relay.descriptors();
    namespace
        .enter(|| Peer::is_reset_by(&address))
        .expect("entered");
    with_address(&namespace, "10.9.8.7/32");
    std::thread::sleep(ANSWER_TOO_OLD);
    netlab::until("it is known", || {
        namespace
            .enter(|| Peer::is_reset_by(&address))
            .expect("entered");
        relay.lines_logged("is this relay itself") > 0
    });
    relay.wait_descriptors(before);
    relay.terminate();
}

/// Nothing is connected, so this needs no transport.
#[test]
fn a_vsock_target_that_is_the_relay_is_refused_under_its_own_identifier() {
    let own = vsock_local_cid();
    let why = own.err().map(|errno| format!("/dev/vsock: {errno}"));
    if !present("vsock", why) {
        return;
    }
    // Without a transport there may be none.
    let own = own.expect("an identifier");
    let own = (own != u32::MAX).then_some(own);
    for kind in ["vsock", "vsock-seqpacket"] {
        for cid in [Some(1), own].into_iter().flatten() {
            let (listen, target) = (format!("{kind}::70722"), format!("{kind}:{cid}:70722"));
            let sentence = failure(&mut command(&["relay", &listen, &target]), 2);
            assert!(sentence.contains("is this relay itself"), "{sentence}");
        }
    }
}
