//! A socket that is spliced to itself returns what it receives, and keeps the other rules.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Need, available};
use splice::{Endpoint, EngineChoice, ErrorKind, Handle, Kind, Limits, Outcome, Reason, Side};

use crate::rule::proof::{counted, looks, wait_asleep, wait_until_free};
use crate::support::alone::alone;
use crate::support::contestant::{AIO, Contestant, PIPE, SOCKMAP, URING};
use crate::support::descriptors;
use crate::support::driven::DrivenLoop;
use crate::support::mix::Mix;
use crate::support::patience::until;
use crate::support::payload::Payload;
use crate::support::peer::Peer;
use crate::support::relay::{FROM_A, Relay, outcome, payloads};
use crate::support::transfer::{
    Ending, Pace, receive, receive_to_end, receive_until_cut, send, send_until_blocked,
};

const BYTES: u64 = 8 << 20;
const CLIENTS: u64 = 200;
const CLIENT_BYTES: u64 = 100_000;
const LIMIT: u64 = 300_007;
const IDLE: Duration = Duration::from_millis(150);
const MESSAGES: u64 = 200;
const MESSAGE_BYTES: u64 = 100;
/// The client's own buffers: see `back_pressure`.
const CLIENT_BUFFER_BYTES: usize = 4 << 20;
const WARM_UP_BYTES: u64 = 64 << 20;
const MOST_SENT_BYTES: u64 = 96 << 20;

/// Calls `run` with each kind of client, if the engine needs no second socket. Other engines must
/// say so.
fn with_each_kind(engine: &Contestant, limits: Limits, mut run: impl FnMut(&Relay, Kind)) {
    let relay = Relay::with_limits(engine, limits);
    if let EngineChoice::Only(name) = engine.choice
        && name.can_echo().is_err()
    {
        let (_peer, socket) = Peer::connected(Kind::Tcp4);
        let endpoint = Endpoint::new(socket).expect("an endpoint");
        let error = relay.splicer.echo(endpoint, &relay.options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EngineRefused);
        assert!(
            error
                .to_string()
                .contains("cannot splice a socket to itself")
        );
        return;
    }
    engine.with_each_kind(|mix| run(&relay, mix.a));
}

impl Relay {
    fn echo(&self, kind: Kind) -> (Peer, Handle) {
        let (peer, socket) = Peer::connected(kind);
        (peer, self.echo_socket(socket))
    }

    fn echo_socket(&self, socket: OwnedFd) -> Handle {
        let endpoint = Endpoint::new(socket).expect("an endpoint");
        self.splicer.echo(endpoint, &self.options).expect("an echo")
    }
}

fn ends_in_order(handle: &Handle, bytes: u64) {
    let Outcome { reason, moved, .. } = outcome(handle);
    assert_eq!(reason, Reason::EndOfStream);
    assert_eq!([moved.a_to_b, moved.b_to_a], [bytes, 0]);
}

pub(crate) fn every_byte(engine: &Contestant) {
    let [payload, _] = payloads();
    with_each_kind(engine, Limits::default(), |relay, kind| {
        let (peer, handle) = relay.echo(kind);
        thread::scope(|scope| {
            scope.spawn(|| {
                send(&peer, payload, 0..BYTES, Pace::random(FROM_A));
                peer.end_stream();
            });
            receive_to_end(&peer, payload, 0..BYTES, Pace::random(FROM_A + 10));
        });
        ends_in_order(&handle, BYTES);
    });
}

/// Bytes and EOF that arrived before the splice are answered, too.
pub(crate) fn what_was_there_before(engine: &Contestant) {
    let [payload, _] = payloads();
    with_each_kind(engine, Limits::default(), |relay, kind| {
        let (peer, socket) = Peer::connected(kind);
        send(&peer, payload, 0..5000, Pace::Steady);
        peer.end_stream();
        let handle = relay.echo_socket(socket);
        receive_to_end(&peer, payload, 0..5000, Pace::Steady);
        ends_in_order(&handle, 5000);
    });
}

