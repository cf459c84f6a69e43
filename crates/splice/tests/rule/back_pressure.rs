//! A receiver that does not read blocks its sender, and the memory in between is bounded.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use splice::{Endpoint, EngineName, EventLoop, Limits, Options, Reason, SocketMemory};

use crate::support::contestant::Contestant;
use crate::support::mix::Mix;
use crate::support::patience::PATIENCE;
use crate::support::payload::Payload;
use crate::support::peer::Peer;
use crate::support::random::Random;
use crate::support::relay::{FROM_A, FROM_B, Relay, outcome, payloads};
use crate::support::transfer::{Pace, receive, receive_to_end, send, send_until_blocked};

/// Long enough for TCP's tuning to enlarge the buffers as far as it wants.
const WARM_UP_BYTES: u64 = 256 << 20;
const SHORT_WARM_UP_BYTES: u64 = 24 << 20;
const SMALL_BOUND_BYTES: usize = 4 << 20;
/// The peers' own buffers: they do not count, and must not hide what the relay holds.
const PEER_BUFFER_BYTES: usize = 4 << 20;
/// No correct set of buffers between the peers holds more.
const MOST_SENT_BYTES: u64 = 96 << 20;
/// The part of the bound that one direction may have in flight, whatever its engine could take.
const IN_HAND_SHARE: usize = 16;
/// The most that the kernel takes beyond a buffer's limit: it checks before it adds a packet, which
/// is 64 KiB and its overhead (`tcp_can_ingest`).
const PACKET_BYTES: usize = 128 << 10;
const PAUSED_BYTES: u64 = 12 << 20;
/// Enough for the peers to fill all room.
const PAUSE: Duration = Duration::from_millis(5);
/// How much a sender writes between two pauses.
const MOST_TURNS: u64 = 16;
const SAMPLE_EVERY: Duration = Duration::from_millis(2);

pub(crate) fn one_direction(engine: &Contestant) {
    stall(
        engine,
        Mix::TCP4,
        &[true, false],
        Limits::default(),
        WARM_UP_BYTES,
    );
}

pub(crate) fn both_directions(engine: &Contestant) {
    stall(
        engine,
        Mix::TCP4,
        &[true, true],
        Limits::default(),
        WARM_UP_BYTES,
    );
}

pub(crate) fn a_small_bound(engine: &Contestant) {
    let limits = Limits {
        memory_bytes: SMALL_BOUND_BYTES,
        ..Limits::default()
    };
    engine.with_each_kind(|mix| stall(engine, mix, &[true, true], limits, SHORT_WARM_UP_BYTES));
}

pub(crate) fn every_kind(engine: &Contestant) {
    let limits = Limits::default();
    engine.with_each_kind(|mix| stall(engine, mix, &[true, true], limits, SHORT_WARM_UP_BYTES));
}

/// A relay's thread may be delayed at any moment. Meanwhile its peers fill its sockets, as far as
/// the kernel has made room by then.
pub(crate) fn a_small_bound_while_the_loop_pauses(engine: &Contestant) {
    let limits = Limits {
        memory_bytes: SMALL_BOUND_BYTES,
        ..Limits::default()
    };
    let options = Options {
        engine: engine.choice,
        limits,
        ..Options::default()
    };
    let mut random = Random::of_run(3);
    engine.with_each_kind(|mix| {
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        for peer in [&a, &b] {
            peer.widen(PEER_BUFFER_BYTES);
        }
        let probe = Probe::of([&near, &far], mix);
        let mut event_loop = EventLoop::new().unwrap();
        let [near, far] = [near, far].map(|fd| Endpoint::new(fd).unwrap());
        let handle = event_loop.join(near, far, &options).unwrap();
        let mut fullest = SocketMemory::default();
        thread::scope(|scope| {
            for (from, to, payload) in [(&a, &b, FROM_A), (&b, &a, FROM_B)] {
                let payload = Payload::new(payload);
                scope.spawn(move || {
                    send(from, payload, 0..PAUSED_BYTES, Pace::Steady);
                    from.end_stream();
                });
                scope.spawn(move || receive_to_end(to, payload, 0..PAUSED_BYTES, Pace::Steady));
            }
            // Peers that give up leave their sockets to the loop.
            let start = Instant::now();
            while handle.outcome().is_none() && start.elapsed() < PATIENCE {
                for _ in 0..random.below(MOST_TURNS) {
                    event_loop.turn(Some(PAUSE)).unwrap();
                }
                thread::sleep(PAUSE);
                for socket in probe.look() {
                    if socket.receive_bytes > fullest.receive_bytes {
                        fullest = socket;
                    }
                }
            }
        });
        assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
        // One of the pair's four buffers.
        let most = SMALL_BOUND_BYTES / 5 + PACKET_BYTES;
        assert!(fullest.receive_bytes <= most, "over {most}: {fullest:?}");
    });
}

