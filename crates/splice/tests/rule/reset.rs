//! A reset on one side resets the other. It never looks like a clean EOF.
//!
//! A UNIX stream has a reset only for the peer of a socket that is closed with unread bytes. So
//! from a UNIX peer it comes in that way, and to a UNIX peer it may arrive as EOF. It does not overtake
//! what was sent before.

use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use splice::{Endpoint, Kind, Reason, Side};

use crate::support::contestant::{Contestant, SEGMENT};
use crate::support::mix::Mix;
use crate::support::patience::{QUIET, until};
use crate::support::peer::Peer;
use crate::support::relay::{Joined, Relay, outcome, payloads};
use crate::support::transfer::{
    Ending, Pace, receive, receive_to_end, receive_until_cut, send, send_until_blocked,
    send_until_cut,
};

const MOST_BYTES: u64 = 64 << 20;
const MESSAGE_BYTES: usize = 1000;
/// The kernel raises it to its minimum.
const SMALL_BUFFER_BYTES: usize = 4 << 10;

/// Fails unless `peer` sees a reset after correct bytes.
fn assert_sees_reset(peer: &Peer, payload: crate::support::payload::Payload, from: u64) {
    let (position, ending) = receive_until_cut(peer, payload, from);
    assert!(
        ending == Ending::Reset || peer.is_unix(),
        "{peer:?} saw a clean end at {position}"
    );
}

/// Sends `to` a byte that it will not read, without which a UNIX stream cannot be reset.
fn leave_unread(from: &Peer, to: &Peer) {
    if to.is_unix() {
        send(from, payloads()[1], 0..1, Pace::Steady);
        to.wait_unread(1);
    }
}

fn assert_reset_by_a(joined_handle: &splice::Handle) {
    assert_eq!(outcome(joined_handle).reason, Reason::Reset(Side::A));
}

/// `b` has not read yet. If the reset overtakes nothing, it gets as many bytes as were sent.
fn assert_sees_reset_of_backlog(
    b: &Peer,
    payload: crate::support::payload::Payload,
    handle: &splice::Handle,
    sent: Option<u64>,
) {
    let Some(sent) = sent else {
        // Nobody reads: the relay must see the reset while it cannot move a byte.
        assert_reset_by_a(handle);
        assert_sees_reset(b, payload, 0);
        return;
    };
    receive(b, payload, 0..sent, Pace::Steady);
    assert_sees_reset(b, payload, sent);
    assert_reset_by_a(handle);
}

pub(crate) fn while_idle(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    engine.with_each_mix(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        send(&a, from_a, 0..100, Pace::Steady);
        receive(&b, from_a, 0..100, Pace::Steady);
        leave_unread(&b, &a);
        a.reset();
        assert_sees_reset(&b, from_a, 100);
        assert_reset_by_a(&handle);
    });
}

pub(crate) fn in_the_middle_of_a_transfer(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    let mut mixes = engine.mixes();
    mixes.retain(|mix| !mix.may_lose_reset());
    for mix in mixes {
        eprintln!("{mix:?}");
        let Joined { a, b, handle } = relay.join(mix);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::scope(|inner| {
                    inner.spawn(|| send(&a, from_a, 0..2 << 20, Pace::Steady));
                    receive(&a, from_b, 0..1 << 20, Pace::Steady);
                });
                // Its peer never stops, so a UNIX stream has unread bytes, too.
                a.wait_unread(1);
                a.reset();
            });
            let sender = scope.spawn(|| send_until_cut(&b, from_b, 0));
            let (position, ending) = receive_until_cut(&b, from_a, 0);
            // A socket reports its error once, to the first caller.
            let told = [sender.join().unwrap(), ending];
            assert!(
                told.contains(&Ending::Reset) || b.is_unix(),
                "{b:?} saw a clean end at {position}"
            );
        });
        assert_reset_by_a(&handle);
    }
}

pub(crate) fn in_the_middle_of_a_backlog(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    engine.with_each_mix(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        let sent = send_until_blocked(&a, from_a, 0, MOST_BYTES);
        leave_unread(&b, &a);
        let gets_all = a.is_unix();
        a.reset();
        assert_sees_reset_of_backlog(&b, from_a, &handle, gets_all.then_some(sent));
    });
}

/// A process that is being started holds duplicates until its exec, and a child may keep them.
pub(crate) fn though_duplicates_are_held(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    engine.with_each_mix(|mix| {
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        let held = [&near, &far].map(|fd| fd.try_clone().expect("a duplicate"));
        let handle = relay.join_sockets(near, far);
        relay.wait_for_kernel(&handle);
        send(&a, from_a, 0..100, Pace::Steady);
        receive(&b, from_a, 0..100, Pace::Steady);
        leave_unread(&b, &a);
        a.reset();
        assert_sees_reset(&b, from_a, 100);
        assert_reset_by_a(&handle);
        drop(held);
    });
}

