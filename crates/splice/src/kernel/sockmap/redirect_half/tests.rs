//! A half of a pair without a loop: the test passes in the time.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use netlab::{Namespace, Need, available, connection, until};
use rustix::net::sockopt::socket_cookie;
use rustix::net::{Shutdown as Half, shutdown};

use super::super::shared;
use super::super::tests::{Nobody, forge, missing};
use super::*;
use crate::EventLoop;
use std::task::Waker;

use crate::direction::{CarrierChoice, Direction};

/// Not a round number, and more than the one byte of an end of stream.
const BYTES: usize = 1_009;

/// From a source to a target; the test calls each turn.
struct Turned {
    shared: Arc<Shared>,
    half: RedirectHalf,
    ends: [Endpoint; 2],
    directions: [Direction; 2],
    waker: Waker,
    joined_at: Instant,
}

impl Turned {
    /// Has had its first turn.
    fn new(source: TcpStream, target: TcpStream) -> Self {
        let shared = shared::found().unwrap();
        let ends = [source, target].map(|end| Endpoint::new(end).unwrap());
        let [cookie, back_cookie] = ends.each_ref().map(|end| socket_cookie(end).unwrap());
        let mut this = Self {
            half: RedirectHalf::new(0, cookie, back_cookie),
            directions: [(), ()].map(|()| Direction::new(CarrierChoice::Copy)),
            waker: EventLoop::new().unwrap().spawn(Box::new(Nobody)).into(),
            joined_at: Instant::now(),
            shared,
            ends,
        };
        let [source, target] = &this.ends;
        this.half.insert_target(&this.shared, target).unwrap();
        // So that it can be inspected.
        let targets = &this.shared.targets;
        targets.insert_socket(&back_cookie, source.as_fd()).unwrap();
        let waits = this.turn(Duration::ZERO);
        assert_eq!(this.half.state(), State::UserSpace);
        assert_eq!(waits.look_at, Some(this.at(FIRST_IN_USER_SPACE)));
        this
    }

    fn at(&self, after: Duration) -> Instant {
        self.joined_at + after
    }

    fn turn(&mut self, after: Duration) -> Next {
        let now = self.at(after);
        let mut pair = PairView {
            ends: self.ends.each_ref(),
            directions: self.directions.each_mut().map(|direction| direction as _),
            buffer_bytes: 1 << 20,
            byte_limit: None,
            waker: &|| self.waker.clone(),
            now,
        };
        self.half.turn(&self.shared, &mut pair).unwrap()
    }

    /// In the source's queue, its end of stream included.
    fn waiting(&self) -> u32 {
        let seen = self.half.source(&self.shared).unwrap();
        seen.rcv_nxt.wrapping_sub(seen.copied_seq)
    }

    fn redirected(&self) -> u64 {
        self.entry().redirected.load(Ordering::Acquire)
    }

    fn entry(&self) -> &DirectionEntry {
        self.shared.entry(self.half.index().unwrap())
    }

    /// Sends [`BYTES`], which wait in the source when the gate is asked.
    fn ask_behind_bytes(&mut self, mut peer: &TcpStream) {
        peer.write_all(&[7; BYTES]).unwrap();
        until("they came", || self.waiting() == BYTES as u32);
        let asked = self.turn(FIRST_IN_USER_SPACE);
        assert_eq!(self.half.state(), State::Open);
        assert_eq!(asked.watch, Watch::Ends);
        assert_eq!(
            asked.look_at,
            Some(self.at(FIRST_IN_USER_SPACE + LOOK_AGAIN))
        );
    }
}

impl Drop for Turned {
    fn drop(&mut self) {
        self.shared.sources.remove(&self.half.cookie);
        self.half.remove(&self.shared, &self.ends[0]);
        self.half.remove_target(&self.shared);
        self.shared.targets.remove(&self.half.back_cookie);
    }
}

/// The kernel takes only ESTABLISHED connections (`sock_map_sk_state_allowed`). A source that it refuses stays
/// as it was: user space moves its bytes and its end of stream.
#[test]
fn user_space_passes_on_an_end_of_stream_that_came_before_the_insertion() {
    if missing() {
        return;
    }
    for its_own in [false, true] {
        let (mut peer, source) = connection();
        let (target, _far) = connection();
        let mut watched = source.try_clone().unwrap();
        let mut turned = Turned::new(source, target);
        peer.write_all(&[7; BYTES]).unwrap();
        // Either half of the connection, while nobody has read what came.
        let ended = if its_own { &watched } else { &peer };
        ended.shutdown(Shutdown::Write).unwrap();
        let came = BYTES as u32 + u32::from(!its_own);
        until("all of it came", || turned.waiting() == came);

        let cookie = turned.half.cookie;
        let inserted = turned
            .shared
            .sources
            .insert_socket(&cookie, watched.as_fd());
        assert_eq!(inserted, Err(Errno::OPNOTSUPP));

        let next = turned.turn(FIRST_IN_USER_SPACE);
        assert_eq!(turned.half.state(), State::GivenUp);
        assert_eq!((next.watch, next.look_at), (Watch::Stream, None));
        assert!(!turned.directions[0].is_held());
        assert_eq!(turned.half.index(), None);
        // No gate is attached to it.
        let detached = socket_option::detach_filter(&watched);
        assert_eq!(detached, Err(Errno::NOENT));
        peer.shutdown(Shutdown::Write).unwrap();
        watched.set_nonblocking(false).unwrap();
        let mut received = Vec::new();
        watched.read_to_end(&mut received).unwrap();
        assert_eq!(received, [7; BYTES]);
    }
}

