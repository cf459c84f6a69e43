//! What cannot be seen from outside: missing kernel features, and how much is in flight.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::squeue::Flags;
use io_uring::types::{Fd, Napi};
use io_uring::{IoUring, cqueue, opcode};
use netlab::PATIENCE;
use rustix::net::sockopt::set_socket_send_buffer_size;

use super::Ring;
use super::buffers::{BufferGroup, Taken};
use super::setup::Features;
use crate::carrier::Carriers;
use crate::endpoint::Endpoint;
use crate::name::{EngineChoice, EngineName};
use crate::options::Options;
use crate::outcome::Reason;
use crate::reactor::{Context, EventLoop, Readiness, Step, Task};
use crate::session::Handle;

/// More than all provided buffers hold.
const BULK_BYTES: usize = 3 << 20;
const MESSAGE_BYTES: usize = 700;
const ROUND_TRIPS: usize = 200;
const PIECE_BYTES: usize = 3000;
const STALLS: usize = 50;
pub(super) const SOON: Duration = Duration::from_millis(20);
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

pub(super) fn is_available() -> bool {
    let forbidden = super::probe().err().map(|obstacle| obstacle.reason);
    netlab::present("uring", forbidden)
}

pub(super) fn join(event_loop: &mut EventLoop, ends: [UnixStream; 2]) -> Handle {
    let [near, far] = ends.map(|end| Endpoint::new(end).unwrap());
    let options = Options {
        engine: EngineChoice::Only(EngineName::Uring),
        ..Options::default()
    };
    event_loop.join(near, far, &options).unwrap()
}

/// Turns until `condition` holds.
pub(super) fn turn_until(
    event_loop: &mut EventLoop,
    turn: Duration,
    mut condition: impl FnMut(&mut EventLoop) -> bool,
) {
    let start = Instant::now();
    while !condition(event_loop) {
        assert!(start.elapsed() < PATIENCE, "turned in vain");
        event_loop.turn(Some(turn)).unwrap();
    }
}

/// Messages in both directions, then bulk in both directions at once.
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

/// A task that is always runnable.
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
fn a_busy_loop_closes_a_ring_without_pairs() {
    if !is_available() {
        return;
    }
    let mut event_loop = EventLoop::new().unwrap();
    let (_a, near) = UnixStream::pair().unwrap();
    let (far, _b) = UnixStream::pair().unwrap();
    let handle = join(&mut event_loop, [near, far]);
    event_loop.spawn(Box::new(Busy));
    event_loop.turn(Some(SOON)).unwrap();
    assert!(event_loop.local::<Carriers>().ring.is_some());
    drop(handle);
    turn_until(&mut event_loop, SOON, |event_loop| {
        event_loop.local::<Carriers>().ring.is_none()
    });
}

#[test]
fn a_ring_polls_the_device_if_its_loop_does() {
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
    let (_a, near) = UnixStream::pair().unwrap();
    let (far, _b) = UnixStream::pair().unwrap();
    let _handle = join(&mut event_loop, [near, far]);
    let ring = |event_loop: &mut EventLoop| {
        let ring = event_loop.local::<Carriers>().ring.as_ref();
        polled(ring.expect("the pair has made it"))
    };
    assert_eq!(ring(&mut event_loop), POLLED);
    event_loop.set_busy_poll(2 * POLLED).unwrap();
    assert_eq!(ring(&mut event_loop), 2 * POLLED);
}

