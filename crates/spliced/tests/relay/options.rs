//! The options that no other module tests.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Process, Scratch};
use rustix::net::sockopt;
use rustix::process::Signal;

use crate::log::Log;
use crate::patience::{PATIENCE, until, until_at_rest};
use crate::payload::Payload;
use crate::peer::{End, Peer, exchange};
use crate::relay::{IDLE_WATCHED, Relay, command};
use crate::server::{Server, ask, call};

const SOME_BYTES: u64 = 50_000;

#[test]
fn max_connections_is_enforced_and_waiting_clients_are_served_later() {
    const MOST: usize = 3;
    const CLIENTS: usize = 20;
    let name = format!("unix:@spliced-test-most-{}", std::process::id());
    for (listen, threads) in [("127.0.0.1:0", "1"), ("127.0.0.1:0", "4"), (&name, "3")] {
        let server = Server::new();
        let options = ["--max-connections", "3", "--threads", threads];
        let relay = Relay::between(listen, &server.address, &options);
        let before = relay.descriptors();
        let clients: Vec<_> = (0..CLIENTS as u64)
            .map(|number| call(&relay.address, number, SOME_BYTES))
            .collect();
        let mut inside = Vec::new();
        let mut served = Vec::new();
        while served.len() < CLIENTS {
            while inside.len() + served.len() < CLIENTS && inside.len() < MOST {
                inside.push(server.accept());
            }
            assert!(
                !server.is_called_within(Duration::from_millis(5)),
                "more than {MOST} at once"
            );
            let far = inside.remove(0);
            let number = far.read_number();
            let came = far.read_to_end(Payload::new(number), 0);
            assert_eq!(came, (SOME_BYTES, End::OfStream));
            far.send(Payload::new(!number), 0, SOME_BYTES);
            served.push(number);
        }
        served.sort_unstable();
        assert_eq!(served, (0..CLIENTS as u64).collect::<Vec<_>>());
        for (client, number) in clients.iter().zip(0..) {
            let came = client.read_to_end(Payload::new(!number), 0);
            assert_eq!(came, (SOME_BYTES, End::OfStream));
        }
        relay.wait_descriptors(before);
    }
}

#[test]
fn a_full_relay_does_not_spin_and_names_its_limit() {
    const WATCHED: Duration = Duration::from_millis(500);
    let server = Server::new();
    let relay = Relay::to(&server.address, &["--max-connections", "1"]);
    let _first = Peer::connect(&relay.address);
    let _far = server.accept();
    let _others: Vec<_> = (0..10).map(|_| Peer::connect(&relay.address)).collect();
    let line = relay.wait_logged("the limit of 1 connections (max-connections) is reached");
    assert!(line.contains(" WARN "), "{line}");
    until_at_rest(Duration::from_millis(100), || relay.cpu_time());
    let before = relay.cpu_time();
    thread::sleep(WATCHED);
    let spent = relay.cpu_time() - before;
    assert!(spent < WATCHED / 4, "{spent:?} to wait for {WATCHED:?}");
}

