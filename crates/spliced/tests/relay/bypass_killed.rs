//! The process of `spliced bypass` is killed.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::Signal;
use serde_json::Value;

use crate::bypass::{Ends, Over, Place, redirected};
use crate::patience::until;
use crate::payload::Payload;
use crate::random::Random;

/// When connections go over TCP at the latest, after the process was killed.
const TCP_WITHIN: Duration = Duration::from_secs(1);

/// How much is on its way at most in a flow: less than what has to pass.
const AHEAD_BYTES: u64 = 64 << 10;

/// Small messages that wait for nothing, in one direction.
struct Flow {
    ends: Ends,
    payload: Payload,
    received: AtomicU64,
}

impl Flow {
    fn new(ends: Ends, salt: u64) -> Self {
        Self {
            ends,
            payload: Payload::new(salt),
            received: AtomicU64::new(0),
        }
    }

    /// Sends until told to stop. How much it was.
    fn pour(&self, is_over: &AtomicBool) -> u64 {
        let mut random = Random::of_run(90);
        let mut sent = 0;
        while !is_over.load(Ordering::Relaxed) {
            if sent > self.received.load(Ordering::Relaxed) + AHEAD_BYTES {
                thread::yield_now();
                continue;
            }
            let piece = self.payload.piece(sent, random.size(900));
            (&self.ends.client).write_all(piece).expect("sent");
            sent += piece.len() as u64;
        }
        self.ends.client.shutdown(Shutdown::Write).expect("shut");
        sent
    }

    /// Reads to the end, as a program with an event loop does.
    fn drink(&self) -> u64 {
        let mut buffer = [0; 3000];
        let mut received = 0;
        loop {
            match recv(&self.ends.server, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return received,
                Ok((count, _)) => {
                    self.payload.check(received, &buffer[..count]);
                    received += count as u64;
                    self.received.store(received, Ordering::Relaxed);
                }
                Err(Errno::AGAIN) => {
                    let mut waited = [PollFd::new(&self.ends.server, PollFlags::IN)];
                    poll(&mut waited, None).expect("waited");
                }
                Err(errno) => panic!("{errno}"),
            }
        }
    }

    fn moves(&self) {
        let before = self.received.load(Ordering::Relaxed);
        until("bytes go on", || {
            self.received.load(Ordering::Relaxed) > before + 4 * AHEAD_BYTES
        });
    }
}

/// What status says of a connection.
fn told<'a>(status: &'a Value, ends: &Ends) -> Option<&'a Value> {
    let local = ends.client.local_addr().expect("bound").to_string();
    let mut all = status["connections"].as_array().expect("a list").iter();
    all.find(|of| of["client"]["local"] == local)
}

/// Whether the programs take its process for alive. The command would take longer.
fn is_alive(place: &Place) -> bool {
    let status = splice::bypass::status(&place.pins).expect("it can be read");
    status.expect("it is pinned").is_alive
}

fn until_redirected(place: &Place, ends: &Ends) {
    until("it is redirected", || {
        ends.converse(20);
        let status = place.status();
        told(&status, ends).is_some_and(|of| {
            ["client", "server"]
                .iter()
                .all(|end| of[end]["redirected_messages"].as_u64() > Some(0))
        })
    });
}

#[test]
fn killed_under_load_it_loses_nothing_and_new_connections_go_over_tcp_within_a_second() {
    let Some(place) = Place::new() else { return };
    for is_cleared_by_the_next in [false, true] {
        let mut bypass = place.start(&[]);
        let all: Vec<Ends> = (0..4).map(|_| place.connect()).collect();
        all.iter().for_each(|ends| until_redirected(&place, ends));
        let mut all = all.into_iter();
        let flows = [0, 1].map(|salt| Flow::new(all.next().expect("four"), salt));
        let pairs: Vec<Ends> = all.collect();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let over = Over(&is_over);
            for ends in &pairs {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        ends.converse(20);
                    }
                });
            }
            let poured = flows.each_ref().map(|flow| {
                let sent = scope.spawn(|| flow.pour(&is_over));
                (sent, scope.spawn(|| flow.drink()))
            });
            let before = place.status();
            flows.iter().for_each(Flow::moves);
            let after = place.status();
            for flow in &flows {
                let of = |status| {
                    let told = told(status, &flow.ends).expect("it is there");
                    told["client"]["redirected_bytes"].as_u64()
                };
                assert!(of(&after) > of(&before), "{after}");
            }
            bypass.signal(Signal::KILL);
            bypass.wait_end();
            let killed = Instant::now();
            let late = place.connect();
            late.converse(100);
            assert!(killed.elapsed() < TCP_WITHIN, "{:?}", killed.elapsed());
            until("it is seen to be dead", || !is_alive(&place));
            assert!(killed.elapsed() < TCP_WITHIN, "{:?}", killed.elapsed());
            let before = redirected(&place.status());
            late.converse(100);
            flows.iter().for_each(Flow::moves);
            let status = place.status();
            assert_eq!(redirected(&status), before);
            if let Some(late) = told(&status, &late) {
                for end in ["client", "server"] {
                    // An end that was not seen has none.
                    assert_eq!(late[end]["redirected_messages"].as_u64().unwrap_or(0), 0);
                }
            }
            if is_cleared_by_the_next {
                let mut next = place.start(&[]);
                next.terminate();
            } else {
                assert!(place.off().contains("is off"));
            }
            flows.iter().for_each(Flow::moves);
            drop(over);
            for (sent, received) in poured {
                let [sent, received] = [sent, received].map(|of| of.join().expect("no panic"));
                assert_eq!(sent, received);
            }
        });
        assert!(!place.pins.exists());
    }
}

#[test]
fn what_was_redirected_and_not_read_when_it_was_killed_is_read_later() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.start(&[]);
    let ends = place.connect();
    until_redirected(&place, &ends);
    let payload = Payload::new(3);
    let (mut client, mut server) = (&ends.client, &ends.server);
    for at in 0..100 {
        client
            .write_all(payload.piece(at * 1000, 1000))
            .expect("sent");
    }
    let unread = |status: &Value| {
        told(status, &ends).expect("it is there")["client"]["unread_bytes"].as_u64()
    };
    assert_eq!(unread(&place.status()), Some(100_000));
    bypass.signal(Signal::KILL);
    bypass.wait_end();
    until("it is seen to be dead", || {
        place.status()["is_alive"] == false
    });
    assert_eq!(unread(&place.status()), Some(100_000));
    // This goes over TCP, behind the rest.
    client
        .write_all(payload.piece(100_000, 5000))
        .expect("sent");
    let mut heard = vec![0; 105_000];
    server.read_exact(&mut heard).expect("received");
    payload.check(0, &heard);
    ends.converse(100);
    assert!(place.off().contains("is off"));
    ends.converse(100);
}