fn carries_all(features: Features, turn: Duration) {
    let ring = Ring::with(features).expect("a ring");
    assert_eq!(ring.features, features, "this kernel lacks a feature");
    let mut event_loop = EventLoop::new().unwrap();
    event_loop.local::<Carriers>().ring = Some(ring);
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

/// A multishot receive takes bytes without asking, and the kernel may not find it when it is to be
/// cancelled. What is in flight stays bounded all the same.
#[test]
fn a_stalled_receiver_leaves_little_in_flight() {
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
        // Nothing can be sent, and a burst is ready to be received.
        let before = fill(&mut far);
        let mut sent = fill(&mut a);
        let handle = join(&mut event_loop, [near, far]);
        for _ in 0..20 {
            event_loop.turn(Some(Duration::from_millis(1))).unwrap();
            sent += fill(&mut a);
            let ring = event_loop.local::<Carriers>().ring.as_ref().unwrap();
            let in_flight = ring.lanes.0.iter().flat_map(|(_, pair)| {
                let states = pair.states.iter();
                states.flat_map(|state| state.received.iter().chain(&state.sending))
            });
            let in_flight: usize = in_flight.map(super::Piece::capacity).sum();
            assert!(
                in_flight <= super::MULTISHOT_BYTES,
                "{in_flight} bytes in flight"
            );
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

/// A ring with few buffers. Some receives wait in kernel workers while others go on.
///
/// A worker takes a buffer from the ring when it begins to wait, not when bytes arrive
/// (`io_ring_buffer_select` with `IO_URING_F_UNLOCKED`). A receive gets there if the kernel has no
/// memory to poll its socket, or after 128 futile wake-ups (`io_req_alloc_apoll`, 6.18), or on
/// request.
struct Waiting {
    ring: IoUring,
    group: BufferGroup,
    busy: [UnixStream; 2],
    pairs: Vec<[UnixStream; 2]>,
}

impl Waiting {
    /// Enough for all that wait and for the messages of the others, until the completions name the
    /// buffers.
    const BUFFERS: u16 = 8;
    const BUFFER_BYTES: usize = 4096;
    /// Each takes three buffers.
    const ROUNDS: usize = 100;

    fn in_workers(count: usize) -> Self {
        let ring = IoUring::new(8).expect("a ring");
        let group = BufferGroup::new(&ring, 0, Self::BUFFERS, Self::BUFFER_BYTES as u32);
        let pair = || UnixStream::pair().unwrap().into();
        let mut waiting = Self {
            ring,
            group: group.expect("buffers"),
            busy: pair(),
            pairs: (0..count).map(|_| pair()).collect(),
        };
        for index in 0..count {
            let source = waiting.pairs[index][1].as_raw_fd();
            waiting.receive(source, 1 + index as u64, Flags::ASYNC);
        }
        netlab::until("the workers have their buffers", || {
            waiting.others_go_on();
            waiting.group.kept_by_workers() == count
        });
        for _ in 0..Self::ROUNDS {
            waiting.others_go_on();
        }
        waiting
    }

    /// A bundle if the kernel has that, so that it may take more than one buffer.
    fn receive(&mut self, source: RawFd, number: u64, flags: Flags) {
        let bundles = self.ring.params().is_feature_recvsend_bundle();
        let entry = opcode::Recv::new(Fd(source), std::ptr::null_mut(), 0)
            .buf_group(self.group.number())
            .ioprio(if bundles { super::BUNDLE } else { 0 })
            .build()
            .flags(flags | Flags::BUFFER_SELECT)
            .user_data(number);
        // SAFETY: the request names no memory, and the group outlives the ring.
        unsafe { self.ring.submission().push(&entry) }.expect("room for a request");
        self.ring.submit().expect("submitted");
    }

    /// Takes the next completion, which must have that number. Returns what it received.
    fn completed(&mut self, number: u64) -> (Taken, Vec<u8>) {
        self.ring.submit_and_wait(1).expect("waited");
        let entry = self.ring.completion().next().expect("a completion");
        assert_eq!(entry.user_data(), number, "no other has bytes");
        let bytes = usize::try_from(entry.result()).expect("bytes have come");
        let first = cqueue::buffer_select(entry.flags()).expect("a buffer");
        let (mut received, mut pieces) = (Vec::new(), Vec::new());
        let taken = self.group.take(first, bytes, |piece| {
            // SAFETY: the kernel has written so many bytes there, and nobody changes them.
            received.extend(unsafe { std::slice::from_raw_parts(piece.address(), piece.len()) });
            pieces.push(piece);
        });
        pieces
            .into_iter()
            .for_each(|piece| self.group.give_back(piece));
        self.group.refill();
        (taken, received)
    }

    fn others_go_on(&mut self) {
        let said = noise(4, 2 * Self::BUFFER_BYTES + 1);
        self.busy[0].write_all(&said).unwrap();
        let mut heard = Vec::new();
        while heard.len() < said.len() {
            self.receive(self.busy[1].as_raw_fd(), 0, Flags::empty());
            let (taken, received) = self.completed(0);
            assert_eq!(taken, Taken::InTurn);
            heard.extend(received);
        }
        assert!(heard == said);
    }

    fn says(&mut self, index: usize, message: &[u8]) -> (Taken, Vec<u8>) {
        self.pairs[index][0].write_all(message).unwrap();
        self.completed(1 + index as u64)
    }
}

#[test]
fn a_receive_that_waits_in_a_worker_keeps_its_buffer_and_no_other() {
    if !is_available() {
        return;
    }
    let mut waiting = Waiting::in_workers(3);
    for index in [1, 2, 0] {
        let message = noise(index as u64, 100);
        assert_eq!(waiting.says(index, &message), (Taken::Late, message));
        waiting.others_go_on();
    }
    assert_eq!(waiting.group.kept_by_workers(), 0);
}

/// What does not fit continues where the ring is by then.
#[test]
fn a_late_message_of_two_buffers_is_found() {
    if !is_available() {
        return;
    }
    let mut waiting = Waiting::in_workers(1);
    let message = noise(5, Waiting::BUFFER_BYTES + 100);
    let (taken, received) = waiting.says(0, &message);
    assert_eq!(taken, Taken::Late);
    // Before 6.15 a bundle does not continue.
    assert!(!received.is_empty() && message.starts_with(&received));
    waiting.others_go_on();
}

/// Where it continued cannot be told from where another one waits.
#[test]
fn a_late_message_of_two_buffers_beside_another_is_lost() {
    if !is_available() {
        return;
    }
    let mut waiting = Waiting::in_workers(2);
    let message = noise(6, Waiting::BUFFER_BYTES + 100);
    let (taken, received) = waiting.says(0, &message);
    match taken {
        Taken::Lost => assert!(received.is_empty()),
        _ => assert!(message.starts_with(&received) && received.len() <= Waiting::BUFFER_BYTES),
    }
    for _ in 0..Waiting::ROUNDS {
        waiting.others_go_on();
    }
}
