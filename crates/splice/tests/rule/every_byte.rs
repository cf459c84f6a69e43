//! Every byte arrives once and in order, in both directions, however it was split.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use splice::{Kind, Reason};

use crate::support::contestant::Contestant;
use crate::support::mix::Mix;
use crate::support::patience::QUIET;
use crate::support::payload::Payload;
use crate::support::peer::Peer;
use crate::support::relay::{FROM_A, FROM_B, Joined, Relay, outcome, payloads};
use crate::support::transfer::{Pace, receive, receive_to_end, send};

const EACH_WAY_BYTES: u64 = 8 << 20;
/// More than one buffer and more than one pipe hold.
const QUEUED_BYTES: u64 = 3 << 20;
/// More than a window, and less than a window and a send buffer.
const UNREAD_BYTES: u64 = 300 << 10;
const SINGLE_BYTES: u64 = 500;
/// RFC 879's default, for a path of unknown size.
const SMALL_SEGMENT_BYTES: u32 = 536;

pub(crate) fn both_ways_at_once(engine: &Contestant) {
    let relay = Relay::new(engine);
    engine.with_each_mix(|mix| {
        let joined = relay.join(mix);
        exchange(&joined, EACH_WAY_BYTES);
        let outcome = outcome(&joined.handle);
        assert_eq!(outcome.reason, Reason::EndOfStream);
        assert_eq!(outcome.moved.a_to_b, EACH_WAY_BYTES);
        assert_eq!(outcome.moved.b_to_a, EACH_WAY_BYTES);
    });
}

fn exchange(Joined { a, b, .. }: &Joined, bytes: u64) {
    let [from_a, from_b] = payloads();
    thread::scope(|scope| {
        for (near, payload, salt) in [(a, from_a, FROM_A), (b, from_b, FROM_B)] {
            scope.spawn(move || {
                send(near, payload, 0..bytes, Pace::random(salt));
                near.end_stream();
            });
        }
        scope.spawn(|| receive_to_end(b, from_a, 0..bytes, Pace::random(FROM_A + 10)));
        receive_to_end(a, from_b, 0..bytes, Pace::random(FROM_B + 10));
    });
}

/// Writes without waiting. Returns how much fitted.
fn queue(peer: &Peer, payload: Payload, most: u64) -> u64 {
    let mut position = 0;
    while position < most {
        match peer.write_now(payload.piece(position, (most - position) as usize)) {
            Ok(count) => position += count as u64,
            Err(_) => break,
        }
    }
    position
}

pub(crate) fn bytes_queued_before_the_join(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        for most in [1, 5000, QUEUED_BYTES] {
            let (a, near) = Peer::connected(mix.a);
            let (b, far) = Peer::connected(mix.b);
            let queued = [queue(&a, from_a, most), queue(&b, from_b, most)];
            let handle = relay.join_sockets(near, far);
            let end = QUEUED_BYTES + 1;
            thread::scope(|scope| {
                for (near, payload, start) in [(&a, from_a, queued[0]), (&b, from_b, queued[1])] {
                    scope.spawn(move || {
                        send(near, payload, start..end, Pace::Steady);
                        near.end_stream();
                    });
                }
                scope.spawn(|| receive_to_end(&b, from_a, 0..end, Pace::Steady));
                receive_to_end(&a, from_b, 0..end, Pace::Steady);
            });
            assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
        }
    });
}

pub(crate) fn one_byte_at_a_time(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        let Joined {
            a,
            b,
            handle: _handle,
        } = relay.join(mix);
        thread::scope(|scope| {
            scope.spawn(|| send(&a, from_a, 0..SINGLE_BYTES, Pace::Pieces(1)));
            scope.spawn(|| send(&b, from_b, 0..SINGLE_BYTES, Pace::Pieces(1)));
            scope.spawn(|| receive(&b, from_a, 0..SINGLE_BYTES, Pace::Steady));
            receive(&a, from_b, 0..SINGLE_BYTES, Pace::Pieces(1));
        });
    });
}