#[test]
fn an_idle_connection_is_reset_and_a_busy_one_is_not() {
    const TIMEOUT: Duration = Duration::from_millis(600);
    let scratch = Scratch::new("idle").expect("a directory");
    let server = Server::new();
    // If the machine stops the busy connection for so long that it becomes idle, the test tries again.
    until("the busy one was busy all the time", || {
        let log = Log::below(&scratch);
        let options = ["--idle-timeout", "600ms", "--access-log", &log.path];
        let mut relay = Relay::to(&server.address, &options);
        let (idle, idle_far) = (Peer::connect(&relay.address), server.accept());
        let (busy, busy_far) = (Peer::connect(&relay.address), server.accept());
        let payload = Payload::new(40);
        let quiet_since = Instant::now();
        idle.send(payload, 0, 777);
        idle_far.expect(payload, 0, 777);
        let (mut sent, mut moved_at, mut longest) = (0, quiet_since, Duration::ZERO);
        while !idle.is_readable_within(Duration::from_millis(20)) {
            assert!(quiet_since.elapsed() < PATIENCE, "it is never reset");
            if moved_at.elapsed() >= TIMEOUT / 2 {
                fs::remove_file(&log.path).expect("the log");
                return false;
            }
            busy.send(payload, sent, 10);
            busy_far.expect(payload, sent, 10);
            sent += 10;
            longest = longest.max(moved_at.elapsed());
            moved_at = Instant::now();
        }
        assert!(quiet_since.elapsed() >= TIMEOUT);
        idle.expect_reset();
        idle_far.expect_reset();
        if longest.max(moved_at.elapsed()) >= TIMEOUT / 2 {
            fs::remove_file(&log.path).expect("the log");
            return false;
        }
        exchange(&busy, &busy_far, 41, SOME_BYTES, SOME_BYTES);
        relay.terminate();
        let entries = log.entries();
        assert_eq!(entries[0]["outcome"], "idle");
        assert_eq!(entries[0]["client_to_target_bytes"], 777);
        assert_eq!(entries[1]["outcome"], "end of stream");
        assert_eq!(entries[1]["client_to_target_bytes"], sent + SOME_BYTES);
        true
    });
}

/// Waits until the relay has this number of threads with a loop. A thread that one of them starts has the
/// name of its parent until it runs for the first time.
fn until_loops(relay: &Relay, count: usize) {
    until("each loop has its thread", || {
        let names = relay.of_threads("comm", |name| name.trim().to_owned());
        names.iter().filter(|name| *name == "loop").count() == count
    });
}

#[test]
fn connections_are_distributed_over_the_threads() {
    const THREADS: usize = 4;
    /// Enough that every thread gets a connection: the probability of the opposite is (3/4)^120.
    const CLIENTS: usize = 120;
    let server = Server::new();
    // A loop with spliced pairs watches more than their sockets.
    let relay = Relay::to(&server.address, &["--threads", "4", "--engine", "copy"]);
    until_loops(&relay, THREADS);
    assert_eq!(relay.watched(), [IDLE_WATCHED; THREADS]);
    let pairs: Vec<_> = (0..CLIENTS)
        .map(|_| (Peer::connect(&relay.address), server.accept()))
        .collect();
    relay.connected_sockets(2 * CLIENTS);
    until("all are watched", || {
        relay.watched().iter().sum::<usize>() == THREADS * IDLE_WATCHED + CLIENTS * 2
    });
    let watched = relay.watched();
    assert_eq!(watched.len(), THREADS);
    assert!(
        watched.iter().all(|count| *count > IDLE_WATCHED),
        "{watched:?}"
    );
    drop(pairs);
    until("none is left", || {
        relay.watched() == [IDLE_WATCHED; THREADS]
    });
}

#[test]
fn by_default_there_is_one_thread_per_cpu() {
    let relay = Relay::to("127.0.0.1:1", &[]);
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    until_loops(&relay, cpus);
}

#[test]
fn both_sockets_have_nodelay_and_keepalive() {
    for listen in ["127.0.0.1:0", "[::1]:0", ":0"] {
        for target in ["127.0.0.1:0", "[::1]:0"] {
            let server = Server::on(target);
            let relay = Relay::between(listen, &server.address, &["--threads", "2"]);
            // Through both listening sockets, since an accepted socket inherits the options of its own one.
            let address = relay.address.replace("[::]", "[::1]");
            let pairs: Vec<_> = (0..16)
                .map(|_| (Peer::connect(&address), server.accept()))
                .collect();
            let sockets = relay.connected_sockets(2 * pairs.len());
            let has_both = |socket: &OwnedFd| {
                sockopt::tcp_nodelay(socket).expect("TCP_NODELAY")
                    && sockopt::socket_keepalive(socket).expect("SO_KEEPALIVE")
            };
            assert!(sockets.iter().all(has_both), "{listen} {target}");
        }
    }
}

/// SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT and TCP_USER_TIMEOUT of a socket.
pub(crate) type PeerTimeouts = (bool, Duration, Duration, u32, u32);

pub(crate) fn peer_timeouts(socket: impl AsFd) -> PeerTimeouts {
    (
        sockopt::socket_keepalive(&socket).expect("SO_KEEPALIVE"),
        sockopt::tcp_keepidle(&socket).expect("TCP_KEEPIDLE"),
        sockopt::tcp_keepintvl(&socket).expect("TCP_KEEPINTVL"),
        sockopt::tcp_keepcnt(&socket).expect("TCP_KEEPCNT"),
        sockopt::tcp_user_timeout(&socket).expect("TCP_USER_TIMEOUT"),
    )
}

/// What a new socket has with keep-alive.
pub(crate) fn the_systems() -> PeerTimeouts {
    let socket = TcpListener::bind("127.0.0.1:0").expect("it listens");
    sockopt::set_socket_keepalive(&socket, true).expect("SO_KEEPALIVE");
    peer_timeouts(&socket)
}

#[test]
fn both_sockets_have_the_keepalive_and_the_user_timeout_that_are_asked_for() {
    let systems = the_systems();
    let [idle, interval] = [31, 12].map(Duration::from_secs);
    let unix = format!("unix:@spliced-test-peers-{}", std::process::id());
    for (options, expected) in [
        (&[][..], systems),
        (
            &["--keepalive", "31s"],
            (true, idle, systems.2, systems.3, 0),
        ),
        (
            &["--keepalive", "31s,12s,4", "--user-timeout", "45s"],
            (true, idle, interval, 4, 45_000),
        ),
        (
            &["--keepalive", "off", "--user-timeout", "0s"],
            (false, systems.1, systems.2, systems.3, 0),
        ),
    ] {
        for (listen, of_tcp) in [("127.0.0.1:0", 2), ("[::1]:0", 2), (&unix, 1)] {
            let server = Server::new();
            // segment would end the keep-alive of the sockets.
            let options = [options, &["--engine", "copy", "--threads", "2"]].concat();
            let relay = Relay::between(listen, &server.address, &options);
            // Through both listening sockets.
            let pairs: Vec<_> = (0..16)
                .map(|_| (Peer::connect(&relay.address), server.accept()))
                .collect();
            for socket in relay.connected_sockets(of_tcp * pairs.len()) {
                assert_eq!(peer_timeouts(socket), expected, "{listen} {options:?}");
            }
        }
    }
}

#[test]
fn an_echo_has_the_keepalive_and_the_user_timeout_that_are_asked_for() {
    let options = ["--keepalive", "31s,12s,4", "--user-timeout", "1500ms"];
    let arguments = [&["echo", "127.0.0.1:0", "--engine", "copy"], &options[..]].concat();
    let relay = Relay::spawn(&mut command(&arguments));
    let _client = Peer::connect(&relay.address);
    let [idle, interval] = [31, 12].map(Duration::from_secs);
    for socket in relay.connected_sockets(1) {
        assert_eq!(peer_timeouts(socket), (true, idle, interval, 4, 1500));
    }
}

