//! The idle timeout ends a pair in which no byte moves, and no other pair.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use splice::{EngineName, Limits, Outcome, Reason};

use crate::rule::reset::tells_reset;
use crate::support::contestant::{Contestant, SOCKMAP};
use crate::support::mix::Mix;
use crate::support::payload::Payload;
use crate::support::peer::Peer;
use crate::support::relay::{Joined, Relay, outcome, payloads};
use crate::support::transfer::{Ending, receive_until_cut, send_until_blocked};

const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_millis(600);
/// How long a pair talks, as a multiple of the timeout.
const TALKS_FOR: u32 = 3;
const BETWEEN_WORDS: Duration = Duration::from_millis(20);
/// A machine that is too busy to let the peers talk proves nothing, and gets another chance.
const CHANCES: u32 = 20;

fn limits(idle_timeout: Duration) -> Limits {
    Limits {
        idle_timeout: Some(idle_timeout),
        ..Limits::default()
    }
}

pub(crate) fn ends_a_silent_pair(engine: &Contestant) {
    let relay = Relay::with_limits(engine, limits(SHORT));
    let [from_a, from_b] = payloads();
    engine.with_each_kind(|mix| {
        let start = Instant::now();
        let Joined { a, b, handle } = relay.join(mix);
        let Outcome {
            reason, duration, ..
        } = outcome(&handle);
        assert_eq!(reason, Reason::Idle);
        assert!(
            duration >= SHORT && start.elapsed() >= SHORT,
            "{duration:?}"
        );
        let [a_tells, b_tells] = tells_reset(mix);
        for (peer, payload, tells) in [(&a, from_b, a_tells), (&b, from_a, b_tells)] {
            let (_, ending) = receive_until_cut(peer, payload, 0);
            assert!(
                ending == Ending::Reset || !tells,
                "{peer:?} saw a clean end"
            );
        }
    });
}

pub(crate) fn ends_a_stalled_pair(engine: &Contestant) {
    // Longer than a sender needs that is scheduled only occasionally.
    let relay = Relay::with_limits(engine, limits(LONG));
    let [from_a, _] = payloads();
    let Joined { a, b, handle } = relay.join(Mix::TCP4);
    send_until_blocked(&a, from_a, 0, 64 << 20);
    assert_eq!(outcome(&handle).reason, Reason::Idle);
    let (_, ending) = receive_until_cut(&b, from_a, 0);
    assert_eq!(ending, Ending::Reset);
}

pub(crate) fn leaves_a_talking_pair(engine: &Contestant) {
    let relay = Relay::with_limits(engine, limits(LONG));
    talks(|| (relay.join(Mix::TCP4), Instant::now()));
}

/// Bytes of one direction are enough.
pub(crate) fn leaves_a_pair_that_talks_beside_a_blocked_direction(engine: &Contestant) {
    let relay = Relay::with_limits(engine, limits(LONG));
    talks(|| {
        let joined = relay.join(Mix::TCP4);
        let silent_from = Instant::now();
        send_until_blocked(&joined.b, payloads()[1], 0, 64 << 20);
        (joined, silent_from)
    });
}

/// An engine that takes one direction at a time waits for the blocked one, while it moves the bytes
/// of the other one.
pub(crate) fn leaves_a_pair_that_talks_beside_a_direction_blocked_from_the_start(
    engine: &Contestant,
) {
    // So small that what was sent before the join is more than the relay holds.
    let limits = Limits {
        memory_bytes: 1 << 20,
        ..limits(LONG)
    };
    let relay = Relay::with_limits(engine, limits);
    let is_one_by_one = engine.choice == SOCKMAP.choice;
    for chance in 1.. {
        let joined = talks(|| {
            let (a, near) = Peer::connected(Mix::TCP4.a);
            let (b, far) = Peer::connected(Mix::TCP4.b);
            send_until_blocked(&b, payloads()[1], 0, 64 << 20);
            let silent_from = Instant::now();
            let handle = relay.join_sockets(near, far);
            (Joined { a, b, handle }, silent_from)
        });
        // Otherwise it has taken both, since the direction was blocked too late.
        if !is_one_by_one || joined.handle.engine().0 == EngineName::Copy {
            break;
        }
        assert!(chance < CHANCES, "the direction was never blocked in time");
    }
}

/// A pair that `join` makes, and that has talked and lives. It returns since when the pair may be silent.
fn talks(join: impl Fn() -> (Joined, Instant)) -> Joined {
    for _ in 0..CHANCES {
        let (joined, silent_from) = join();
        let before = silent_from.elapsed();
        let Some(silence) = silence_that_ended(&joined.a, &joined.b, payloads()[0], LONG) else {
            return joined;
        };
        assert_eq!(outcome(&joined.handle).reason, Reason::Idle);
        assert!(before + silence >= LONG, "ended as idle after {silence:?}");
    }
    panic!("the machine never let the pair talk");
}

/// Talks in one direction only, for several times as long as the timeout, which must keep the pair alive.
/// `None` if it lived on; otherwise the longest time in which possibly no byte moved.
pub(crate) fn silence_that_ended(
    from: &Peer,
    to: &Peer,
    payload: Payload,
    timeout: Duration,
) -> Option<Duration> {
    let start = Instant::now();
    let mut last_began = start;
    let mut longest = Duration::ZERO;
    for position in 0.. {
        let began = Instant::now();
        let sent = from.write_now(payload.piece(position, 1)).is_ok();
        let lives = sent && matches!((&mut &*to).read(&mut [0]), Ok(1));
        longest = longest.max(last_began.elapsed());
        last_began = began;
        if !lives {
            return Some(longest);
        }
        if start.elapsed() > timeout * TALKS_FOR {
            break;
        }
        thread::sleep(BETWEEN_WORDS);
    }
    None
}
