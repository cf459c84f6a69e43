//! Many clients at once, and a shortage of descriptors.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Process, Scratch};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::patience::until;
use crate::payload::Payload;
use crate::peer::{End, Peer};
use crate::relay::{BINARY, Relay, limit_with};
use crate::server::{Server, ask, call};

/// The growth of a process that the allocator may cause with this number of clients. A leak of one page for
/// each connection would be twice as much.
const RESIDENT_SLACK_BYTES: u64 = 4 << 20;

/// Each client takes two descriptors, and the usual soft limit is 1024. Raises a lower limit to what all tests
/// together need, and no further, since child processes inherit it.
pub(crate) fn allow_a_crowd() {
    const ENOUGH: u64 = 4096;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < ENOUGH) {
        let current = maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
        let enough = Rlimit {
            current: Some(current),
            maximum,
        };
        setrlimit(Resource::Nofile, enough).expect("RLIMIT_NOFILE");
    }
}

/// `count` clients connect at the same time, each holds a conversation, and all leave at the same time.
fn crowd(address: &str, numbers: std::ops::Range<u64>) {
    const THREADS: u64 = 10;
    let each = (numbers.end - numbers.start) / THREADS;
    let all_there = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (first, all_there) = (numbers.start + thread * each, &all_there);
            scope.spawn(move || {
                let clients: Vec<_> = (0..each).map(|_| Peer::connect(address)).collect();
                all_there.wait();
                for (client, number) in clients.iter().zip(first..) {
                    ask(client, number, 2000 + number % 7000, 3000 + number % 5000);
                }
                all_there.wait();
            });
        }
    });
}

#[test]
fn five_hundred_simultaneous_clients_leave_nothing_behind() {
    const CLIENTS: u64 = 500;
    const ROUNDS: u64 = 4;
    allow_a_crowd();
    let scratch = Scratch::new("crowd").expect("a directory");
    let unix = format!("unix:{}/socket", scratch.path().display());
    for (listen, threads) in [("127.0.0.1:0", "1"), (":0", "3"), (&unix, "3")] {
        let server = Server::new().answering();
        let relay = Relay::between(listen, &server.address, &["--threads", threads]);
        let address = relay.address.replace("[::]", "[::1]");
        let before = relay.descriptors();
        crowd(&address, 0..CLIENTS);
        relay.wait_descriptors(before);
        let after_first_bytes = relay.resident_bytes();
        for round in 1..ROUNDS {
            crowd(&address, round * CLIENTS..(round + 1) * CLIENTS);
            relay.wait_descriptors(before);
        }
        let growth_bytes = relay.resident_bytes().saturating_sub(after_first_bytes);
        assert!(
            growth_bytes < RESIDENT_SLACK_BYTES,
            "{growth_bytes} bytes more"
        );
        assert_eq!(server.finish(), (0..ROUNDS * CLIENTS).collect::<Vec<_>>());
    }
}

#[test]
fn connections_without_data_leave_nothing_behind() {
    const CLIENTS: usize = 300;
    let server = Server::new();
    let relay = Relay::to(&server.address, &["--threads", "2"]);
    let before = relay.descriptors();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| Peer::connect(&relay.address))
        .collect();
    drop(clients);
    for _ in 0..CLIENTS {
        server.accept().expect_end();
    }
    relay.wait_descriptors(before);
}

/// A relay with `spare` descriptors left after its start.
fn short_of_descriptors(target: &str, spare: usize, options: &[&str]) -> Relay {
    // A first relay shows how many descriptors these options need.
    let own = Relay::to(target, options).own_descriptors();
    let limit = format!("--nofile={0}:{0}", limit_with(own + spare));
    let mut command = Process::command("prlimit");
    command
        .args([&limit, "--", BINARY, "relay", "127.0.0.1:0", target])
        .args(options)
        .env_remove("SPLICED_LOG");
    Relay::spawn(&mut command)
}

#[test]
fn a_shortage_of_descriptors_delays_clients_and_loses_none() {
    const CLIENTS: usize = 40;
    const SOME_BYTES: u64 = 50_000;
    /// The time for which the test watches the relay while it is out of descriptors.
    const WATCHED: Duration = Duration::from_secs(1);
    // Odd and even: a connection takes two, so one of the numbers leaves a client without a target.
    for spare in [20, 21] {
        for engine in ["auto", "pipe"] {
            let server = Server::new();
            let options = [
                "--threads",
                "2",
                "--engine",
                engine,
                "--connect-timeout",
                "120s",
            ];
            let relay = short_of_descriptors(&server.address, spare, &options);
            let before = relay.descriptors();
            let started = Instant::now();
            let clients: Vec<_> = (0..CLIENTS as u64)
                .map(|number| call(&relay.address, number, SOME_BYTES))
                .collect();
            let line = relay.wait_logged("no connection can be accepted for now");
            assert!(line.contains("RLIMIT_NOFILE ("), "{line}");
            let cpu_before = relay.cpu_time();
            thread::sleep(WATCHED);
            let cpu = relay.cpu_time() - cpu_before;
            assert!(
                cpu < WATCHED / 4,
                "{cpu:?} of CPU time to do nothing in {WATCHED:?}"
            );
            let most = 1 + started.elapsed().as_secs() as usize;
            assert!(relay.lines_logged("no connection can be accepted") <= most);
            // Each connection that ends makes room for another, and every client is served exactly once.
            let mut served: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let far = server.accept();
                    let number = far.read_number();
                    let came = far.read_to_end(Payload::new(number), 0);
                    assert_eq!(
                        came,
                        (SOME_BYTES, End::OfStream),
                        "{engine}, {spare}: {number}"
                    );
                    far.send(Payload::new(!number), 0, SOME_BYTES);
                    number
                })
                .collect();
            served.sort_unstable();
            assert_eq!(served, (0..CLIENTS as u64).collect::<Vec<_>>());
            for (client, number) in clients.iter().zip(0..) {
                let came = client.read_to_end(Payload::new(!number), 0);
                assert_eq!(
                    came,
                    (SOME_BYTES, End::OfStream),
                    "{engine}, {spare}: {number}"
                );
            }
            assert!(
                !server.is_called_within(Duration::ZERO),
                "somebody came twice"
            );
            drop(clients);
            relay.wait_descriptors(before);
        }
    }
}

#[test]
fn after_a_shortage_the_relay_is_as_fast_as_before() {
    /// Some more than a start has to have left for clients.
    const SPARE: usize = 8;
    let server = Server::new();
    // Watching packet filters would need descriptors as well.
    let options = ["--threads", "1", "--engine", "copy"];
    let relay = short_of_descriptors(&server.address, SPARE, &options);
    let before = relay.descriptors();
    let held: Vec<_> = (0..SPARE).map(|_| Peer::connect(&relay.address)).collect();
    relay.wait_logged("no connection can be accepted for now");
    drop(held);
    for _ in 0..SPARE {
        server.accept().expect_end();
    }
    relay.wait_descriptors(before);
    let answering = server.answering();
    for number in 0..50 {
        ask(&Peer::connect(&relay.address), number, 1000, 1000);
        until("its descriptors are free", || {
            relay.descriptors() <= before + 2
        });
    }
    assert_eq!(answering.finish(), (0..50).collect::<Vec<_>>());
}