/// A client that sends without reading is blocked. It gets everything later, and then EOF.
pub(crate) fn a_client_that_does_not_read(engine: &Contestant) {
    let [payload, _] = payloads();
    let limits = Limits::default();
    with_each_kind(engine, limits, |relay, kind| {
        let (peer, socket) = Peer::connected(kind);
        peer.widen(CLIENT_BUFFER_BYTES);
        let probe = Endpoint::prepared(socket.try_clone().expect("a duplicate"), kind);
        let handle = relay.echo_socket(socket);
        echoes(&peer, payload, 0..WARM_UP_BYTES);
        let sent = send_until_blocked(&peer, payload, WARM_UP_BYTES, MOST_SENT_BYTES);
        assert!(sent > WARM_UP_BYTES);
        let held = probe.memory().expect("SO_MEMINFO").held_bytes();
        let total = held + engine.in_flight_bytes.min(limits.memory_bytes / 16);
        assert!(
            held > 0 && total <= limits.memory_bytes,
            "{held} bytes held"
        );
        drop(probe);
        receive(&peer, payload, WARM_UP_BYTES..sent, Pace::Steady);
        echoes(&peer, payload, sent..sent + 1000);
        let more = send_until_blocked(&peer, payload, sent + 1000, MOST_SENT_BYTES);
        peer.end_stream();
        receive_to_end(&peer, payload, sent + 1000..more, Pace::Steady);
        ends_in_order(&handle, more);
    });
}

fn echoes(peer: &Peer, payload: Payload, range: Range<u64>) {
    thread::scope(|scope| {
        scope.spawn(|| send(peer, payload, range.clone(), Pace::Steady));
        receive(peer, payload, range.clone(), Pace::Steady);
    });
}

pub(crate) fn a_reset_ends_it(engine: &Contestant) {
    let [payload, _] = payloads();
    with_each_kind(engine, Limits::default(), |relay, kind| {
        for stalled in [false, true] {
            let (peer, handle) = relay.echo(kind);
            echoes(&peer, payload, 0..1000);
            // A UNIX stream is reset by a close with unread bytes.
            send(&peer, payload, 1000..2000, Pace::Steady);
            peer.wait_unread(1000);
            if stalled {
                send_until_blocked(&peer, payload, 2000, MOST_SENT_BYTES);
            }
            peer.reset();
            assert_eq!(outcome(&handle).reason, Reason::Reset(Side::A));
        }
    });
}

pub(crate) fn limits_end_it(engine: &Contestant) {
    let [payload, _] = payloads();
    let limits = Limits {
        byte_limit: Some(LIMIT),
        ..Limits::default()
    };
    with_each_kind(engine, limits, |relay, kind| {
        let (peer, handle) = relay.echo(kind);
        let (position, ending) = thread::scope(|scope| {
            // The last piece contains the excess.
            scope.spawn(|| send(&peer, payload, 0..LIMIT + 1000, Pace::Steady));
            receive_until_cut(&peer, payload, 0)
        });
        assert_eq!(position, LIMIT);
        // The others show by a reset that not everything was read.
        let tells_end = matches!(kind, Kind::Tcp4 | Kind::Tcp6);
        assert!(ending == Ending::EndOfStream || !tells_end);
        let Outcome { reason, moved, .. } = outcome(&handle);
        assert_eq!((reason, moved.a_to_b), (Reason::ByteLimit, LIMIT));
    });
    let limits = Limits {
        idle_timeout: Some(IDLE),
        ..Limits::default()
    };
    with_each_kind(engine, limits, |relay, kind| {
        let (peer, handle) = relay.echo(kind);
        send(&peer, payload, 0..10, Pace::Steady);
        assert_eq!(outcome(&handle).reason, Reason::Idle);
        let (position, ending) = receive_until_cut(&peer, payload, 0);
        assert_eq!(position, 10);
        assert!(ending == Ending::Reset || kind == Kind::Unix || kind == Kind::Mptcp);
    });
}

/// An echo has one stream, which cannot be half of it.
pub(crate) fn has_no_half_close_timeout(engine: &Contestant) {
    let [payload, _] = payloads();
    let limits = Limits {
        half_close_timeout: Some(IDLE),
        ..Limits::default()
    };
    with_each_kind(engine, limits, |relay, kind| {
        let (peer, handle) = relay.echo(kind);
        // A pair of the same loop that is joined later ends by it.
        let other = relay.join(Mix { a: kind, b: kind });
        other.a.end_stream();
        assert_eq!(outcome(&other.handle).reason, Reason::HalfClosed);
        assert_eq!(handle.outcome(), None);
        send(&peer, payload, 0..10, Pace::Steady);
        peer.end_stream();
        receive_to_end(&peer, payload, 0..10, Pace::Steady);
        ends_in_order(&handle, 10);
    });
}

