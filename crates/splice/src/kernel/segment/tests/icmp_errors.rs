//! ICMP errors about the segments of a pair: it goes back to its sockets for one that says that a segment on its way was
//! too long, and for no other.

use std::ops::Range;

use super::icmp_frame::IcmpError;
use super::icmp_scene::{FATAL, SMALL_MTU, SOFT, Scene, TOO_BIG, WINDOW};
use super::*;
use splice_bpf::clock::now_ns;
use splice_bpf::types::{segment_mark as mark, segment_state as state};

const NEXT: i32 = -1;
const DROP: i32 = 2;

/// A later connection may have the same addresses and ports.
#[test]
fn an_error_about_a_flow_that_is_over_goes_to_the_stack() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::pairs() {
        let kind = TOO_BIG[usize::from(!scene.is_v4)];
        let flow = scene.flow();
        let error = scene.error(0, kind, scene.on_its_way(0).start);
        for over in [state::FREE, state::TIME_WAIT, state::OVERLAP] {
            // Its owner has been silent for too long.
            flow.deadline_ns.store(1, Relaxed);
            flow.state.store(over, Relaxed);
            assert_eq!(scene.verdict(0, &error), NEXT, "{over}");
        }
        flow.state.store(state::SPLICED, Relaxed);
        assert_eq!(scene.verdict(0, &error), DROP);
        // It is held, unless user space has gone on with it already.
        assert_ne!(flow.state.load(Relaxed), state::SPLICED);
    }
}

/// Each socket then sends what its own path takes.
#[test]
fn a_pair_goes_back_for_a_segment_that_was_too_big() {
    if !available(Need::Root) {
        return;
    }
    for side in 0..2 {
        for scene in Scene::pairs() {
            let version = usize::from(!scene.is_v4);
            let flow = scene.flow();
            let Range { start, end } = scene.on_its_way(side);
            let others = SOFT[version].iter().chain(FATAL[version]);
            for kind in others.filter(|kind| **kind != TOO_BIG[version]) {
                assert_eq!(scene.verdict(side, &scene.error(side, *kind, start)), DROP);
            }
            let right = scene.error(side, TOO_BIG[version], start);
            // It was not.
            for mtu in [1500, u16::MAX] {
                let wrong = IcmpError {
                    mtu,
                    ..right.clone()
                };
                assert_eq!(scene.verdict(side, &wrong), DROP);
            }
            for seq in [start.wrapping_sub(1), end.wrapping_add(1)] {
                let wrong = scene.error(side, TOO_BIG[version], seq);
                assert_eq!(scene.verdict(side, &wrong), DROP);
            }
            assert_eq!(flow.state.load(Relaxed), state::SPLICED);
            // Nobody has sent what is said to be on its way.
            let near = &flow.side[side];
            let acked = near.acked.load(Relaxed) as u32;
            let marks = u64::from(mark::NOTED | mark::TAKEN_OVER);
            near.high_seq_and_marks
                .store(marks << u32::BITS | u64::from(acked), Relaxed);
            assert_eq!(
                scene.verdict(side, &scene.error(side, TOO_BIG[version], acked)),
                DROP
            );
            let (client, server, handle) = &scene.joined;
            netlab::until("user space has it", || {
                handle.engine().0 == EngineName::Copy
            });
            let why = handle.engine().1;
            assert!(why.contains("are too long for the path"), "{why}");
            ping(client, server);
            exchange(client, server, 1 << 20, seed());
            ended(handle);
        }
    }
}

/// What the relay's socket has sent before the takeover is the socket's affair.
#[test]
fn during_the_change_over_an_error_goes_to_whoever_has_sent_the_segment() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::pairs() {
        let kind = SOFT[usize::from(!scene.is_v4)][2];
        let flow = scene.flow();
        let deadline = now_ns() + 4 * PATIENCE.as_nanos() as u64;
        flow.deadline_ns.store(deadline, Relaxed);
        for side in 0..2 {
            let Range { start, end } = scene.on_its_way(side);
            let takeover_seq = start.wrapping_add(WINDOW / 2);
            let change_over = &scene.datapath.change_over(0).side[side];
            change_over.takeover_seq.store(takeover_seq, Relaxed);
            change_over.acknowledged_by_socket.store(start, Relaxed);
            flow.state.store(state::OVERLAP, Relaxed);
            let verdict_at = |seq| scene.verdict(side, &scene.error(side, kind, seq));
            for before in [start, takeover_seq.wrapping_sub(1)] {
                assert_eq!(verdict_at(before), NEXT);
            }
            assert_eq!(verdict_at(end.wrapping_add(1)), DROP);
            let is_narrow = || flow.side[side].marks() & mark::NARROW != 0;
            assert!(!is_narrow());
            for after in [takeover_seq, end] {
                assert_eq!(verdict_at(after), DROP);
                assert!(is_narrow());
                flow.side[side].take_mark(mark::NARROW);
            }
            // The socket was woken, and has acknowledged more.
            change_over.acknowledged_by_socket.store(end, Relaxed);
            assert_eq!(verdict_at(takeover_seq), NEXT);
            assert!(!is_narrow());
            assert_eq!(verdict_at(end), DROP);
            assert!(is_narrow());
            assert_eq!(flow.state.load(Relaxed), state::OVERLAP);
            // All of the stream goes by the socket.
            flow.side[side].take_mark(mark::TAKEN_OVER);
            for seq in [start, takeover_seq, end, end.wrapping_add(1)] {
                assert_eq!(verdict_at(seq), NEXT);
            }
            flow.side[side].add_marks(mark::TAKEN_OVER);
            flow.state.store(state::WATCH, Relaxed);
            flow.side[side].take_mark(mark::TAKEN_OVER);
            assert_eq!(verdict_at(end), NEXT);
            flow.side[side].add_marks(mark::TAKEN_OVER);
            flow.state.store(state::SPLICED, Relaxed);
        }
    }
}

/// The relay's device has got a smaller MTU.
#[test]
fn a_pair_goes_back_for_a_segment_that_is_too_long() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::pairs() {
        let (client, server, handle) = &scene.joined;
        ping(client, server);
        let set_mtu = format!("link set {} mtu {SMALL_MTU}", Lab::TO_SERVER);
        run(scene.lab.relay(), "ip", &set_mtu);
        let far = format!("link set {} mtu {SMALL_MTU}", Lab::TO_RELAY);
        run(scene.lab.server(), "ip", &far);
        exchange(client, server, 1 << 20, seed());
        let outcome = ended(handle);
        assert_eq!(outcome.engine, EngineName::Copy);
        let why = outcome.why_engine;
        assert!(
            why.contains("A's segments are too long for the path"),
            "{why}"
        );
    }
}
