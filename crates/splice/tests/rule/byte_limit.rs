//! The byte limit ends a pair with exactly that many bytes delivered.

use std::os::fd::BorrowedFd;
use std::thread;

use rustix::net::sockopt;
use splice::{Limits, Reason};

use crate::support::contestant::Contestant;
use crate::support::peer::Peer;
use crate::support::relay::{FROM_A, Joined, Relay, outcome, payloads};
use crate::support::transfer::{
    Pace, receive, receive_to_end, receive_until_cut, send, send_until_blocked, send_until_cut,
};

/// Within the first read, at its end, within later reads, beyond a full pipe.
const LIMITS_BYTES: [u64; 5] = [1, 4096, 4097, 100_000, (3 << 20) + 17];

const NARROW_BYTES: usize = 32 << 10;

fn relay(engine: &Contestant, byte_limit: u64) -> Relay {
    let limits = Limits {
        byte_limit: Some(byte_limit),
        ..Limits::default()
    };
    Relay::with_limits(engine, limits)
}

/// Reads what still comes to a sender that was cut off: both endings are correct for it.
fn expect_cut(peer: &Peer, payload: crate::support::payload::Payload) {
    receive_until_cut(peer, payload, 0);
}

pub(crate) fn cuts_at_the_byte(engine: &Contestant) {
    if !engine.takes_byte_limit {
        return;
    }
    let [from_a, from_b] = payloads();
    for limit in LIMITS_BYTES {
        let relay = relay(engine, limit);
        let mut a_sends = false;
        engine.with_each_mix(|mix| {
            a_sends = !a_sends;
            let Joined { a, b, handle } = relay.join(mix);
            let (from, to) = if a_sends { (&a, &b) } else { (&b, &a) };
            thread::scope(|scope| {
                scope.spawn(|| send_until_cut(from, from_a, 0));
                receive_to_end(to, from_a, 0..limit, Pace::random(FROM_A));
            });
            expect_cut(from, from_b);
            let outcome = outcome(&handle);
            assert_eq!(outcome.reason, Reason::ByteLimit);
            let sums = [outcome.moved.a_to_b, outcome.moved.b_to_a];
            assert_eq!(sums, if a_sends { [limit, 0] } else { [0, limit] });
        });
    }
}

pub(crate) fn at_the_end_of_the_stream(engine: &Contestant) {
    if !engine.takes_byte_limit {
        return;
    }
    let limit = 70_000;
    let relay = relay(engine, limit);
    let [from_a, _] = payloads();
    engine.with_each_mix(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        send(&a, from_a, 0..limit, Pace::Steady);
        a.end_stream();
        receive_to_end(&b, from_a, 0..limit, Pace::Steady);
        let outcome = outcome(&handle);
        assert_eq!(outcome.reason, Reason::ByteLimit);
        assert_eq!(outcome.moved.a_to_b, limit);
    });
}

pub(crate) fn is_not_reached(engine: &Contestant) {
    if !engine.takes_byte_limit {
        return;
    }
    let limit = 70_000;
    let relay = relay(engine, limit);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        for (from, to, payload) in [(&a, &b, from_a), (&b, &a, from_b)] {
            send(from, payload, 0..limit - 1, Pace::Steady);
            from.end_stream();
            receive_to_end(to, payload, 0..limit - 1, Pace::Steady);
        }
        assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
    });
}

/// A socket that is closed with unread bytes sends a reset, which overtakes what was written to it.
/// A receiver that also sends must get its bytes all the same.
pub(crate) fn delivers_all_though_the_receiver_talks(engine: &Contestant) {
    if !engine.takes_byte_limit {
        return;
    }
    // More than the relay holds, as every engine sizes its buffers.
    let limit = 12 << 20;
    let relay = relay(engine, limit);
    let [from_a, from_b] = payloads();
    let narrow = |fd: BorrowedFd<'_>| {
        sockopt::set_socket_recv_buffer_size(fd, NARROW_BYTES).expect("SO_RCVBUF");
        sockopt::set_socket_send_buffer_size(fd, NARROW_BYTES).expect("SO_SNDBUF");
    };
    // The relay parts from `a`, which reads nothing, only after ten seconds.
    engine.with_each_kind_at_once(|mix| {
        let (a, near) = Peer::tuned(mix.a, narrow);
        let (b, far) = Peer::tuned(mix.b, narrow);
        let handle = relay.join_sockets(near, far);
        // Nobody reads what `b` sends, so the relay's socket to it has unread bytes.
        send_until_blocked(&b, from_b, 0, limit - 1);
        thread::scope(|scope| {
            scope.spawn(|| send_until_cut(&a, from_a, 0));
            receive(&b, from_a, 0..limit, Pace::random(FROM_A));
        });
        receive_until_cut(&b, from_a, limit);
        let outcome = outcome(&handle);
        assert_eq!(outcome.reason, Reason::ByteLimit);
        assert_eq!(outcome.moved.a_to_b, limit);
    });
}
