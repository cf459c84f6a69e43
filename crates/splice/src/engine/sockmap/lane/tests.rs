//! A lane with no loop behind it: the test says what time it is.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use rustix::net::sockopt::socket_cookie;

use super::super::shared;
use super::super::tests::{Nobody, connection, missing, until};
use super::*;
use crate::EventLoop;
use crate::direction::Carriage;
use crate::mailbox::Waker;

/// More than the one of an end of stream, and no round number.
const BYTES: usize = 1_009;

/// From a source to a target, turned by hand.
struct Turned {
    shared: Arc<Shared>,
    lane: Lane,
    ends: [Endpoint; 2],
    directions: [Direction; 2],
    waker: Waker,
    joined_at: Instant,
}

impl Turned {
    /// Has had its first turn.
    fn new(source: TcpStream, target: TcpStream) -> Self {
        let shared = shared::probe().unwrap();
        let ends = [source, target].map(|end| Endpoint::new(end).unwrap());
        let [cookie, back_cookie] = ends.each_ref().map(|end| socket_cookie(end).unwrap());
        let mut this = Self {
            lane: Lane::new(cookie, back_cookie),
            directions: [(), ()].map(|()| Direction::new(Carriage::Copy)),
            waker: EventLoop::new().unwrap().spawn(Box::new(Nobody)),
            joined_at: Instant::now(),
            shared,
            ends,
        };
        let [source, target] = &this.ends;
        this.lane.insert_target(&this.shared, target).unwrap();
        // So that it can be inspected.
        let targets = &this.shared.targets;
        targets.insert_socket(&back_cookie, source.as_fd()).unwrap();
        let waits = this.turn(Duration::ZERO);
        assert_eq!(this.lane.state(), State::ByHand);
        assert_eq!(waits.look_at, Some(this.at(FIRST_BY_HAND)));
        this
    }

    fn at(&self, after: Duration) -> Instant {
        self.joined_at + after
    }

    fn turn(&mut self, after: Duration) -> Step {
        let now = self.at(after);
        let mut grip = Grip {
            ends: self.ends.each_ref(),
            directions: &mut self.directions,
            buffer_bytes: 1 << 20,
            byte_limit: None,
            waker: &|| self.waker.clone(),
            now,
        };
        self.lane.turn(&self.shared, &mut grip, 0).unwrap()
    }

    /// In the source's queue, its end of stream included.
    fn waiting(&self) -> u32 {
        let seen = self.lane.source(&self.shared, 0).unwrap();
        seen.rcv_nxt.wrapping_sub(seen.copied_seq)
    }

    fn redirected(&self) -> u64 {
        let index = self.lane.index().unwrap();
        self.shared.entry(index).redirected.load(Ordering::Acquire)
    }

    /// Sends [`BYTES`], which wait in the source when it is put in.
    fn open_behind_bytes(&mut self, mut peer: &TcpStream) {
        peer.write_all(&[7; BYTES]).unwrap();
        until("they came", || self.waiting() == BYTES as u32);
        let opened = self.turn(FIRST_BY_HAND);
        assert_eq!(self.lane.state(), State::Open);
        assert_eq!(opened.watch, Watch::Ends);
        assert_eq!(opened.look_at, Some(self.at(FIRST_BY_HAND + LOOK_AGAIN)));
    }
}

impl Drop for Turned {
    fn drop(&mut self) {
        self.shared.sources.remove(&self.lane.cookie);
        self.lane.remove(&self.shared, &self.ends[0]);
        self.lane.remove_target(&self.shared);
        self.shared.targets.remove(&self.lane.back_cookie);
    }
}

/// The kernel takes only what is open both ways (`sock_map_sk_state_allowed`). A source that it
/// refuses is left as it was: its bytes and its end of stream are there to be moved by hand.
#[test]
fn an_end_of_stream_before_the_insertion_goes_by_hand() {
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

        let cookie = turned.lane.cookie;
        let inserted = turned
            .shared
            .sources
            .insert_socket(&cookie, watched.as_fd());
        assert_eq!(inserted, Err(Errno::OPNOTSUPP));

        let step = turned.turn(FIRST_BY_HAND);
        assert_eq!(turned.lane.state(), State::Left);
        assert_eq!((step.watch, step.look_at), (Watch::Stream, None));
        assert!(!turned.directions[0].is_held());
        assert_eq!(turned.lane.index(), None);
        // Nothing stands in front of it.
        let detached = socket_option::detach_filter(&watched);
        assert_eq!(detached, Err(Errno::NOENT));
        peer.shutdown(Shutdown::Write).unwrap();
        watched.set_nonblocking(false).unwrap();
        let mut received = Vec::new();
        watched.read_to_end(&mut received).unwrap();
        assert_eq!(received, [7; BYTES]);
    }
}

/// What waits at the insertion is nobody's before the kick, which nothing but the time brings about.
#[test]
fn what_waits_at_the_insertion_is_kicked_when_nothing_follows() {
    if missing() {
        return;
    }
    let (peer, source) = connection();
    let (target, mut far) = connection();
    let mut turned = Turned::new(source, target);
    turned.open_behind_bytes(&peer);
    let due = FIRST_BY_HAND + LOOK_AGAIN;
    let step = turned.turn(due - Duration::from_nanos(1));
    assert_eq!(step.look_at, Some(turned.at(due)));
    assert_eq!((turned.redirected(), turned.waiting()), (0, BYTES as u32));
    let step = turned.turn(due);
    assert_eq!(step.look_at, None);
    let mut received = [0; BYTES];
    far.read_exact(&mut received).unwrap();
    assert_eq!((turned.redirected(), received), (BYTES as u64, [7; BYTES]));
}

/// The next segment brings about what the kick would.
#[test]
fn a_segment_that_follows_spares_the_kick() {
    if missing() {
        return;
    }
    let (mut peer, source) = connection();
    let (target, mut far) = connection();
    let mut turned = Turned::new(source, target);
    turned.open_behind_bytes(&peer);
    peer.write_all(&[7]).unwrap();
    far.read_exact(&mut [0; BYTES + 1]).unwrap();
    until("all had its verdict", || turned.waiting() == 0);
    let step = turned.turn(FIRST_BY_HAND);
    assert_eq!(step.look_at, None);
    assert_eq!(turned.redirected(), BYTES as u64 + 1);
}
