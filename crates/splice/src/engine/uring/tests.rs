//! What cannot be seen from outside: features that a kernel lacks, and what lies in hand.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::squeue::Flags;
use io_uring::types::{Fd, Napi};
use io_uring::{IoUring, cqueue, opcode};
use netlab::PATIENCE;
use rustix::net::sockopt::set_socket_send_buffer_size;

use super::Ring;
use super::buffers::Group;
use super::setup::Features;
use crate::context::Context;
use crate::endpoint::Endpoint;
use crate::engine::{EngineChoice, EngineName};
use crate::event_loop::EventLoop;
use crate::handle::Handle;
use crate::options::Options;
use crate::outcome::Reason;
use crate::task::{Readiness, Step, Task};

/// More than all buffers that are provided.
const BULK_BYTES: usize = 3 << 20;
const MESSAGE_BYTES: usize = 700;
const ROUND_TRIPS: usize = 200;
const PIECE_BYTES: usize = 3000;
const STALLS: usize = 50;
const SOON: Duration = Duration::from_millis(20);
/// The kernel allows 10 ms (seen on 6.18).
const POLLED: Duration = Duration::from_millis(5);

/// Pseudo-random (Knuth's MMIX generator).
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    (0..bytes)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

fn is_available() -> bool {
    let forbidden = super::probe().err().map(|error| error.to_string());
    netlab::present("uring", forbidden)
}

fn join(event_loop: &mut EventLoop, ends: [UnixStream; 2]) -> Handle {
    let [near, far] = ends.map(|end| Endpoint::new(end).unwrap());
    let options = Options {
        engine: EngineChoice::Only(EngineName::Uring),
        ..Options::default()
    };
    event_loop.join(near, far, &options).unwrap()
}

/// Turns until `condition` holds.
fn turn_until(
    event_loop: &mut EventLoop,
    turn: Duration,
    mut condition: impl FnMut(&EventLoop) -> bool,
) {
    let start = Instant::now();
    while !condition(event_loop) {
        assert!(start.elapsed() < PATIENCE, "turned in vain");
        event_loop.turn(Some(turn)).unwrap();
    }
}