/// What waits when the gate is asked belongs to user space again if no segment opens the gate.
#[test]
fn user_space_reads_on_when_no_segment_follows_what_waits() {
    if missing() {
        return;
    }
    let (mut peer, source) = connection();
    let (target, _far) = connection();
    let mut turned = Turned::new(source, target);
    turned.ask_behind_bytes(&peer);
    let due = FIRST_IN_USER_SPACE + LOOK_AGAIN;
    let next = turned.turn(due - Duration::from_nanos(1));
    assert_eq!(next.look_at, Some(turned.at(due)));
    let next = turned.turn(due);
    assert_eq!(turned.half.state(), State::UserSpace);
    assert!(next.again && !turned.directions[0].is_held());
    assert!(turned.directions[0].can_move());
    // No gate opens for what comes now.
    peer.write_all(&[7]).unwrap();
    until("it came", || turned.waiting() == BYTES as u32 + 1);
    assert_eq!(turned.redirected(), 0);
}

/// The gate opens for the next segment, whose verdict takes along what waited before it.
#[test]
fn the_next_segment_opens_the_gate_and_takes_along_what_waits() {
    if missing() {
        return;
    }
    let (mut peer, source) = connection();
    let (target, mut far) = connection();
    let mut turned = Turned::new(source, target);
    turned.ask_behind_bytes(&peer);
    peer.write_all(&[7]).unwrap();
    far.read_exact(&mut [0; BYTES + 1]).unwrap();
    let next = turned.turn(FIRST_IN_USER_SPACE + LOOK_AGAIN);
    assert_eq!((next.watch, next.look_at), (Watch::Ends, None));
    assert_eq!(turned.redirected(), BYTES as u64 + 1);
}

#[test]
fn a_direction_with_an_empty_queue_sets_no_timer() {
    if missing() {
        return;
    }
    let (mut peer, source) = connection();
    let (target, mut far) = connection();
    let mut turned = Turned::new(source, target);
    let next = turned.turn(FIRST_IN_USER_SPACE);
    assert_eq!(turned.half.state(), State::Open);
    assert_eq!((next.watch, next.look_at), (Watch::Ends, None));
    peer.write_all(&[7; BYTES]).unwrap();
    far.read_exact(&mut [0; BYTES]).unwrap();
    assert_eq!(turned.redirected(), BYTES as u64);
}

/// A segment can come between the inspection of its source and the gate, which then has not noted it. Once
/// user space has moved it, nothing waits.
#[test]
fn what_came_before_the_gate_is_not_waited_for() {
    const UNSEEN_BYTES: u32 = 5;
    if missing() {
        return;
    }
    let (mut peer, source) = connection();
    let (target, mut far) = connection();
    let mut turned = Turned::new(source, target);
    turned.turn(FIRST_IN_USER_SPACE);
    assert!(take_back(turned.entry()));
    turned.half.state = State::UserSpace;
    let noted = turned.entry().let_in.load(Ordering::SeqCst) as u32;
    let unseen = noted.wrapping_sub(UNSEEN_BYTES);
    turned.entry().let_in.store(unseen.into(), Ordering::SeqCst);
    let next = turned.turn(2 * FIRST_IN_USER_SPACE);
    assert_eq!(turned.half.state(), State::Open);
    assert_eq!((next.watch, next.look_at), (Watch::Ends, None));
    peer.write_all(&[7; BYTES]).unwrap();
    far.read_exact(&mut [0; BYTES]).unwrap();
    assert_eq!(turned.redirected(), BYTES as u64);
}

/// TCP may drop a segment that the gate has opened for, and with a closed window none follows.
#[test]
fn what_waits_gets_its_verdict_when_the_segment_behind_it_was_dropped() {
    if missing() {
        return;
    }
    let (peer, source) = connection();
    let (target, mut far) = connection();
    let mut turned = Turned::new(source, target);
    turned.ask_behind_bytes(&peer);
    // As the gate does.
    assert_eq!(turned.entry().asked.swap(0, Ordering::SeqCst), 1);
    let source = turned.ends[0].as_fd();
    let inserted = turned
        .shared
        .sources
        .insert_socket(&turned.half.cookie, source);
    inserted.unwrap();
    assert_eq!((turned.redirected(), turned.waiting()), (0, BYTES as u32));
    let next = turned.turn(FIRST_IN_USER_SPACE + LOOK_AGAIN);
    assert_eq!((next.watch, next.look_at), (Watch::Ends, None));
    let mut received = [0; BYTES];
    far.read_exact(&mut received).unwrap();
    assert_eq!((turned.redirected(), received), (BYTES as u64, [7; BYTES]));
}