/// Less is in flight in the relay than stops an engine from reading: it may have got the error
/// together with the last bytes.
pub(crate) fn behind_messages_that_nobody_takes(engine: &Contestant) {
    if engine.choice == SEGMENT.choice {
        // `segment` has nothing in flight, and accepts no connection with such a window.
        return;
    }
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    engine.with_each_kind(|mix| {
        let small = |fd: std::os::fd::BorrowedFd<'_>| {
            sockopt::set_socket_recv_buffer_size(fd, SMALL_BUFFER_BYTES).expect("SO_RCVBUF");
            sockopt::set_socket_send_buffer_size(fd, SMALL_BUFFER_BYTES).expect("SO_SNDBUF");
        };
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::tuned(mix.b, small);
        let handle = relay.join_sockets(near, far);
        relay.wait_for_kernel(&handle);
        let mut sent = 0;
        loop {
            assert!(sent < MOST_BYTES, "nothing holds it up");
            match a.write_now(from_a.piece(sent, MESSAGE_BYTES)) {
                Ok(count) => sent += count as u64,
                Err(_) => break,
            }
            let given_out = Instant::now() + QUIET;
            while handle.counters().a_to_b < sent && Instant::now() < given_out {
                thread::sleep(Duration::from_micros(100));
            }
            if handle.counters().a_to_b < sent {
                break;
            }
        }
        leave_unread(&b, &a);
        let gets_all = a.is_unix();
        a.reset();
        assert_sees_reset_of_backlog(&b, from_a, &handle, gets_all.then_some(sent));
    });
}

pub(crate) fn after_its_own_half_close(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        send(&a, from_a, 0..1000, Pace::Steady);
        a.end_stream();
        receive_to_end(&b, from_a, 0..1000, Pace::Steady);
        send(&b, from_b, 0..1000, Pace::Steady);
        a.wait_unread(1000);
        a.reset();
        // `b` has already read EOF. It learns that the connection is cut when it writes.
        send_until_cut(&b, from_b, 1000);
        assert_reset_by_a(&handle);
    });
}

pub(crate) fn after_the_half_close_of_the_other(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        send(&b, from_b, 0..1000, Pace::Steady);
        b.end_stream();
        a.wait_unread(1000);
        send(&a, from_a, 0..1000, Pace::Steady);
        receive(&b, from_a, 0..1000, Pace::Steady);
        a.reset();
        assert_sees_reset(&b, from_a, 1000);
        assert_reset_by_a(&handle);
    });
}

pub(crate) fn by_closing_with_unread_data(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        send(&b, from_b, 0..100, Pace::Steady);
        a.wait_unread(100);
        drop(a);
        assert_sees_reset(&b, from_a, 0);
        assert_reset_by_a(&handle);
    });
}

/// A client that gave up while the target was being connected.
pub(crate) fn before_the_endpoint_is_made(engine: &Contestant) {
    reset_before(engine, |near, a| {
        a.reset();
        until("the reset is there", || has_hung_up(&near));
        Endpoint::new(near).expect("an endpoint that was reset")
    });
}

pub(crate) fn before_the_join(engine: &Contestant) {
    reset_before(engine, |near, a| {
        let endpoint = Endpoint::new(near).expect("an endpoint");
        a.reset();
        until("the reset is there", || has_hung_up(&endpoint));
        endpoint
    });
}

/// EOF is passed on to a connection that no longer exists.
pub(crate) fn together_with_a_half_close(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [_, from_b] = payloads();
    for mix in engine.mixes() {
        if mix.b == Kind::Unix {
            continue;
        }
        eprintln!("{mix:?}");
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        let [near, far] = [near, far].map(|fd| Endpoint::new(fd).expect("an endpoint"));
        a.end_stream();
        b.reset();
        until("the reset is there", || has_hung_up(&far));
        let handle = relay.splicer.join(near, far, &relay.options);
        let handle = handle.expect("a pair");
        assert_sees_reset(&a, from_b, 0);
        assert_eq!(outcome(&handle).reason, Reason::Reset(Side::B));
    }
}

fn has_hung_up(fd: impl std::os::fd::AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&fd, PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&at_once)).expect("poll") > 0 && fds[0].revents().contains(PollFlags::HUP)
}

fn reset_before(engine: &Contestant, cut_short: impl Fn(std::os::fd::OwnedFd, Peer) -> Endpoint) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    for mix in engine.mixes() {
        if mix.a == Kind::Unix {
            // Its reset needs unread bytes, and nobody sends it any before the join.
            continue;
        }
        eprintln!("{mix:?}");
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        let near = cut_short(near, a);
        let far = Endpoint::new(far).expect("an endpoint");
        let handle = relay
            .splicer
            .join(near, far, &relay.options)
            .expect("a pair");
        assert_sees_reset(&b, from_a, 0);
        assert_reset_by_a(&handle);
    }
}

/// The mixes in which both ends can tell a reset from EOF.
pub(crate) fn tells_reset(mix: Mix) -> [bool; 2] {
    mix.kinds().map(|kind| kind != Kind::Unix)
}
