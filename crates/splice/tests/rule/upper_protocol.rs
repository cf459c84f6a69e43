//! A pair with a socket that has TLS in the kernel.

use std::thread;
use std::time::Duration;

use splice::{EngineChoice, EngineName, Kind, Options, Reason};

use crate::support::contestant::{AUTO, Contestant, SEGMENT, SOCKMAP};
use crate::support::mix::Mix;
use crate::support::peer::Peer;
use crate::support::relay::{Joined, Relay, outcome, payloads};
use crate::support::tls::encrypt;
use crate::support::transfer::{Pace, receive, receive_to_end, send};

/// Far beyond what moves a pair to another engine.
const BULK_BYTES: u64 = 4 << 20;

/// One side's connection has TLS, and the pair reads and writes what is inside.
fn joined(relay: &Relay, mix: Mix, side_with_tls: usize) -> Joined {
    let (a, near) = Peer::connected(mix.a);
    let (b, far) = Peer::connected(mix.b);
    if side_with_tls == 0 {
        encrypt([&a, &near]);
    } else {
        encrypt([&b, &far]);
    }
    let handle = relay.join_sockets(near, far);
    Joined { a, b, handle }
}

fn converse(Joined { a, b, .. }: &Joined) {
    let [from_a, from_b] = payloads();
    thread::scope(|scope| {
        scope.spawn(|| send(a, from_a, 0..BULK_BYTES, Pace::Steady));
        scope.spawn(|| send(b, from_b, 0..BULK_BYTES, Pace::Steady));
        scope.spawn(|| receive(b, from_a, 0..BULK_BYTES, Pace::Steady));
        receive(a, from_b, 0..BULK_BYTES, Pace::Steady);
    });
}

/// The last bytes come together with the end of the stream.
fn end(joined: &Joined) {
    let [from_a, from_b] = payloads();
    let last = BULK_BYTES..BULK_BYTES + 100;
    for [(from, payload), (to, _)] in [
        [(&joined.a, from_a), (&joined.b, from_b)],
        [(&joined.b, from_b), (&joined.a, from_a)],
    ] {
        send(from, payload, last.clone(), Pace::Steady);
        from.end_stream();
        receive_to_end(to, payload, last.clone(), Pace::Steady);
    }
}

#[test]
#[ignore = "kernel: needs kTLS; make test-kernels runs it"]
fn a_pair_with_tls_stays_with_copy_by_auto() {
    for mix in [
        Mix::TCP4,
        Mix {
            a: Kind::Tcp6,
            b: Kind::Tcp6,
        },
        Mix {
            a: Kind::Unix,
            b: Kind::Tcp4,
        },
    ] {
        for side in [0, 1] {
            if side == 0 && mix.a == Kind::Unix {
                continue;
            }
            let mut relay = Relay::new(&AUTO);
            // Any other pair would be tried with every engine.
            relay.options = Options {
                segment_after: Some(Duration::ZERO),
                promote_after: Some(Duration::ZERO),
                ..relay.options
            };
            let joined = joined(&relay, mix, side);
            converse(&joined);
            let (name, why) = joined.handle.engine();
            assert_eq!(name, EngineName::Copy, "{mix:?}: {why}");
            assert!(why.contains("upper layer protocol"), "{mix:?}: {why}");
            end(&joined);
            let outcome = outcome(&joined.handle);
            assert_eq!(outcome.reason, Reason::EndOfStream, "{mix:?}");
            assert_eq!((outcome.engine, outcome.why_engine), (name, why));
        }
    }
}

#[test]
#[ignore = "kernel: needs kTLS; make test-kernels runs it"]
fn a_pair_with_tls_is_left_to_user_space_by_sockmap() {
    if !SOCKMAP.is_available() {
        return;
    }
    let relay = Relay::new(&SOCKMAP);
    let joined_by_sockmap = joined(&relay, Mix::TCP4, 1);
    converse(&joined_by_sockmap);
    let (name, why) = joined_by_sockmap.handle.engine();
    assert_eq!(name, EngineName::Copy, "{why}");
    assert!(why.contains("TLS"), "{why}");
    end(&joined_by_sockmap);
    assert_eq!(
        outcome(&joined_by_sockmap.handle).reason,
        Reason::EndOfStream
    );
}

/// `segment` is chosen by name for its path.
#[test]
#[ignore = "kernel: needs kTLS; make test-kernels runs it"]
fn a_pair_with_tls_is_refused_by_segment() {
    let relay = Relay::new(&Contestant {
        choice: EngineChoice::Only(EngineName::Segment),
        ..SEGMENT
    });
    let refused = outcome(&joined(&relay, Mix::TCP4, 1).handle);
    assert_eq!(refused.reason, Reason::Refused);
    assert!(refused.why_engine.contains("a ULP"), "{refused:?}");
}