/// A window probe is no reason to open: TCP drops it, and nothing would bring about the verdict of what waits.
#[test]
fn a_segment_beyond_the_window_does_not_open_the_gate() {
    if missing() || !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("probe").unwrap();
    let ((peer, source), (target, _far)) =
        namespace.enter(|| (connection(), connection())).unwrap();
    let (from, to) = (peer.local_addr().unwrap(), peer.peer_addr().unwrap());
    let mut turned = Turned::new(source, target);
    turned.turn(FIRST_IN_USER_SPACE);
    assert_eq!(turned.half.state(), State::Open);
    let seen = turned.half.source(&turned.shared).unwrap();
    // Across the end of the window, with which a connection begins: at most 64 KiB.
    let first = seen.rcv_nxt.wrapping_add(60_000);
    let noted = || turned.entry().let_in.load(Ordering::Acquire) as u32;
    namespace
        .enter(|| forge(from, to, first, seen.write_seq, &[7; 10_000]))
        .unwrap();
    until("it is noted", || noted() == first.wrapping_add(10_000));
    assert_eq!(turned.entry().asked.load(Ordering::SeqCst), 1);
}

/// The gate says why the kernel did not take the source, and the direction goes on as before.
#[test]
fn user_space_goes_on_with_a_source_that_the_kernel_refuses() {
    if missing() {
        return;
    }
    let (mut peer, source) = connection();
    let (target, _far) = connection();
    let mut turned = Turned::new(source, target);
    turned.turn(FIRST_IN_USER_SPACE);
    assert_eq!(turned.half.state(), State::Open);
    // No longer ESTABLISHED: `sock_map_sk_state_allowed`.
    shutdown(&turned.ends[0], Half::Write).unwrap();
    peer.write_all(&[7; BYTES]).unwrap();
    until("it came", || turned.waiting() == BYTES as u32);
    let next = turned.turn(FIRST_IN_USER_SPACE);
    assert_eq!(turned.half.state(), State::GivenUp);
    assert!(next.again && turned.directions[0].can_move());
    assert_eq!(turned.half.index(), None);
    assert_eq!(turned.half.why_given_up(), Some(refusal(Errno::OPNOTSUPP)));
    let detached = socket_option::detach_filter(&turned.ends[0]);
    assert_eq!(detached, Err(Errno::NOENT));
}

/// A direction as user space would show it.
#[derive(Clone, Copy, Default)]
struct Shown {
    end_seen: bool,
    is_ending: bool,
    is_in_flight: bool,
    can_move: bool,
}

impl DirectionView for Shown {
    fn taken_bytes(&self) -> u64 {
        0
    }

    fn given_bytes(&self) -> u64 {
        0
    }

    fn end_seen(&self) -> bool {
        self.end_seen
    }

    fn is_ending(&self) -> bool {
        self.is_ending
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn has_none_in_flight(&self) -> bool {
        !self.is_in_flight
    }

    fn can_move(&self) -> bool {
        self.can_move
    }

    fn hold_at(&mut self, _mark_bytes: u64) {}

    fn copy_only(&mut self) {}

    fn read_again(&mut self) {}
}

#[test]
fn the_gate_is_asked_once_the_backoff_is_over_and_user_space_is_done() {
    let idle = Shown::default();
    let in_flight = Shown {
        is_in_flight: true,
        ..idle
    };
    let readable = Shown {
        can_move: true,
        ..idle
    };
    let now = Instant::now();
    let later = now + Duration::from_nanos(1);
    for (direction, ends_at, expected) in [
        (idle, now, Attempt::Now),
        (idle, later, Attempt::At(later)),
        (readable, later, Attempt::At(later)),
        (in_flight, now, Attempt::AfterPump),
        (readable, now, Attempt::AfterPump),
    ] {
        assert_eq!(attempt(&direction, u64::MAX, ends_at, now), expected);
    }
}

#[test]
fn the_gate_is_not_asked_for_a_stream_that_ends_or_nears_its_byte_limit() {
    let idle = Shown::default();
    let end_seen = Shown {
        end_seen: true,
        ..idle
    };
    let ending = Shown {
        is_ending: true,
        ..idle
    };
    let now = Instant::now();
    let more = LIMIT_MARGIN_BYTES + 1;
    for (direction, left_bytes, expected) in [
        (idle, more, Attempt::Now),
        (
            idle,
            LIMIT_MARGIN_BYTES,
            Attempt::Never("its byte limit is near"),
        ),
        (end_seen, more, Attempt::Never("its stream has ended")),
        (ending, more, Attempt::Never("its stream has ended")),
    ] {
        assert_eq!(attempt(&direction, left_bytes, now, now), expected);
    }
}