fn held_bytes(sockets: &[SocketMemory; 2]) -> usize {
    sockets.iter().map(SocketMemory::held_bytes).sum()
}

/// The relay's two sockets, seen through duplicates.
struct Probe([Endpoint; 2]);

impl Probe {
    fn of(sockets: [&OwnedFd; 2], mix: Mix) -> Self {
        let mut kinds = mix.kinds().into_iter();
        Self(sockets.map(|socket| {
            let duplicate = socket.try_clone().expect("a duplicate");
            Endpoint::prepared(duplicate, kinds.next().expect("two kinds"))
        }))
    }

    fn look(&self) -> [SocketMemory; 2] {
        [0, 1].map(|end: usize| self.0[end].memory().expect("SO_MEMINFO"))
    }
}

fn stall(engine: &Contestant, mix: Mix, ways: &[bool; 2], limits: Limits, warm_up: u64) {
    let relay = Relay::with_limits(engine, limits);
    let (a, near) = Peer::connected(mix.a);
    let (b, far) = Peer::connected(mix.b);
    for peer in [&a, &b] {
        peer.widen(PEER_BUFFER_BYTES);
    }
    let probe = Probe::of([&near, &far], mix);
    let handle = relay.join_sockets(near, far);
    relay.wait_for_kernel(&handle);
    let [from_a, from_b] = payloads();
    let flows: Vec<_> = [(&a, &b, from_a), (&b, &a, from_b)]
        .into_iter()
        .zip(ways)
        .filter_map(|(flow, used)| used.then_some(flow))
        .collect();

    thread::scope(|scope| {
        for &(from, to, payload) in &flows {
            scope.spawn(move || send(from, payload, 0..warm_up, Pace::Steady));
            scope.spawn(move || receive(to, payload, 0..warm_up, Pace::Steady));
        }
    });

    let mut fullest = [SocketMemory::default(); 2];
    let mut sample = || {
        let now = probe.look();
        if held_bytes(&now) > held_bytes(&fullest) {
            fullest = now;
        }
    };
    let sent: Vec<u64> = thread::scope(|scope| {
        let senders: Vec<_> = flows
            .iter()
            .map(|&(from, _, payload)| {
                scope.spawn(move || send_until_blocked(from, payload, warm_up, MOST_SENT_BYTES))
            })
            .collect();
        while !senders.iter().all(thread::ScopedJoinHandle::is_finished) {
            sample();
            thread::sleep(SAMPLE_EVERY);
        }
        sample();
        senders
            .into_iter()
            .map(|sender| sender.join().unwrap())
            .collect()
    });
    let held = held_bytes(&fullest);
    let total = held
        + engine
            .in_flight_bytes
            .min(limits.memory_bytes / IN_HAND_SHARE)
            * flows.len();
    eprintln!("held {held} in sockets, at most {total}");
    // Translated segments wait at their sender.
    let translated = handle.engine().0 == EngineName::Segment;
    assert!(held > 0 || translated, "nothing was held up");
    assert!(
        total <= limits.memory_bytes,
        "{total} bytes held of {} allowed, {held} of them in sockets: {fullest:?}",
        limits.memory_bytes
    );

    drop(probe);
    thread::scope(|scope| {
        for (&(from, to, payload), &sent) in flows.iter().zip(&sent) {
            let end = sent + (1 << 20);
            scope.spawn(move || {
                send(from, payload, sent..end, Pace::Steady);
                from.end_stream();
            });
            scope.spawn(move || receive_to_end(to, payload, warm_up..end, Pace::Steady));
        }
    });
    for (peer, used) in [&a, &b].into_iter().zip(ways) {
        if !used {
            peer.end_stream();
        }
    }
    assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
}
