//! Segments that are not in the plain form: a pair goes back to its sockets only for those that the stack would take.

use super::frame::{Frame, in_frame};
use super::ip_forms::{Fate, Form, v4, v6};
use super::return_scene::{Scene, wait_for_return};
use super::*;
use splice_bpf::types::SegmentFlow;

const DROP: i32 = 2;

/// Short enough for a header of the greatest length that is said to be longer than the packet.
const PAYLOAD: &[u8] = b"four";

fn forms(is_v4: bool) -> Vec<Form> {
    if is_v4 { v4() } else { v6() }
}

/// What a flow knows of both streams.
fn known(flow: &SegmentFlow) -> [[u64; 4]; 2] {
    [0, 1].map(|side: usize| {
        let side = &flow.side[side];
        let high_ack = side.high_ack.load(Relaxed).into();
        let accepted_at = side.accepted_at.load(Relaxed).into();
        [
            side.high_seq_and_marks.load(Relaxed),
            side.acked.load(Relaxed),
            high_ack,
            accepted_at,
        ]
    })
}

/// Data that comes next.
fn next(scene: &Scene, joined: &Joined, side: usize) -> Frame {
    let mut next = scene.next(joined, side).expect("it is spliced");
    next.payload = PAYLOAD.to_vec();
    next
}

#[test]
fn what_the_stack_discards_changes_nothing() {
    if !available(Need::Root) {
        return;
    }
    let mut wrong = Vec::new();
    for is_v4 in [true, false] {
        let mut scene = Scene::new();
        let mut joined = scene.splice(is_v4);
        for form in forms(is_v4).iter().filter(|form| form.fate != Fate::Taken) {
            for side in 0..2 {
                let before = scene.translated(&joined).map(known);
                let verdict = scene.feed(side, &in_frame(&next(&scene, &joined, side), form.of));
                let after = scene.translated(&joined).map(known);
                if verdict == DROP || after != before {
                    wrong.push((is_v4, form.name, side, verdict));
                    scene = Scene::new();
                    joined = scene.splice(is_v4);
                }
            }
        }
        ping(&joined.0, &joined.1);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_pair_goes_back_for_whatever_the_stack_takes() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    for is_v4 in [true, false] {
        for form in forms(is_v4).iter().filter(|form| form.fate == Fate::Taken) {
            let joined = scene.splice(is_v4);
            let frame = in_frame(&next(&scene, &joined, 0), form.of);
            assert_eq!(scene.feed(0, &frame), DROP, "{}", form.name);
            wait_for_return(&joined);
            ping(&joined.0, &joined.1);
        }
    }
}
