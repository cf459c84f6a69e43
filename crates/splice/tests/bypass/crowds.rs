//! Many connections at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use netlab::{Lab, Need, available, until};

use crate::payload::Payload;
use crate::random::Random;
use crate::stage::{Ends, Polled, Stage, bytes};

/// The most that may wait in one direction: the bound, and the default.
const MOST_UNREAD_BYTES: u64 = 4 << 20;

/// The most that TCP's own buffers hold besides, in both sockets (the third values of tcp_rmem and tcp_wmem, with their
/// overhead, are at most 6 MiB and 4 MiB by default).
const TCP_BYTES: u64 = 24 << 20;

/// Connects `count` times, fast: both ends stay in their namespaces and groups.
pub(crate) fn connect(stage: &Stage, count: usize) -> Vec<Ends> {
    let [near, far] = &stage.groups;
    let bind = || TcpListener::bind((Lab::SERVER_V4, 0)).expect("a listener");
    let listener = far.enter(|| stage.lab.server().enter(bind));
    let listener = listener.expect("entered").expect("entered");
    let to = listener.local_addr().expect("bound");
    let dial = || (0..count).map(|_| TcpStream::connect(to).expect("connected"));
    thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let accept = |_| listener.accept().expect("accepted").0;
            (0..count).map(accept).collect::<Vec<_>>()
        });
        let clients: Vec<_> = near
            .enter(|| stage.lab.client().enter(|| dial().collect()))
            .expect("entered")
            .expect("entered");
        let mut servers = accepted.join().expect("no panic");
        let ends = clients.into_iter().map(|client| {
            let port = client.local_addr().expect("bound").port();
            let peer = |server: &TcpStream| server.peer_addr().expect("connected").port() == port;
            let at = servers.iter().position(peer).expect("its other end");
            let server = servers.swap_remove(at);
            for end in [&client, &server] {
                end.set_nodelay(true).expect("set");
                end.set_read_timeout(Some(netlab::PATIENCE)).expect("set");
            }
            Ends { client, server }
        });
        ends.collect()
    })
}

/// Has all be redirected.
pub(crate) fn until_all_are_redirected(stage: &Stage, all: &mut [Ends]) {
    let mut random = Random::of_run(70);
    until("all are redirected", || {
        all.iter_mut()
            .for_each(|ends| ends.converse(&mut random, 20, 200));
        let connections = stage.status().connections;
        let moved = connections
            .iter()
            .filter(|of| of.client.is_some_and(|end| end.redirected_messages > 0));
        moved.count() == all.len()
    });
}

#[test]
fn five_thousand_connections_come_and_go_while_it_is_turned_on_and_off() {
    if !available(Need::Root) {
        return;
    }
    const CONNECTIONS: usize = 5_000;
    const TURNS: usize = 10;
    let stage = Stage::new();
    let [near, far] = &stage.groups;
    let bind = || TcpListener::bind((Lab::SERVER_V4, 0)).expect("a listener");
    let listener = far.enter(|| stage.lab.server().enter(bind));
    let listener = listener.expect("entered").expect("entered");
    let to = listener.local_addr().expect("bound");
    let is_over = AtomicBool::new(false);
    let over = Over(&is_over, to, &stage);
    let (done, redirected) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        // Echoes, each in a thread of its own.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let (mut server, _) = listener.accept().expect("accepted");
                server.set_nodelay(true).expect("set");
                scope.spawn(move || {
                    let mut buffer = vec![0; 4096];
                    while let Ok(count @ 1..) = server.read(&mut buffer) {
                        server.write_all(&buffer[..count]).expect("sent");
                    }
                });
            }
        });
        for number in 0..3 {
            let (done, is_over, lab) = (&done, &is_over, &stage.lab);
            scope.spawn(move || {
                let call = || {
                    let mut random = Random::of_run(80 + number);
                    while !is_over.load(Ordering::Relaxed) {
                        let mut client = TcpStream::connect(to).expect("connected");
                        client.set_nodelay(true).expect("set");
                        // Most are short, and over before they are looked at.
                        let most = if random.below(10) == 0 { 3000 } else { 60 };
                        for _ in 0..random.size(most) {
                            let length = random.size(900);
                            let message = bytes(&mut random, length);
                            client.write_all(&message).expect("sent");
                            let mut heard = vec![0; length];
                            client.read_exact(&mut heard).expect("received");
                            assert!(heard == message, "other bytes");
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                };
                near.enter(|| lab.client().enter(call))
                    .expect("entered")
                    .expect("entered");
            });
        }
        let over = over;
        for turn in 1..=TURNS {
            let running = stage.start();
            until("a tenth of them has come and gone", || {
                done.load(Ordering::Relaxed) >= CONNECTIONS * turn / TURNS
            });
            let sum = stage.status().sum().redirected_messages;
            redirected.fetch_add(sum as usize, Ordering::Relaxed);
            running.stop();
            assert!(!stage.pins.path().exists());
        }
        drop(over);
    });
    println!(
        "{} connections, {} messages redirected",
        done.load(Ordering::Relaxed),
        redirected.load(Ordering::Relaxed)
    );
    assert!(redirected.load(Ordering::Relaxed) > CONNECTIONS);
}

