//! The half-close timeout ends a pair in which one stream has ended and no byte moves in the other
//! direction, and no other pair.

use std::time::{Duration, Instant};

use splice::{Handle, Limits, Reason};

use crate::rule::idle::silence_that_ended;
use crate::rule::reset::tells_reset;
use crate::support::contestant::Contestant;
use crate::support::mix::Mix;
use crate::support::patience::until;
use crate::support::peer::Peer;
use crate::support::relay::{Joined, Relay, outcome, payloads};
use crate::support::transfer::{Ending, Pace, receive, receive_to_end, receive_until_cut, send};

const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_millis(600);
/// A BPF program reads a coarse clock, which is behind by up to a tick of `CONFIG_HZ`=100.
const TICK: Duration = Duration::from_millis(10);
/// As in `idle`.
const CHANCES: u32 = 20;

pub(crate) fn limits(half_close_timeout: Duration) -> Limits {
    Limits {
        half_close_timeout: Some(half_close_timeout),
        ..Limits::default()
    }
}

/// Ends the stream of `first`, and waits for the end of the pair.
fn half_close(first: &Peer, second: &Peer, handle: &Handle) {
    let start = Instant::now();
    first.end_stream();
    receive_to_end(second, payloads()[0], 0..0, Pace::Steady);
    let outcome = outcome(handle);
    assert_eq!(outcome.reason, Reason::HalfClosed);
    assert!(start.elapsed() + TICK >= SHORT, "{:?}", start.elapsed());
}

/// Also where it was silent for long before: the clock starts with the end of the stream.
pub(crate) fn ends_a_half_closed_pair(engine: &Contestant) {
    let relay = Relay::with_limits(engine, limits(SHORT));
    let mut a_ends_first = false;
    engine.with_each_kind(|mix| {
        a_ends_first = !a_ends_first;
        let pairs = [(); 2].map(|()| relay.join(mix));
        for Joined { a, b, handle } in &pairs {
            let [a_tells, b_tells] = tells_reset(mix);
            let (first, second, first_tells, second_tells) = if a_ends_first {
                (a, b, a_tells, b_tells)
            } else {
                (b, a, b_tells, a_tells)
            };
            half_close(first, second, handle);
            let (_, ending) = receive_until_cut(first, payloads()[1], 0);
            assert!(
                ending == Ending::Reset || !first_tells,
                "{first:?} saw a clean end"
            );
            // It has read its EOF, so only the socket's error tells of the reset.
            if second_tells {
                until("the other one is reset, too", || second.has_error());
            }
        }
    });
}

pub(crate) fn leaves_a_pair_whose_other_direction_moves(engine: &Contestant) {
    let relay = Relay::with_limits(engine, limits(LONG));
    for chance in 1.. {
        let Joined { a, b, handle } = relay.join(Mix::TCP4);
        let [from_a, from_b] = payloads();
        b.end_stream();
        receive_to_end(&a, from_b, 0..0, Pace::Steady);
        let Some(silence) = silence_that_ended(&a, &b, from_a, LONG) else {
            a.end_stream();
            assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
            break;
        };
        assert_eq!(outcome(&handle).reason, Reason::HalfClosed);
        assert!(silence + TICK >= LONG, "ended after {silence:?}");
        assert!(chance < CHANCES, "the machine never let the pair talk");
    }
}

/// One pair is joined before another one ends by the timeout, and lives on.
pub(crate) fn leaves_a_pair_of_two_streams(engine: &Contestant) {
    let relay = Relay::with_limits(engine, limits(SHORT));
    let [from_a, from_b] = payloads();
    engine.with_each_kind(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        let other = relay.join(mix);
        half_close(&other.a, &other.b, &other.handle);
        assert_eq!(handle.outcome(), None);
        send(&a, from_a, 0..100, Pace::Steady);
        receive(&b, from_a, 0..100, Pace::Steady);
        send(&b, from_b, 0..100, Pace::Steady);
        receive(&a, from_b, 0..100, Pace::Steady);
        for peer in [&a, &b] {
            peer.end_stream();
        }
        assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
    });
}
