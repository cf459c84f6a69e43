//! Resets that the program does not pass on: while a pair goes back to its sockets, or since there is no way for the moment.
//! Nobody sends them again, so they count.

use std::io::ErrorKind;

use super::frame::{Checksum, Frame};
use super::return_scene::{Form, Refusing, Scene, wait_for_return};
use super::*;
use rustix::net::connect_unspec;
use splice_bpf::types::segment_mark as mark;

const RST: u8 = 4;
const ACK: u8 = 16;
const DROP: i32 = 2;

/// The pair has ended by a reset of this side, which the other peer has got.
fn expect_reset((client, server, handle): Joined, by: usize) {
    let mut other = [&server, &client][by];
    let error = other.read(&mut [0; 8]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
    assert_eq!(outcome.reason, Reason::Reset(Side::BOTH[by]));
}

/// A way that was closed is open again, and the program does not know it yet.
#[test]
fn a_reset_that_is_lost_for_want_of_a_way_is_passed_on() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    for is_v4 in [true, false] {
        for by in 0..2 {
            let joined = scene.splice(is_v4);
            ping(&joined.0, &joined.1);
            let flow = scene.translated(&joined).expect("it is spliced");
            let closed = u64::from(mark::CLOSED) << u32::BITS;
            flow.side[by].high_seq_and_marks.fetch_or(closed, Relaxed);
            let end = [&joined.0, &joined.1][by];
            connect_unspec(end).expect("reset");
            expect_reset(joined, by);
        }
    }
    netlab::until("nothing is left of them", || scene.datapath.entries() == 0);
}

/// What the program cannot translate may be a reset itself.
#[test]
fn a_reset_with_options_ends_the_pair() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    for is_v4 in [true, false] {
        for by in 0..2 {
            let joined = scene.splice(is_v4);
            ping(&joined.0, &joined.1);
            let mut frame = scene.next(&joined, by).expect("it is spliced");
            frame.flags = RST | ACK;
            assert_eq!(scene.feed(by, &Form::Options.of(&frame)), DROP);
            expect_reset(joined, by);
        }
    }
    netlab::until("nothing is left of them", || scene.datapath.entries() == 0);
}

/// The socket of the server's connection may not take it up, so the pair waits between its two states. Only a reset at the
/// number that is expected next ends it then.
#[test]
fn a_reset_ends_a_pair_that_waits_to_go_back() {
    if !available(Need::Root) {
        return;
    }
    let Some(refusing) = Refusing::new() else {
        return;
    };
    // A socket that the loop makes is in the group as well.
    refusing.enter(|| {
        let scene = Scene::new();
        for has_sent_more in [false, true] {
            let joined = scene.splice(true);
            ping(&joined.0, &joined.1);
            let refused = refusing.begin();
            let next = scene.next(&joined, 1).expect("it is spliced");
            assert_eq!(scene.feed(1, &Form::Fragment.of(&next)), DROP);
            let reset = Frame {
                flags: RST,
                ..next.clone()
            };
            for seq in [1, 1000, u32::MAX] {
                let frame = Frame {
                    seq: reset.seq.wrapping_add(seq),
                    ..reset.clone()
                };
                assert_eq!(scene.feed(1, &frame.bytes()), DROP);
            }
            let damaged = Frame {
                checksum: Checksum::Wrong,
                ..reset.clone()
            };
            assert_eq!(scene.feed(1, &damaged.bytes()), DROP);
            assert!(joined.2.outcome().is_none());
            let mut end = reset;
            if has_sent_more {
                let more = Frame {
                    payload: b"more".to_vec(),
                    ..next
                };
                assert_eq!(scene.feed(1, &more.bytes()), DROP);
                end.seq = end.seq.wrapping_add(4);
            }
            assert_eq!(scene.feed(1, &end.bytes()), DROP);
            expect_reset(joined, 1);
            drop(refused);
        }

        let joined = scene.splice(true);
        let refused = refusing.begin();
        let next = scene.next(&joined, 1).expect("it is spliced");
        assert_eq!(scene.feed(1, &Form::Fragment.of(&next)), DROP);
        let wrong = Frame {
            flags: RST,
            seq: next.seq.wrapping_add(1),
            ..next
        };
        assert_eq!(scene.feed(1, &wrong.bytes()), DROP);
        drop(refused);
        wait_for_return(&joined);
        ping(&joined.0, &joined.1);
        ping(&joined.1, &joined.0);
    });
}
