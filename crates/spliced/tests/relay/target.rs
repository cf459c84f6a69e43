//! Targets that are missing, slow or restarted, or at one of several addresses.

use std::time::{Duration, Instant};

use netlab::{Namespace, Need, Scratch, available};

use crate::log::Log;
use crate::patience::PATIENCE;
use crate::payload::Payload;
use crate::peer::{Peer, exchange};
use crate::relay::{BINARY, Relay};
use crate::server::{Server, ask, free_port};

const SOME_BYTES: u64 = 100_000;

/// Longer than the relay keeps an answer of the resolver.
pub(crate) const ANSWER_TOO_OLD: Duration = Duration::from_millis(5200);

/// An address of this host on which nobody listens.
fn deserted() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Checks that a client of a relay to `target` gets a reset, and that both logs contain `why`.
fn comes_to_nothing(target: &str, options: &[&str], why: &str) -> Duration {
    let scratch = Scratch::new("nothing").expect("a directory");
    let log = Log::below(&scratch);
    let mut relay = Relay::to(target, &[&["--access-log", &log.path], options].concat());
    let before = relay.descriptors();
    let start = Instant::now();
    Peer::is_reset_by(&relay.address);
    let took = start.elapsed();
    let line = relay.wait_logged(" was reset: ");
    for part in [" WARN ", "connection 1", target, why] {
        assert!(line.contains(part), "no {part:?} in {line:?}");
    }
    relay.wait_descriptors(before);
    relay.terminate();
    let entries = log.entries();
    assert_eq!(entries.len(), 1);
    let outcome = entries[0]["outcome"].as_str().expect("an outcome");
    assert!(outcome.contains(why), "{outcome}");
    assert_eq!(entries[0]["target"], target);
    let client = entries[0]["client"].as_str().expect("a client");
    let from = format!("connection 1 from {client} to {target} ");
    assert!(line.contains(&from), "no {from:?} in {line:?}");
    took
}

#[test]
fn a_refused_connection_is_a_reset_and_logged() {
    comes_to_nothing(&deserted(), &[], "connection refused");
}

/// TCP connects a socket with itself (a simultaneous open) if nobody listens on the port and it picks the same
/// port for this end. The client would get an echo, and the target could not bind its port again.
#[test]
fn a_self_connection_is_a_reset_and_logged() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("itself").expect("a namespace");
    namespace
        .set_sysctl("net.ipv4.ip_local_port_range", "40000 40001")
        .expect("the ports to pick from");
    let scratch = Scratch::new("itself").expect("a directory");
    let listen = format!("unix:{}/socket", scratch.path().display());
    for target in ["127.0.0.1:40000", "[::1]:40000", "0.0.0.0:40000"] {
        let mut command = namespace.command(BINARY);
        command
            .args(["relay", &listen, target])
            .env_remove("SPLICED_LOG");
        let mut relay = Relay::spawn(&mut command);
        let client = Peer::connect(&listen);
        // The client may have been reset by then.
        let _ = client.try_send(Payload::new(1), 0, 100);
        assert_eq!(client.read_to_end(Payload::new(1), 0).0, 0, "{target}");
        relay.wait_logged("connection refused");
        relay.terminate();
    }
}

#[test]
fn an_unreachable_target_is_a_reset_and_logged() {
    // TCP rejects a broadcast address, whatever the routes are (tcp_v4_connect).
    comes_to_nothing("255.255.255.255:9", &[], "unreachable");
}

#[test]
fn a_missing_socket_file_is_a_reset_and_logged() {
    let scratch = Scratch::new("missing").expect("a directory");
    let target = format!("unix:{}/socket", scratch.path().display());
    comes_to_nothing(&target, &[], "no such file");
}

#[test]
fn a_slow_target_is_a_reset_after_the_connect_timeout_and_logged() {
    const TIMEOUT: Duration = Duration::from_millis(700);
    let name = format!("unix:@spliced-test-slow-{}", std::process::id());
    for (address, why) in [
        (
            "127.0.0.1:0",
            "did not answer within the connect timeout of 700ms",
        ),
        (
            &name,
            "backlog stayed full for the connect timeout of 700ms",
        ),
    ] {
        let server = Server::with_backlog(address, 0);
        // Fills the backlog, so that the next client has to wait.
        let _first = Peer::connect(&server.address);
        let took = comes_to_nothing(&server.address, &["--connect-timeout", "700ms"], why);
        assert!(took >= TIMEOUT, "{address}: given up after {took:?}");
        assert!(
            took < PATIENCE / 4,
            "{address}: given up only after {took:?}"
        );
    }
}

#[test]
fn every_address_of_a_name_is_tried() {
    for bound in ["127.0.0.1:0", "[::1]:0"] {
        let server = Server::on(bound).answering();
        let port = server
            .address
            .rsplit_once(':')
            .expect("a port")
            .1
            .to_owned();
        let mut asked = Vec::new();
        // Without a host, and with this name, it is loopback in both families.
        let named = format!("localhost:{port}");
        let both = format!(":{port}");
        for target in [&both, &named] {
            let relay = Relay::to(target, &[]);
            for _ in 0..10 {
                let number = asked.len() as u64;
                ask(&Peer::connect(&relay.address), number, 1000, SOME_BYTES);
                asked.push(number);
            }
        }
        assert_eq!(server.finish(), asked);
    }
}

#[test]
fn a_target_that_restarts_is_reached_again() {
    let address = deserted();
    let server = Server::on(&address);
    let relay = Relay::to(&address, &[]);
    let before = relay.descriptors();

    let (payload, answer) = (Payload::new(1), Payload::new(2));
    let client = Peer::connect(&relay.address);
    let far = server.accept();
    client.send(payload, 0, SOME_BYTES);
    far.expect(payload, 0, SOME_BYTES);
    far.send(answer, 0, SOME_BYTES);
    client.expect(answer, 0, SOME_BYTES);
    // Like SIGKILL for a process with unread bytes: its connections are reset.
    far.reset();
    drop(server);
    client.expect_reset();
    for _ in 0..20 {
        Peer::is_reset_by(&relay.address);
    }
    relay.wait_logged("connection refused");
    relay.wait_descriptors(before);

    let server = Server::on(&address);
    for number in 0..20 {
        let client = Peer::connect(&relay.address);
        exchange(&client, &server.accept(), number, SOME_BYTES, SOME_BYTES);
    }
    relay.wait_descriptors(before);
}

#[test]
fn a_recurring_warning_is_counted_and_not_repeated() {
    const CLIENTS: usize = 200;
    let mut relay = Relay::to(&deserted(), &[]);
    let start = Instant::now();
    for _ in 0..CLIENTS {
        Peer::is_reset_by(&relay.address);
    }
    relay.terminate();
    let most = 1 + start.elapsed().as_secs() as usize;
    let told = relay.lines_logged(" was reset: ");
    assert!(
        (1..=most).contains(&told),
        "{told} lines in {:?}",
        start.elapsed()
    );
}
