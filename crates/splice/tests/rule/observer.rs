//! What is read of a running pair by those who have no say in it.

use std::time::{Duration, Instant};

use splice::{Counters, EngineChoice, Kind, Reason, Stream};

use crate::support::contestant::Contestant;
use crate::support::mix::Mix;
use crate::support::patience::{PATIENCE, until};
use crate::support::relay::{Joined, Relay, outcome, payloads};
use crate::support::transfer::{Pace, receive, receive_to_end, send, send_until_blocked};

/// Of the kernel's coarse clock and of two readings of clocks, with room for a machine that stands still between them.
const INEXACT: Duration = Duration::from_millis(50);

pub(crate) fn agrees_with_the_peers_and_the_outcome(engine: &Contestant) {
    const PARTS: u64 = 3;
    const PART_BYTES: u64 = 200_001;
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_kind(|mix| {
        let Joined { a, b, handle } = relay.join(mix);
        let observer = handle.observer();
        for part in 0..PARTS {
            let range = part * PART_BYTES..(part + 1) * PART_BYTES;
            std::thread::scope(|scope| {
                scope.spawn(|| send(&a, from_a, range.clone(), Pace::Steady));
                receive(&b, from_a, range.clone(), Pace::Steady);
            });
            send(&b, from_b, part..part + 1, Pace::Steady);
            receive(&a, from_b, part..part + 1, Pace::Steady);
            let expected = Counters {
                a_to_b: (part + 1) * PART_BYTES,
                b_to_a: part + 1,
            };
            until("it shows what was sent", || observer.counters() == expected);
            assert_eq!(observer.engine(), handle.engine());
        }
        if let EngineChoice::Only(only) = engine.choice {
            assert_eq!(observer.engine().0, only);
        }
        a.end_stream();
        b.end_stream();
        let all = Counters {
            a_to_b: PARTS * PART_BYTES,
            b_to_a: PARTS,
        };
        // Nor does it show anything else while an engine lets go of the pair.
        let ends_at = Instant::now() + PATIENCE;
        while handle.outcome().is_none() && Instant::now() < ends_at {
            assert_eq!(observer.counters(), all);
        }
        let outcome = outcome(&handle);
        assert_eq!(outcome.reason, Reason::EndOfStream);
        // Neither the end nor the loss of the handle changes what it shows.
        drop((handle, a, b));
        assert_eq!(observer.counters(), outcome.moved);
        assert_eq!(outcome.moved, all);
        assert_eq!(observer.engine(), (outcome.engine, outcome.why_engine));
    });
}

pub(crate) fn knows_when_a_byte_last_moved(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    let Joined { a, b, handle } = relay.join(Mix {
        a: engine.kinds[0],
        b: engine.kinds[0],
    });
    let observer = handle.observer();
    for byte in 0..2 {
        for (from, to, payload) in [(&a, &b, from_a), (&b, &a, from_b)] {
            until("it is idle", || observer.moved_at().elapsed() > 2 * INEXACT);
            let sent_at = Instant::now();
            send(from, payload, byte..byte + 1, Pace::Steady);
            receive(to, payload, byte..byte + 1, Pace::Steady);
            until("it knows of the byte", || {
                observer.moved_at() + INEXACT >= sent_at
            });
            assert!(observer.moved_at() <= Instant::now() + INEXACT);
        }
    }
}

/// The receiver of a stream that has ended does not read. Of a UNIX stream the end shows at once, of a TCP stream
/// behind its bytes.
pub(crate) fn knows_which_stream_is_draining(engine: &Contestant) {
    const MOST_BYTES: u64 = 64 << 20;
    if !engine.kinds.contains(&Kind::Unix) {
        return;
    }
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    let Joined { a, b, handle } = relay.join(Mix {
        a: Kind::Unix,
        b: Kind::Unix,
    });
    let observer = handle.observer();
    let sent = send_until_blocked(&a, from_a, 0, MOST_BYTES);
    a.end_stream();
    until("it knows", || {
        observer.streams() == [Stream::Draining, Stream::Open]
    });
    receive_to_end(&b, from_a, 0..sent, Pace::Steady);
    until("it has ended", || observer.streams()[0] == Stream::Ended);
    b.end_stream();
    receive_to_end(&a, from_b, 0..0, Pace::Steady);
    outcome(&handle);
}

pub(crate) fn knows_which_stream_has_ended(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    engine.with_each_kind(|mix| {
        for first in 0..2 {
            let Joined { a, b, handle } = relay.join(mix);
            let observer = handle.observer();
            assert_eq!(observer.streams(), [Stream::Open; 2]);
            let (ended, other, payload) = match first {
                0 => (&a, &b, from_a),
                _ => (&b, &a, from_b),
            };
            ended.end_stream();
            receive_to_end(other, payload, 0..0, Pace::Steady);
            let mut expected = [Stream::Open; 2];
            expected[first] = Stream::Ended;
            until("it knows", || observer.streams() == expected);
            other.end_stream();
            outcome(&handle);
            assert_eq!(observer.streams(), [Stream::Ended; 2]);
        }
    });
}