/// Messages there and back, then bulk both ways at once.
fn talk(mut peer: UnixStream, says: Vec<u8>, hears: &[u8], begins: bool) {
    let mut message = [0; MESSAGE_BYTES];
    for part in 0..ROUND_TRIPS {
        let range = part * MESSAGE_BYTES..(part + 1) * MESSAGE_BYTES;
        if begins {
            peer.write_all(&says[range.clone()]).unwrap();
        }
        peer.read_exact(&mut message).unwrap();
        assert!(message == hears[range.clone()], "message {part}");
        if !begins {
            peer.write_all(&says[range]).unwrap();
        }
    }
    let said = ROUND_TRIPS * MESSAGE_BYTES;
    let mut writer = peer.try_clone().unwrap();
    let writes = thread::spawn(move || {
        writer.write_all(&says[said..]).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut heard = Vec::new();
    peer.read_to_end(&mut heard).unwrap();
    assert!(heard == hears[said..], "{} bytes of bulk", heard.len());
    writes.join().unwrap();
}

/// A task that always has something to do.
struct Busy;

impl Task for Busy {
    fn start(&mut self, _: &mut Context<'_>) -> Step {
        Step::Again
    }

    fn ready(&mut self, _: &mut Context<'_>, _: u8, _: Readiness) -> Step {
        Step::Again
    }

    fn resume(&mut self, _: &mut Context<'_>) -> Step {
        Step::Again
    }
}

#[test]
fn a_ring_without_pairs_is_given_up_by_a_busy_loop() {
    if !is_available() {
        return;
    }
    let mut event_loop = EventLoop::new().unwrap();
    let (_a, near) = UnixStream::pair().unwrap();
    let (far, _b) = UnixStream::pair().unwrap();
    let handle = join(&mut event_loop, [near, far]);
    event_loop.spawn(Box::new(Busy));
    event_loop.turn(Some(SOON)).unwrap();
    assert!(event_loop.carriers.ring.is_some());
    drop(handle);
    turn_until(&mut event_loop, SOON, |event_loop| {
        event_loop.carriers.ring.is_none()
    });
}

#[test]
fn a_ring_polls_the_device_where_its_loop_does() {
    if !is_available() {
        return;
    }
    let mut event_loop = EventLoop::new().unwrap();
    let polls = event_loop.set_busy_poll(POLLED);
    if !netlab::present("napi", polls.err().map(|error| error.to_string())) {
        return;
    }
    let polled = |ring: &Ring| {
        let mut napi = Napi::new();
        ring.uring.submitter().unregister_napi(&mut napi).unwrap();
        Duration::from_micros(napi.busy_poll_timeout().into())
    };
    assert_eq!(polled(event_loop.ring().unwrap()), POLLED);
    event_loop.set_busy_poll(2 * POLLED).unwrap();
    assert_eq!(polled(event_loop.ring().unwrap()), 2 * POLLED);
}

fn carries_all(features: Features, turn: Duration) {
    let ring = Ring::with(features).expect("a ring");
    assert_eq!(ring.features, features, "this kernel lacks a feature");
    let mut event_loop = EventLoop::new().unwrap();
    event_loop.carriers.ring = Some(ring);
    let (a, near) = UnixStream::pair().unwrap();
    let (far, b) = UnixStream::pair().unwrap();
    let handle = join(&mut event_loop, [near, far]);
    let [from_a, from_b] = [1, 2].map(|seed| noise(seed, BULK_BYTES));
    let (a_hears, b_hears) = (from_b.clone(), from_a.clone());
    let peers = [
        thread::spawn(move || talk(a, from_a, &a_hears, true)),
        thread::spawn(move || talk(b, from_b, &b_hears, false)),
    ];
    turn_until(&mut event_loop, turn, |_| handle.outcome().is_some());
    for peer in peers {
        peer.join().unwrap();
    }
    let outcome = handle.outcome().unwrap();
    assert_eq!(outcome.reason, Reason::EndOfStream);
    let sums = [outcome.moved.a_to_b, outcome.moved.b_to_a];
    assert_eq!(sums, [BULK_BYTES as u64; 2]);
}

#[test]
fn each_feature_can_be_missing() {
    if !is_available() {
        return;
    }
    let all = Features::ALL;
    let none = Features {
        deferred: false,
        multishot: false,
        bundle: false,
        no_iowait: false,
    };
    for features in [
        all,
        Features {
            deferred: false,
            ..all
        },
        Features {
            multishot: false,
            ..all
        },
        Features {
            bundle: false,
            ..all
        },
        none,
        Features {
            deferred: true,
            ..none
        },
    ] {
        eprintln!("{features:?}");
        carries_all(features, SOON);
        carries_all(features, Duration::ZERO);
    }
}

/// A multishot receive takes without asking, and a request to cancel it may come while the kernel
/// cannot find it: what lies in hand stays bounded all the same.
#[test]
fn a_stalled_receiver_is_waited_for_with_little_in_hand() {
    if !is_available() {
        return;
    }
    let piece = noise(3, PIECE_BYTES);
    let fill = |stream: &mut UnixStream| {
        // More than a multishot receive takes at once (`MULTISHOT_MAX_RETRY`).
        set_socket_send_buffer_size(&mut *stream, 1 << 20).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut bytes = 0;
        while let Ok(count) = stream.write(&piece) {
            bytes += count;
        }
        stream.set_nonblocking(false).unwrap();
        bytes
    };
    for _ in 0..STALLS {
        let mut event_loop = EventLoop::new().unwrap();
        let (mut a, near) = UnixStream::pair().unwrap();
        let (mut far, mut b) = UnixStream::pair().unwrap();
        // Nothing can be sent, and a burst is there to be received.
        let before = fill(&mut far);
        let mut sent = fill(&mut a);
        let handle = join(&mut event_loop, [near, far]);
        for _ in 0..20 {
            event_loop.turn(Some(Duration::from_millis(1))).unwrap();
            sent += fill(&mut a);
            let ring = event_loop.carriers.ring.as_ref().unwrap();
            let in_hand = ring.places.0.iter().flat_map(|(_, place)| {
                let flows = place.flows.iter();
                flows.flat_map(|flow| flow.received.iter().chain(&flow.sending))
            });
            let in_hand: usize = in_hand.map(super::Piece::capacity).sum();
            assert!(in_hand <= super::MULTISHOT_BYTES, "{in_hand} bytes in hand");
        }
        drop(a);
        let reader = thread::spawn(move || {
            let mut heard = Vec::new();
            b.read_to_end(&mut heard).unwrap();
            heard.len()
        });
        turn_until(&mut event_loop, SOON, |_| handle.outcome().is_some());
        assert_eq!(reader.join().unwrap(), before + sent);
    }
}

/// Submits a receive into buffers of the group, as user data `number`.
fn receive(ring: &mut IoUring, group: &Group, source: &UnixStream, number: u64, flags: Flags) {
    let entry = opcode::Recv::new(Fd(source.as_raw_fd()), std::ptr::null_mut(), 0)
        .buf_group(group.number())
        .build()
        .flags(flags | Flags::BUFFER_SELECT)
        .user_data(number);
    // SAFETY: the request names no memory; the group outlives the ring.
    unsafe { ring.submission().push(&entry) }.expect("room for a request");
    ring.submit().expect("submitted");
}

/// The next completion: its user data, its result and the first of its buffers.
fn completed(ring: &mut IoUring) -> (u64, i32, Option<u16>) {
    ring.submit_and_wait(1).expect("waited");
    let entry = ring.completion().next().expect("a completion");
    let first = cqueue::buffer_select(entry.flags());
    (entry.user_data(), entry.result(), first)
}

/// What came, piece by piece, of which nobody may have written over any.
fn lengths(group: &mut Group, first: Option<u16>, bytes: i32) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut pieces = Vec::new();
    group.take(first.expect("a buffer"), bytes as usize, |piece| {
        lengths.push(piece.len());
        pieces.push(piece);
    });
    pieces.into_iter().for_each(|piece| group.give_back(piece));
    group.refill();
    lengths
}

/// A worker of the kernel takes a buffer out of the ring when it begins to wait, not when bytes have
/// come (`io_ring_buffer_select` with `IO_URING_F_UNLOCKED`). A receive gets there when the kernel has no
/// memory to poll its socket with, or after 128 wake-ups for nothing (`io_req_alloc_apoll`, 6.18). The
/// others go on meanwhile, and what it has waited for is found in its own buffer.
#[test]
fn a_receive_that_waits_in_a_worker_keeps_its_buffer_and_no_other() {
    const BUFFERS: u16 = 4;
    const BUFFER_BYTES: u32 = 4096;
    const WAITING: usize = 2;
    /// Each more than half of the ring.
    const ROUNDS: usize = 100;
    const LATE: &[u8] = b"late";
    if !is_available() {
        return;
    }
    let mut ring = IoUring::new(8).expect("a ring");
    let mut group = Group::new(&ring, 0, BUFFERS, BUFFER_BYTES).expect("buffers");
    let (mut peer, socket) = UnixStream::pair().unwrap();
    let waiting: Vec<_> = (0..WAITING).map(|_| UnixStream::pair().unwrap()).collect();
    let message = |peer: &mut UnixStream, ring: &mut IoUring, group: &mut Group| {
        let bytes = vec![7; 2 * BUFFER_BYTES as usize + 1];
        peer.write_all(&bytes).unwrap();
        let mut left = bytes.len();
        while left > 0 {
            receive(ring, group, &socket, 1, Flags::empty());
            let (number, result, first) = completed(ring);
            assert_eq!(number, 1, "no other has bytes");
            assert!(result > 0, "{result}: {left} bytes are left");
            let taken = lengths(group, first, result).into_iter().sum::<usize>();
            assert_eq!(taken, result as usize);
            left -= taken;
        }
    };
    for (index, (_, socket)) in waiting.iter().enumerate() {
        receive(&mut ring, &group, socket, 10 + index as u64, Flags::ASYNC);
    }
    netlab::until("the workers have their buffers", || {
        message(&mut peer, &mut ring, &mut group);
        group.kept_by_workers() == WAITING
    });
    for _ in 0..ROUNDS {
        message(&mut peer, &mut ring, &mut group);
    }
    for (index, (peer, _)) in waiting.iter().enumerate().rev() {
        let mut peer: &UnixStream = peer;
        peer.write_all(LATE).unwrap();
        let (number, result, first) = completed(&mut ring);
        assert_eq!(number, 10 + index as u64);
        assert_eq!(lengths(&mut group, first, result), [LATE.len()]);
    }
    for _ in 0..ROUNDS {
        message(&mut peer, &mut ring, &mut group);
    }
    drop(ring);
}