/// Ends the threads of a test that fails, too, and wakes the one that accepts.
struct Over<'a>(&'a AtomicBool, std::net::SocketAddr, &'a Stage);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.2.lab.client().enter(|| TcpStream::connect(self.1));
    }
}

#[test]
fn two_hundred_readers_that_stop_hold_bounded_memory() {
    if !available(Need::Root) {
        return;
    }
    const READERS: usize = 200;
    let stage = Stage::new();
    let running = stage.start();
    let mut all = connect(&stage, READERS);
    until_all_are_redirected(&stage, &mut all);
    let before = available_bytes();
    let sent: Vec<u64> = all
        .iter()
        .enumerate()
        .map(|(number, ends)| {
            ends.client.set_nonblocking(true).expect("set");
            let payload = Payload::new(number as u64);
            let mut sent = 0;
            loop {
                match (&ends.client).write(payload.piece(sent, 3000)) {
                    Ok(count) => sent += count as u64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return sent,
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .collect();
    let held = before.saturating_sub(available_bytes());
    let connections = stage.status().connections;
    let unread = connections
        .iter()
        .filter_map(|of| Some(of.client?.unread_bytes));
    let most = unread.max().expect("connections");
    println!(
        "{READERS} readers that stop: {} MiB sent, at most {most} bytes unread beside TCP's in a direction, {} MiB of memory",
        sent.iter().sum::<u64>() >> 20,
        held >> 20
    );
    assert!(most <= MOST_UNREAD_BYTES);
    assert!(held <= READERS as u64 * (2 * MOST_UNREAD_BYTES + TCP_BYTES));
    for (number, (ends, sent)) in all.iter().zip(sent).enumerate() {
        let payload = Payload::new(number as u64);
        let mut heard = vec![0; 64 << 10];
        let mut at = 0;
        while at < sent {
            let most = heard.len().min((sent - at) as usize);
            let count = (&ends.server).read(&mut heard[..most]).expect("received");
            assert_ne!(count, 0);
            payload.check(at, &heard[..count]);
            at += count as u64;
        }
    }
    running.stop();
}

fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("readable");
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    number
        .and_then(|number| number.parse::<u64>().ok())
        .expect("a number")
        << 10
}

#[test]
fn sixty_four_writers_wait_for_one_slow_reader() {
    if !available(Need::Root) {
        return;
    }
    const WRITERS: usize = 64;
    const EACH_BYTES: u64 = 6 << 20;
    let stage = Stage::new();
    let running = stage.start();
    let mut all = connect(&stage, WRITERS);
    until_all_are_redirected(&stage, &mut all);
    let most = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (number, ends) in all.iter().enumerate() {
            scope.spawn(move || {
                let payload = Payload::new(number as u64);
                let mut sent = 0;
                while sent < EACH_BYTES {
                    let piece = payload.piece(sent, 2000.min((EACH_BYTES - sent) as usize));
                    Polled(&ends.client).write_all(piece).expect("sent");
                    sent += piece.len() as u64;
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let connections = stage.status().connections;
                let unread = connections
                    .iter()
                    .filter_map(|of| Some(of.client?.unread_bytes));
                most.fetch_max(unread.max().unwrap_or(0) as usize, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
        });
        // One after the other, in small reads: the others wait.
        let mut heard = vec![0; 8 << 10];
        for (number, ends) in all.iter().enumerate() {
            let payload = Payload::new(number as u64);
            let mut at = 0;
            while at < EACH_BYTES {
                let count = Polled(&ends.server).read(&mut heard).expect("received");
                assert_ne!(count, 0);
                payload.check(at, &heard[..count]);
                at += count as u64;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let most = most.load(Ordering::Relaxed) as u64;
    println!("{WRITERS} writers: at most {most} bytes unread in a direction");
    assert!(most > 0 && most <= MOST_UNREAD_BYTES, "{most}");
    running.stop();
}