/// Whichever side has ended its stream. A connection with two streams goes on.
#[test]
fn a_half_closed_connection_is_reset() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let scratch = Scratch::new("half-closed").expect("a directory");
    for engine in ["auto", "copy"] {
        let log = Log::below(&scratch);
        let server = Server::new();
        let options = [
            "--half-close-timeout",
            "300ms",
            "--engine",
            engine,
            "--access-log",
            &log.path,
        ];
        let mut relay = Relay::to(&server.address, &options);
        let (open, open_far) = (Peer::connect(&relay.address), server.accept());
        for client_ends in [true, false] {
            let (near, far) = (Peer::connect(&relay.address), server.accept());
            let (first, second) = match client_ends {
                true => (near, far),
                false => (far, near),
            };
            let started = Instant::now();
            first.end_stream();
            assert_eq!(
                second.read_to_end(Payload::new(0), 0),
                (0, End::OfStream),
                "{engine}"
            );
            first.expect_reset();
            assert!(started.elapsed() >= TIMEOUT - Duration::from_millis(10));
        }
        exchange(&open, &open_far, 43, SOME_BYTES, SOME_BYTES);
        relay.terminate();
        let outcomes: Vec<_> = log
            .entries()
            .iter()
            .map(|entry| entry["outcome"].clone())
            .collect();
        let half_closed = "half-closed for too long";
        assert_eq!(outcomes, ["end of stream", half_closed, half_closed]);
        fs::remove_file(&log.path).expect("the log");
    }
}

#[test]
fn the_log_level_comes_from_the_option_or_the_environment() {
    let server = Server::new().answering();
    let log_of = |options: &[&str], environment: Option<&str>| {
        let whole = ["relay", "127.0.0.1:0", &server.address];
        let mut command = command(&[&whole[..], options].concat());
        command.envs(environment.map(|level| ("SPLICED_LOG", level)));
        Relay::spawn(&mut command)
    };
    let tells_ends = |mut relay: Relay| {
        ask(&Peer::connect(&relay.address), 0, 10, 10);
        relay.terminate();
        relay.wait_logged("no longer accepting");
        relay.lines_logged("connection 1 ended")
    };
    assert_eq!(tells_ends(log_of(&[], None)), 0);
    assert_eq!(tells_ends(log_of(&["--log", "debug"], None)), 1);
    assert_eq!(tells_ends(log_of(&[], Some("debug"))), 1);
    // The option overrides the environment.
    assert_eq!(tells_ends(log_of(&["--log", "info"], Some("debug"))), 0);
}

#[test]
fn log_level_off_writes_nothing() {
    let scratch = Scratch::new("silent").expect("a directory");
    let path = scratch.path().join("socket");
    let address = format!("unix:{}", path.display());
    let server = Server::new().answering();
    let arguments = ["relay", &address, &server.address, "--log", "off"];
    let mut relay = Relay::spawn_silent(&mut command(&arguments));
    until("it listens", || {
        Peer::try_connect(&address).is_ok_and(|peer| {
            ask(&peer, 5, 100, 100);
            true
        })
    });
    relay.terminate();
    assert_eq!(relay.lines_logged(""), 0);
    assert_eq!(server.finish(), [5]);
}

/// The reader of the diagnostics may go away without an effect on connections.
#[test]
fn a_closed_stderr_does_not_stop_the_relay() {
    let scratch = Scratch::new("stderr").expect("a directory");
    let path = scratch.path().join("socket");
    let listen = format!("unix:{}", path.display());
    let target = format!("unix:{}", scratch.path().join("nobody").display());
    let arguments = [
        "relay",
        &listen,
        &target,
        "--threads",
        "1",
        "--log",
        "debug",
    ];
    let mut relay = Process::spawn(
        command(&arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped()),
    )
    .expect("it starts");
    let stderr = relay.child_mut().stderr.take().expect("its stderr");
    let mut first = String::new();
    BufReader::new(stderr)
        .read_line(&mut first)
        .expect("its first line");
    assert!(first.contains("listening on"), "{first}");
    for _ in 0..3 {
        // Each client causes a warning about the target.
        let mut client = UnixStream::connect(&path).expect("it still accepts");
        let ended = client.read(&mut [0]);
        assert!(!matches!(ended, Ok(1)), "{ended:?}");
    }
    relay.signal(Signal::TERM).expect("it can be signalled");
    let status = relay
        .wait_at_most(PATIENCE)
        .expect("wait")
        .expect("it ends");
    assert_eq!(status.code(), Some(0));
}
