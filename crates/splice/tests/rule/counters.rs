//! The counters follow a running pair, and are exact at its end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use splice::{Counters, Reason, Side};

use crate::support::contestant::Contestant;
use crate::support::mix::Mix;
use crate::support::random::Random;
use crate::support::relay::{FROM_A, FROM_B, Joined, Relay, outcome, payloads};
use crate::support::transfer::{Pace, receive, receive_to_end, send};

/// How old the contract allows them to be.
const OLDEST: Duration = Duration::from_secs(1);
const TURNS: u64 = 40;
const BETWEEN_TURNS: Duration = Duration::from_millis(10);
const LARGEST_TURN_BYTES: usize = 100_000;
const LOOK_EVERY: Duration = Duration::from_millis(3);
/// More than a new connection acknowledges at once (`TCP_MAX_QUICKACKS`, net/tcp.h: 16).
const ANSWERS: u64 = 20;
const UNANSWERED_BYTES: u64 = 100;

pub(crate) fn follow_a_running_transfer(engine: &Contestant) {
    let relay = Relay::new(engine);
    let Joined { a, b, handle } = relay.join(Mix::TCP4);
    let [from_a, from_b] = payloads();
    let received = [AtomicU64::new(0), AtomicU64::new(0)];
    let done = AtomicBool::new(false);
    let totals = thread::scope(|scope| {
        let flows: Vec<_> = [(&a, &b, from_a, FROM_A), (&b, &a, from_b, FROM_B)]
            .into_iter()
            .zip(&received)
            .map(|((from, to, payload, salt), received)| {
                scope.spawn(move || {
                    let mut random = Random::of_run(salt + 20);
                    let mut position = 0;
                    for _ in 0..TURNS {
                        let end = position + random.size(LARGEST_TURN_BYTES) as u64;
                        send(from, payload, position..end, Pace::Steady);
                        receive(to, payload, position..end, Pace::Steady);
                        position = end;
                        received.store(end, Ordering::SeqCst);
                        thread::sleep(BETWEEN_TURNS);
                    }
                    position
                })
            })
            .collect();
        let looker = scope.spawn(|| {
            let mut last = Counters::default();
            let mut changes = 0;
            while !done.load(Ordering::SeqCst) {
                let [a_to_b, b_to_a] =
                    [0, 1].map(|way: usize| received[way].load(Ordering::SeqCst));
                // Not by the clock, which continues while the whole machine stands still.
                let mut looks = OLDEST.div_duration_f64(LOOK_EVERY) as u32;
                loop {
                    let now = handle.counters();
                    assert!(now.a_to_b >= last.a_to_b && now.b_to_a >= last.b_to_a);
                    changes += u32::from(now != last);
                    last = now;
                    if now.a_to_b >= a_to_b && now.b_to_a >= b_to_a {
                        break;
                    }
                    assert!(looks > 0, "{now:?} is older than {OLDEST:?}");
                    looks -= 1;
                    thread::sleep(LOOK_EVERY);
                }
                thread::sleep(LOOK_EVERY);
            }
            changes
        });
        let totals: Vec<_> = flows.into_iter().map(|flow| flow.join().unwrap()).collect();
        done.store(true, Ordering::SeqCst);
        assert!(looker.join().unwrap() > 1, "the counters stood still");
        totals
    });
    a.end_stream();
    b.end_stream();
    receive_to_end(&b, from_a, totals[0]..totals[0], Pace::Steady);
    let Counters { a_to_b, b_to_a } = outcome(&handle).moved;
    assert_eq!([a_to_b, b_to_a], totals[..]);
    assert_eq!(handle.counters(), Counters { a_to_b, b_to_a });
}

/// What has arrived counts, however the pair ends.
pub(crate) fn are_exact_after_a_reset(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    let (a_sends, b_sends) = (300_001, 70_001);
    for mix in engine.mixes() {
        let Joined { a, b, handle } = relay.join(mix);
        thread::scope(|scope| {
            scope.spawn(|| send(&a, from_a, 0..a_sends, Pace::Steady));
            scope.spawn(|| send(&b, from_b, 0..b_sends, Pace::Steady));
            scope.spawn(|| receive(&b, from_a, 0..a_sends, Pace::Steady));
            // The last byte stays unread, so that closing is a reset for every kind.
            receive(&a, from_b, 0..b_sends - 1, Pace::Steady);
        });
        a.wait_unread(1);
        a.reset();
        let outcome = outcome(&handle);
        assert_eq!(outcome.reason, Reason::Reset(Side::A));
        assert_eq!(
            [outcome.moved.a_to_b, outcome.moved.b_to_a],
            [a_sends, b_sends]
        );
    }
}

/// A receiver acknowledges bytes with its answer, or tens of milliseconds later. A reset from
/// either side before that does not change what has arrived.
pub(crate) fn are_exact_with_an_acknowledgement_due(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        for side in [Side::A, Side::B] {
            let Joined { a, b, handle } = relay.join(mix);
            for byte in 0..ANSWERS {
                send(&a, from_a, byte..byte + 1, Pace::Steady);
                receive(&b, from_a, byte..byte + 1, Pace::Steady);
                send(&b, from_b, byte..byte + 1, Pace::Steady);
                // One byte stays unread, for a reset by any kind.
                a.wait_unread(1);
                receive(&a, from_b, byte..(byte + 1).min(ANSWERS - 1), Pace::Steady);
            }
            let sent = ANSWERS + UNANSWERED_BYTES;
            send(&a, from_a, ANSWERS..sent, Pace::Steady);
            b.wait_unread(UNANSWERED_BYTES as usize);
            match side {
                Side::A => a.reset(),
                Side::B => b.reset(),
            }
            let outcome = outcome(&handle);
            assert_eq!(outcome.reason, Reason::Reset(side));
            assert_eq!(
                [outcome.moved.a_to_b, outcome.moved.b_to_a],
                [sent, ANSWERS]
            );
        }
    });
}
