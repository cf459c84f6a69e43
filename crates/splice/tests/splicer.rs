//! Threads with loops: too few descriptors for all of them, and pairs that are told to the caller.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

mod support {
    pub(crate) mod alone;
    #[allow(dead_code, reason = "the rules of every engine ask for more")]
    pub(crate) mod descriptors;
}

use std::fs::File;
use std::io::{Read, Write};
use std::iter;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use netlab::{PATIENCE, connection, until};
use splice::{Endpoint, EngineChoice, EngineName, ErrorKind, Options, Reason, Splicer};

use crate::support::alone::alone;
use crate::support::descriptors;

/// The descriptors of a loop: an epoll instance, an eventfd, a timerfd.
const OF_A_LOOP: usize = 3;
/// More than two loops need.
const SPARE: u64 = 20;

#[test]
fn a_failed_splicer_leaves_nothing() {
    alone(|| {
        descriptors::allow_more(SPARE);
        let mut fill: Vec<_> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
        // Enough for two loops, but not for a third.
        fill.truncate(fill.len() - 2 * OF_A_LOOP - 1);
        let before = descriptors::open();
        for _ in 0..3 {
            Splicer::new(3).unwrap_err();
        }
        until("everything is closed", || descriptors::open() == before);
        drop(Splicer::new(2).unwrap());
    });
}

#[test]
fn an_engine_that_refuses_leaves_the_connections_to_whoever_has_duplicates() {
    let splicer = Splicer::new(1).unwrap();
    let (mut client, near) = connection();
    let (far, mut server) = UnixStream::pair().unwrap();
    let ends = || {
        let near = Endpoint::new(near.try_clone().unwrap()).unwrap();
        let far = Endpoint::new(far.try_clone().unwrap()).unwrap();
        (near, far)
    };
    let (sender, end) = mpsc::channel();
    let join = |engine| {
        let ((near, far), sender) = (ends(), sender.clone());
        let options = Options {
            engine: EngineChoice::Only(engine),
            ..Options::default()
        };
        splicer.join_then(near, far, &options, move |outcome| {
            let _ = sender.send(outcome);
        })
    };
    let error = join(EngineName::Sockmap).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineRefused);
    assert!(end.try_recv().is_err());

    let _pair = join(EngineName::Copy).unwrap();
    client.write_all(b"unharmed").unwrap();
    let mut seen = [0; 8];
    server.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"unharmed");
    drop((client, server));
    let outcome = end.recv_timeout(PATIENCE).unwrap();
    assert_eq!(outcome.reason, Reason::EndOfStream);
    assert_eq!(outcome.moved.a_to_b, 8);
}
