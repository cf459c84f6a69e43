//! EOF arrives after all bytes before it, and leaves the other direction open.

use std::thread;

use splice::Reason;

use crate::support::contestant::Contestant;
use crate::support::relay::{FROM_A, Joined, Relay, outcome, payloads};
use crate::support::transfer::{Pace, receive, receive_to_end, send, send_until_blocked};

const BEFORE_BYTES: u64 = 300_000;
const MOST_BYTES: u64 = 64 << 20;
const AFTERWARDS_BYTES: u64 = 5 << 20;

pub(crate) fn the_other_direction_goes_on(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    let mut a_ends_first = false;
    engine.with_each_mix(|mix| {
        a_ends_first = !a_ends_first;
        let Joined { a, b, handle } = relay.join(mix);
        let (first, second) = if a_ends_first { (&a, &b) } else { (&b, &a) };
        thread::scope(|scope| {
            scope.spawn(|| {
                send(first, from_a, 0..BEFORE_BYTES, Pace::random(FROM_A));
                first.end_stream();
            });
            receive_to_end(second, from_a, 0..BEFORE_BYTES, Pace::Steady);
        });
        // Twice, so that EOF cannot merely have been overtaken.
        for part in [0..100, 100..AFTERWARDS_BYTES] {
            thread::scope(|scope| {
                scope.spawn(|| send(second, from_b, part.clone(), Pace::Steady));
                receive(first, from_b, part.clone(), Pace::random(FROM_A));
            });
        }
        assert_eq!(handle.outcome(), None);
        second.end_stream();
        receive_to_end(
            first,
            from_b,
            AFTERWARDS_BYTES..AFTERWARDS_BYTES,
            Pace::Steady,
        );
        assert_eq!(outcome(&handle).reason, Reason::EndOfStream);
    });
}

pub(crate) fn both_ways_with_a_backlog(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_kind(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        let [a_sent, b_sent] = thread::scope(|scope| {
            let a_sends = scope.spawn(|| send_until_blocked(&a, from_a, 0, MOST_BYTES));
            let b_sent = send_until_blocked(&b, from_b, 0, MOST_BYTES);
            [a_sends.join().unwrap(), b_sent]
        });
        a.end_stream();
        b.end_stream();
        Joined { a, b, handle }.end_with([a_sent, b_sent]);
    });
}

pub(crate) fn with_nothing_sent(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        a.end_stream();
        receive_to_end(&b, from_a, 0..0, Pace::Steady);
        assert_eq!(handle.outcome(), None);
        b.end_stream();
        receive_to_end(&a, from_b, 0..0, Pace::Steady);
        let outcome = outcome(&handle);
        assert_eq!(outcome.reason, Reason::EndOfStream);
        assert_eq!(outcome.moved.total(), 0);
    });
}
