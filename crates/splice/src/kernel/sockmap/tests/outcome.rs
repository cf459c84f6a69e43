//! The outcome of a pair: which engine moved the bytes, and how many user space moved.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use netlab::{PATIENCE, connection, until};

use super::missing;
use crate::{Endpoint, EngineChoice, EngineName, Handle, Options, Outcome, Reason, Splicer};

const MESSAGE_BYTES: usize = 1000;

fn by_name(engine: EngineName) -> Options {
    Options {
        engine: EngineChoice::Only(engine),
        ..Options::default()
    }
}

fn message(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(&[7; MESSAGE_BYTES]).unwrap();
    to.read_exact(&mut [0; MESSAGE_BYTES]).unwrap();
}

fn ended(peers: [&TcpStream; 2], handle: &Handle) -> Outcome {
    for peer in peers {
        // The pair may be over already.
        let _ = peer.shutdown(Shutdown::Write);
    }
    let outcome = handle.wait_timeout(PATIENCE).unwrap();
    assert_eq!(outcome.reason, Reason::EndOfStream, "{outcome:?}");
    outcome
}

/// The ends of both streams have arrived before the pair is joined, so the engine has no time.
#[test]
fn a_pair_that_was_never_taken_is_reported_as_copied() {
    if missing() {
        return;
    }
    for engine in [EngineName::Sockmap, EngineName::Segment] {
        if engine.probe().is_err() {
            continue;
        }
        let (mut a, near) = connection();
        let (b, far) = connection();
        a.write_all(&[7; MESSAGE_BYTES]).unwrap();
        for peer in [&a, &b] {
            peer.shutdown(Shutdown::Write).unwrap();
        }
        let [near, far] = [near, far].map(|end| Endpoint::new(end).unwrap());
        let splicer = Splicer::new(1).unwrap();
        let handle = splicer.join(near, far, &by_name(engine)).unwrap();
        let outcome = ended([&a, &b], &handle);
        assert_eq!(outcome.engine, EngineName::Copy, "{outcome:?}");
        let why = outcome.why_engine;
        assert!(why.contains(engine.as_str()), "{why}");
        assert_eq!(outcome.moved.a_to_b, MESSAGE_BYTES as u64);
    }
}

#[test]
fn bytes_that_copy_moved_before_are_counted_apart() {
    if missing() {
        return;
    }
    for messages_in_kernel in [0, 1] {
        let (mut a, near) = connection();
        let (mut b, far) = connection();
        let [near, far] = [near, far].map(|end| Endpoint::new(end).unwrap());
        let splicer = Splicer::new(1).unwrap();
        let handle = splicer
            .join(near, far, &by_name(EngineName::Sockmap))
            .unwrap();
        assert_eq!(handle.engine().0, EngineName::Copy, "{handle:?}");
        message(&mut a, &mut b);
        until("it is taken", || {
            handle.engine() == (EngineName::Sockmap, "asked for by name".into())
        });
        let by_copy = handle.counters().total() - handle.redirected().total();
        if messages_in_kernel > 0 {
            // A segment opens the gate and passes it.
            until("the kernel moves a message", || {
                message(&mut a, &mut b);
                handle.redirected().total() > 0
            });
        }
        let outcome = ended([&a, &b], &handle);
        let (total, why) = (outcome.moved.total(), outcome.why_engine);
        if messages_in_kernel > 0 {
            assert_eq!(outcome.engine, EngineName::Sockmap, "{why}");
            assert!(why.starts_with("asked for by name; copy moved "), "{why}");
            assert!(why.contains(&format!(" of {total} bytes: ")), "{why}");
        } else {
            assert_eq!(by_copy, total);
            assert_eq!(outcome.engine, EngineName::Copy, "{why}");
            let words = format!("sockmap took the pair, but copy moved all {total} bytes: ");
            assert!(why.starts_with(&words), "{why}");
        }
    }
}
