//! How spliced pairs end: by halves, and by resets.

use super::*;

fn in_lab(test: impl Fn(&Lab, &Splicer)) {
    let lab = Lab::new().expect("a lab");
    let splicer = lab.relay().enter(|| Splicer::new(1).expect("a splicer"));
    test(&lab, &splicer.expect("entered"));
}

/// One direction ends, and the other goes on with bulk, whichever it is.
#[test]
fn one_half_ends_and_the_other_goes_on() {
    const BYTES: usize = 8 << 20;
    if !available(Need::Root) {
        return;
    }
    in_lab(|lab, splicer| {
        for server_ends_first in [false, true] {
            let (client, server, handle) = spliced_across(lab, splicer);
            let (first, second) = if server_ends_first {
                (&server, &client)
            } else {
                (&client, &server)
            };
            first.shutdown(Shutdown::Write).expect("shutdown");
            assert_eq!({ second }.read(&mut [0; 8]).expect("the end"), 0);
            thread::scope(|scope| {
                let sent = scope.spawn(|| write_all(second, BYTES, seed()));
                let (length, hash, _) = read_all(first);
                assert_eq!((length, hash), (BYTES, sent.join().expect("sent")));
            });
            let outcome = handle.wait_timeout(PATIENCE);
            let outcome = outcome.expect("it ends");
            assert_eq!(outcome.reason, Reason::EndOfStream, "{outcome:?}");
            assert_eq!(
                outcome.moved.a_to_b + outcome.moved.b_to_a,
                BYTES as u64 + 10
            );
        }
    });
}

#[test]
fn a_reset_of_one_side_resets_the_other() {
    if !available(Need::Root) {
        return;
    }
    in_lab(|lab, splicer| {
        for (side, half_closed) in [
            (Side::A, false),
            (Side::B, false),
            (Side::A, true),
            (Side::B, true),
        ] {
            let (client, server, handle) = spliced_across(lab, splicer);
            let (first, mut second) = match side {
                Side::A => (client, server),
                Side::B => (server, client),
            };
            if half_closed {
                // The other one has ended its stream before.
                second.shutdown(Shutdown::Write).expect("shutdown");
                assert_eq!((&first).read(&mut [0; 8]).expect("the end"), 0);
            }
            socket2::SockRef::from(&first)
                .set_linger(Some(Duration::ZERO))
                .expect("SO_LINGER");
            drop(first);
            let error = second.read(&mut [0; 8]).expect_err("a reset");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            let outcome = handle.wait_timeout(PATIENCE);
            let outcome = outcome.expect("it ends");
            assert_eq!(outcome.reason, Reason::Reset(side), "{half_closed}");
            assert_eq!([outcome.moved.a_to_b, outcome.moved.b_to_a], [5, 5]);
        }
    });
}

/// The loop does not wait for the program: a pair is tried when that is loaded.
#[test]
fn auto_takes_a_pair_that_lives_long() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab.relay().enter(|| Splicer::new(1).expect("a splicer"));
    let splicer = splicer.expect("entered");
    let Joined {
        client,
        server,
        a,
        b,
    } = connect_across(&lab, false);
    let options = Options {
        ..Options::default()
    };
    let handle = splicer.join(a, b, &options).expect("joined");
    let deadline = Instant::now() + PATIENCE;
    while !handle.is_taken() {
        assert!(Instant::now() < deadline, "{handle:?}");
        ping(&client, &server);
    }
    assert_eq!(handle.engine().0, EngineName::Segment, "{handle:?}");
    let proof = Proof::begin(&lab, &splicer, &handle);
    exchange(&client, &server, 1 << 20, seed());
    proof.end(2 << 20);
    assert_eq!(handle.wait().reason, Reason::EndOfStream);
}