/// Each has a stream of its own, and nothing is left of any.
pub(crate) fn many_at_once(engine: &Contestant) {
    alone(|| {
        descriptors::allow_most();
        with_each_kind(engine, Limits::default(), |relay, kind| {
            let before = descriptors::open();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|salt| (relay.echo(kind), Payload::new(salt)))
                .collect();
            for ((peer, _), payload) in &clients {
                send(peer, *payload, 0..1000, Pace::Steady);
            }
            thread::scope(|scope| {
                for some in clients.chunks(clients.len() / 4) {
                    scope.spawn(move || {
                        for ((peer, _), payload) in some {
                            echoes_from(peer, *payload, 1000..CLIENT_BYTES);
                        }
                    });
                }
            });
            for (number, ((peer, handle), payload)) in clients.into_iter().enumerate() {
                match number % 3 {
                    0 => {
                        peer.end_stream();
                        receive_to_end(&peer, payload, CLIENT_BYTES..CLIENT_BYTES, Pace::Steady);
                        ends_in_order(&handle, CLIENT_BYTES);
                    }
                    1 => {
                        drop(handle);
                        let (position, _) = receive_until_cut(&peer, payload, CLIENT_BYTES);
                        assert_eq!(position, CLIENT_BYTES);
                    }
                    _ => {
                        handle.detach();
                        drop(peer);
                    }
                }
            }
            until("everything is closed", || descriptors::open() == before);
        });
    });
}

/// Sends the bytes of `sent`, and expects everything from the start back.
fn echoes_from(peer: &Peer, payload: Payload, sent: Range<u64>) {
    thread::scope(|scope| {
        scope.spawn(|| send(peer, payload, sent.clone(), Pace::Steady));
        receive(peer, payload, 0..sent.end, Pace::Steady);
    });
}

pub(crate) fn costs_what_the_engine_promises(engine: &Contestant) {
    let echoes = match engine.choice {
        EngineChoice::Only(name) => name.can_echo().is_ok(),
        EngineChoice::Auto => true,
    };
    if !echoes || !available(Need::Root) {
        return;
    }
    // As the proofs of `proof.rs`.
    alone(|| cost_of_small_messages(engine));
}

fn cost_of_small_messages(engine: &Contestant) {
    let mut driven = DrivenLoop::counted();
    let (peer, socket) = Peer::connected(Kind::Tcp4);
    let options = Relay::new(engine).options;
    let (sender, receiver) = std::sync::mpsc::channel();
    let place = move |event_loop: &mut splice::EventLoop| {
        let endpoint = Endpoint::new(socket).unwrap();
        sender
            .send(event_loop.echo(endpoint, &options).unwrap())
            .unwrap();
    };
    driven.remote.run(place).unwrap();
    let _handle = receiver.recv().unwrap();
    let [payload, _] = payloads();
    let round_trips = |numbers: Range<u64>| {
        for number in numbers {
            let range = number * MESSAGE_BYTES..(number + 1) * MESSAGE_BYTES;
            send(&peer, payload, range.clone(), Pace::Steady);
            receive(&peer, payload, range, Pace::Steady);
        }
    };
    round_trips(0..1);
    let calls = &mut driven.calls;
    let asleep = engine.choice == SOCKMAP.choice;
    let mut warm = 1;
    wait_until_free(engine, calls, || {
        round_trips(warm..warm + 1);
        warm += 1;
    });
    let since = Instant::now();
    let before = counted(calls);
    round_trips(warm..warm + MESSAGES);
    wait_asleep(calls);
    let after = counted(calls);
    let [reads, writes, splices, submits, waits] =
        [0, 1, 2, 3, 4].map(|index: usize| after[index] - before[index]);
    if engine.choice == PIPE.choice {
        // The read that checks for more may find the next message.
        assert_eq!([reads, writes, submits], [0; 3]);
        assert!(
            (2 * MESSAGES..=3 * MESSAGES).contains(&splices),
            "{splices}"
        );
        return;
    }
    let wanted = if engine.choice == AIO.choice {
        [0, 0, 0, MESSAGES]
    } else if asleep || engine.choice == URING.choice {
        [0; 4]
    } else {
        [MESSAGES, MESSAGES, 0, 0]
    };
    assert_eq!([reads, writes, splices, submits], wanted);
    let most_waits = if asleep { 0 } else { MESSAGES } + looks(engine, since);
    assert!(waits <= most_waits, "{waits} waits for {MESSAGES} messages");
}