pub(crate) fn peers_that_ended_before_the_join(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        let [a_sent, b_sent] = [
            queue(&a, from_a, QUEUED_BYTES),
            queue(&b, from_b, QUEUED_BYTES),
        ];
        a.end_stream();
        b.end_stream();
        let handle = relay.join_sockets(near, far);
        Joined { a, b, handle }.end_with([a_sent, b_sent]);
    });
}

pub(crate) fn a_peer_that_closed_before_the_join(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    engine.with_each_mix(|mix| {
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        let sent = queue(&a, from_a, QUEUED_BYTES);
        drop(a);
        let handle = relay.join_sockets(near, far);
        receive_to_end(&b, from_a, 0..sent, Pace::random(FROM_A));
        drop(b);
        let outcome = outcome(&handle);
        assert_eq!(outcome.reason, Reason::EndOfStream);
        assert_eq!(outcome.moved.a_to_b, sent);
    });
}

pub(crate) fn a_peer_that_closed_while_the_other_is_slow(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    engine.with_each_kind(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        let sent = crate::support::transfer::send_until_blocked(&a, from_a, 0, 64 << 20);
        drop(a);
        receive_to_end(&b, from_a, 0..sent, Pace::Steady);
        drop(b);
        assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
    });
}

/// The former owner of the sockets may have set SO_LINGER to reset them.
pub(crate) fn of_sockets_that_were_to_be_reset(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        for end in [&near, &far] {
            sockopt::set_socket_linger(end, Some(Duration::ZERO)).expect("SO_LINGER");
        }
        let handle = relay.join_sockets(near, far);
        let sent = [(&a, from_a), (&b, from_b)].map(|(peer, payload)| {
            let sent = queue(peer, payload, UNREAD_BYTES);
            peer.end_stream();
            sent
        });
        // If everything fits into the sockets, they are closed before anybody reads.
        let _ = handle.wait_timeout(QUIET);
        Joined { a, b, handle }.end_with(sent);
    });
}

/// Packets of one small segment each: they use up a pipe's slots long before its bytes.
pub(crate) fn small_segments(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    let tune = |fd: BorrowedFd<'_>| {
        socket2::SockRef::from(&fd)
            .set_tcp_mss(SMALL_SEGMENT_BYTES)
            .expect("TCP_MAXSEG");
    };
    let end = 1 << 20;
    let Mix { a, b } = Mix::TCP4;
    let (a, near) = Peer::tuned(a, tune);
    let (b, far) = Peer::tuned(b, tune);
    // Each write is a packet of its own, of a size that fills no slot.
    send(&a, from_a, 0..60_000, Pace::Pieces(500));
    let handle = relay.join_sockets(near, far);
    thread::scope(|scope| {
        scope.spawn(|| send(&a, from_a, 60_000..end, Pace::Pieces(600)));
        scope.spawn(|| send(&b, from_b, 0..end, Pace::Pieces(400)));
        scope.spawn(|| receive(&b, from_a, 0..end, Pace::random(FROM_A)));
        receive(&a, from_b, 0..end, Pace::Steady);
    });
    drop(handle);
}

/// A read of a UNIX stream ends after a message that carries a descriptor, whatever comes after it.
pub(crate) fn behind_a_passed_descriptor(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    engine.with_each_mix(|mix| {
        if mix.a != Kind::Unix {
            return;
        }
        let joined = relay.join(mix);
        for start in (0..2000).step_by(200) {
            // Both may be in the relay's socket before its turn or not: any order must work.
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds = [joined.a.as_fd()];
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let first = IoSlice::new(from_a.piece(start, 100));
            sendmsg(&joined.a, &[first], &mut control, SendFlags::empty()).unwrap();
            send(&joined.a, from_a, start + 100..start + 200, Pace::Steady);
            receive(&joined.b, from_a, start..start + 200, Pace::Steady);
        }
    });
}
