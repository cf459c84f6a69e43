//! How connections end, and what is left then.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use netlab::{Lab, Need, available};
use splice::{ForwardEnd, ForwardOptions, Side};

use crate::hops::ip;
use crate::stage::{Stage, ping};

#[test]
fn a_reset_reaches_the_other_side() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    for from in [Side::A, Side::B] {
        let (client, server) = stage.connect();
        let (resets, mut other) = match from {
            Side::A => (client, server),
            Side::B => (server, client),
        };
        socket2::SockRef::from(&resets)
            .set_linger(Some(Duration::ZERO))
            .expect("set");
        drop(resets);
        let error = other.read(&mut [0]).expect_err("it was reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(stage.next_ended().end, ForwardEnd::Reset(from));
    }
}

#[test]
fn a_silent_server_is_given_up_and_the_client_reset() {
    if !available(Need::Root) {
        return;
    }
    // Nobody answers there: the address is on the server's network, and no host has it.
    let stage = Stage::with(|options| {
        options.connect_timeout = Duration::from_millis(200);
        options
            .server
            .set_ip("198.18.2.77".parse().expect("an address"));
    });
    let to = stage.listens_at;
    let refused = stage
        .lab
        .client()
        .enter(|| std::net::TcpStream::connect(to))
        .expect("entered");
    let error = refused.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(stage.next_ended().end, ForwardEnd::TimedOut);
}

#[test]
fn a_dropped_forward_resets_its_connections() {
    if !available(Need::Root) {
        return;
    }
    let Stage {
        forward,
        ended,
        server,
        listens_at,
        lab,
        socket,
        ..
    } = Stage::new();
    let client = lab
        .client()
        .enter(|| std::net::TcpStream::connect(listens_at));
    let mut client = client.expect("entered").expect("connected");
    let (mut server, _) = server.accept().expect("accepted");
    drop(forward);
    for stream in [&mut client, &mut server] {
        stream
            .set_read_timeout(Some(netlab::PATIENCE))
            .expect("set");
        let error = stream.read(&mut [0]).expect_err("it was reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    let one = ended.recv().expect("it has ended");
    assert_eq!(one.end, ForwardEnd::Dropped);
    drop(socket);
}

/// A server that takes no more is given up as a socket would give it up, although nobody asks for a sign of life for hours.
#[test]
fn an_end_that_acknowledges_nothing_is_given_up() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::with(|_| ());
    stage
        .lab
        .relay()
        .set_sysctl("net.ipv4.tcp_retries2", "2")
        .expect("set");
    let (mut client, _server) = stage.connect();
    ip(
        stage.lab.server(),
        &format!("link set {} down", Lab::TO_RELAY),
    );
    client.write_all(b"is anybody there?").expect("write");
    let ended = stage.next_ended();
    assert_eq!(ended.end, ForwardEnd::Silent, "{ended:?}");
    let error = client.read(&mut [0]).expect_err("it was reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Both are still. One has a server that is no longer there when the relay asks for a sign of life.
#[test]
fn an_end_that_gives_no_sign_of_life_is_given_up() {
    if !available(Need::Root) {
        return;
    }
    // The default interval is a 96th of the time.
    finds_a_vanished_server(|options| options.keep_alive = Duration::from_millis(400));
}

#[test]
fn the_interval_and_the_number_of_questions_can_be_set() {
    if !available(Need::Root) {
        return;
    }
    let started = Instant::now();
    finds_a_vanished_server(|options| {
        options.keep_alive = Duration::from_millis(400);
        options.keep_alive_interval = Some(Duration::from_millis(300));
        options.keep_alive_probes = 3;
    });
    // The last question has its time for an answer, too.
    assert!(started.elapsed() >= Duration::from_millis(400 + 3 * 300));
}

fn finds_a_vanished_server(adjust: impl Fn(&mut ForwardOptions) + Copy + Send) {
    let stage = || Stage::with(adjust);
    let (alive, dead) = (stage(), stage());
    let (client, server) = alive.connect();
    let (mut left, _gone) = dead.connect();
    ip(
        dead.lab.server(),
        &format!("link set {} down", Lab::TO_RELAY),
    );
    let ended = dead.next_ended();
    assert_eq!(ended.end, ForwardEnd::Silent, "{ended:?}");
    let error = left.read(&mut [0]).expect_err("it was reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    // The other one was asked as often.
    ping(&client, &server);
    assert_eq!(alive.forward.connections(), 1);
}

#[test]
fn a_connection_that_stays_half_closed_is_reset() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::with(|options| options.half_close_timeout = Some(TIMEOUT));
    // Both of its streams are open all the time.
    let (client, server) = stage.connect();
    for from in [Side::A, Side::B] {
        let (near, far) = stage.connect();
        let (first, mut second) = match from {
            Side::A => (near, far),
            Side::B => (far, near),
        };
        let started = Instant::now();
        first.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(second.read(&mut [0]).expect("the end"), 0);
        let one = stage.next_ended();
        assert_eq!(one.end, ForwardEnd::HalfClosed, "{one:?}");
        assert!(started.elapsed() >= TIMEOUT - TICK);
        let error = (&first).read(&mut [0]).expect_err("it was reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // It has read its EOF, so only its error tells of the reset.
        netlab::until("the other one is reset, too", || {
            second.take_error().expect("its error").is_some()
        });
    }
    ping(&client, &server);
    assert_eq!(stage.forward.connections(), 1);
}

/// A BPF program reads a coarse clock, which is behind by up to a tick of `CONFIG_HZ`=100.
const TICK: Duration = Duration::from_millis(10);
