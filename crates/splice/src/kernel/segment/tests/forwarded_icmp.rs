//! ICMP errors about the segments of a forwarded connection: those about a segment that is on its way go to its sender.

use std::ops::Range;

use super::frame::Frame;
use super::icmp_frame::{ETHERNET_BYTES, IcmpError, Read, header_bytes, read};
use super::icmp_scene::{
    ERROR_INTERVAL_TICKS, ERRORS_AT_ONCE, FATAL, SMALL_MTU, SOFT, Scene, TOO_BIG, WINDOW,
};
use super::*;
use splice_bpf::clock::now_ns;
use splice_bpf::types::{segment_reason as reason, segment_state as state};

const NEXT: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

const ACK: u8 = 16;

const UDP: u8 = 17;

/// Bytes of a segment that is too long.
const LONG: usize = 1400;
/// `LEAST_SERVER_MTU` in `bpf/segment/icmp.h`.
const LEAST_SERVER_MTU: u16 = 1280;

#[test]
fn an_error_goes_to_the_sender_of_what_it_is_about() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::forwarded() {
        let before = scene.counted(reason::ICMP_PASSED);
        let mut passed = 0;
        for side in 0..2 {
            let Range { start, end } = scene.on_its_way(side);
            for kind in SOFT[usize::from(!scene.is_v4)] {
                for seq in [start, start.wrapping_add(WINDOW / 2), end] {
                    scene.forget_errors();
                    let error = scene.error(side, *kind, seq);
                    let (verdict, became) = scene.feed(1 - side, &error.bytes());
                    assert_eq!(verdict, REDIRECT, "{error:?}");
                    let expected = scene.expected(side, &error, seq);
                    assert_eq!(read(&became, scene.is_v4), expected);
                    passed += 1;
                }
            }
        }
        assert_eq!(scene.counted(reason::ICMP_PASSED), before + passed);
    }
}

#[test]
fn an_error_about_what_is_not_on_its_way_goes_nowhere() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::forwarded() {
        for side in 0..2 {
            let Range { start, end } = scene.on_its_way(side);
            for beside in [1, 2, 1 << 16, 1 << 30] {
                for seq in [start.wrapping_sub(beside), end.wrapping_add(beside)] {
                    for kind in SOFT[usize::from(!scene.is_v4)] {
                        let error = scene.error(side, *kind, seq);
                        assert_eq!(scene.verdict(side, &error), DROP, "{error:?}");
                    }
                }
            }
        }
    }
}

/// Linux does not, but a peer might take such an error for the end (RFC 1122, 4.2.3.9).
#[test]
fn an_error_that_would_end_the_connection_goes_nowhere() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::forwarded() {
        for side in 0..2 {
            for kind in FATAL[usize::from(!scene.is_v4)] {
                let error = scene.error(side, *kind, scene.on_its_way(side).start);
                assert_eq!(scene.verdict(side, &error), DROP, "{error:?}");
            }
        }
    }
}

/// The stack judges what is not about a translated segment, and what is cut short.
#[test]
fn what_is_no_error_about_the_pair_is_left_to_the_stack() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::forwarded() {
        let kind = SOFT[usize::from(!scene.is_v4)][2];
        for side in 0..2 {
            let right = scene.error(side, kind, scene.on_its_way(side).start);
            let [from, to] = right.quoted;
            let next = |end: SocketAddr| SocketAddr::new(end.ip(), end.port() ^ 1);
            let mut wrong = vec![
                IcmpError {
                    quoted: [next(from), to],
                    ..right.clone()
                },
                IcmpError {
                    quoted: [from, next(to)],
                    ..right.clone()
                },
                IcmpError {
                    quoted: [to, from],
                    to: from.ip(),
                    ..right.clone()
                },
                IcmpError {
                    protocol: UDP,
                    ..right.clone()
                },
                IcmpError {
                    to: to.ip(),
                    ..right.clone()
                },
                IcmpError {
                    // An echo, and its answer
                    kind: if scene.is_v4 { (8, 0) } else { (128, 0) },
                    ..right.clone()
                },
                IcmpError {
                    kind: if scene.is_v4 { (0, 0) } else { (129, 0) },
                    ..right.clone()
                },
            ];
            // A redirect would be for a router, and a fragment's first 8 bytes are none of TCP's.
            if scene.is_v4 {
                wrong.push(IcmpError {
                    kind: (5, 1),
                    ..right.clone()
                });
                for fragment_offsets in [[1, 0], [0, 1], [0, 0x2000]] {
                    wrong.push(IcmpError {
                        fragment_offsets,
                        ..right.clone()
                    });
                }
            }
            for error in wrong {
                assert_eq!(scene.verdict(side, &error), NEXT, "{error:?}");
            }
            let whole = right.bytes();
            for length in ETHERNET_BYTES + header_bytes(from.ip())..whole.len() {
                let (verdict, became) = scene.feed(1 - side, &whole[..length]);
                assert_eq!(verdict, NEXT, "{length}");
                assert_eq!(became, whole[..length]);
            }
            assert_eq!(scene.verdict(side, &right), REDIRECT, "{right:?}");
        }
    }
}

/// A path has no more hops than a packet may take, whether the relay counts as one or not.
#[test]
fn an_error_spends_a_hop() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::forwarded() {
        let kind = SOFT[usize::from(!scene.is_v4)][0];
        let right = scene.error(0, kind, scene.on_its_way(0).start);
        for (hops, expected) in [(0, DROP), (1, DROP), (2, REDIRECT), (255, REDIRECT)] {
            let error = IcmpError {
                hops,
                ..right.clone()
            };
            assert_eq!(scene.verdict(0, &error), expected, "{hops}");
        }
    }
}

/// Whoever knows what is on its way cannot flood a peer by way of the relay. The other peer has a share of its own.
#[test]
fn a_peer_gets_few_errors_at_once() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::forwarded() {
        let kind = SOFT[usize::from(!scene.is_v4)][2];
        let errors = [0, 1].map(|side| {
            let start = scene.on_its_way(side).start;
            scene.error(side, kind, start).bytes()
        });
        let passed = |side: usize| scene.feed(1 - side, &errors[side]).0 == REDIRECT;
        scene.forget_errors();
        let began = (now_ns() >> 20) as u32;
        for _ in 0..ERRORS_AT_ONCE {
            assert!(passed(0));
        }
        let until = scene.datapath.cold(0).until[0].load(Relaxed);
        let share = (ERRORS_AT_ONCE * ERROR_INTERVAL_TICKS) as u32;
        assert!(until.wrapping_sub(began) >= share, "{until} - {began}");
        netlab::until("none is left", || {
            scene.use_up_errors(0, 0);
            !passed(0)
        });
        assert!(passed(1));
        netlab::until("an interval has passed", || passed(0));
        // What a former connection has left behind does not last.
        for stale in [1 << 20, 1 << 31, u32::MAX - (1 << 20)] {
            scene.use_up_errors(0, stale);
            assert!(passed(0), "{stale}");
        }
    }
}

/// A server uses a path MTU for all its connections to the relay.
#[test]
fn no_client_makes_a_servers_segments_tiny() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::forwarded() {
        for (side, mtu, expected) in [
            (0, 552, REDIRECT),
            (0, 0, REDIRECT),
            (1, 0, DROP),
            (1, 552, DROP),
            (1, LEAST_SERVER_MTU - 1, DROP),
            (1, LEAST_SERVER_MTU, REDIRECT),
        ] {
            let kind = TOO_BIG[usize::from(!scene.is_v4)];
            let error = IcmpError {
                mtu,
                ..scene.error(side, kind, scene.on_its_way(side).start)
            };
            assert_eq!(scene.verdict(side, &error), expected, "{side} {mtu}");
        }
    }
}

/// Routers quote as much as they can (RFC 1812, 4.3.2.3).
#[test]
fn an_error_may_quote_more() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::forwarded() {
        for quoted_more in [1, 12, 501] {
            let kind = TOO_BIG[usize::from(!scene.is_v4)];
            let seq = scene.on_its_way(0).start;
            let error = IcmpError {
                quoted_more,
                ..scene.error(0, kind, seq)
            };
            let bytes = error.bytes();
            let (verdict, became) = scene.feed(1, &bytes);
            assert_eq!(verdict, REDIRECT);
            assert_eq!(read(&became, scene.is_v4), scene.expected(0, &error, seq));
            assert_eq!(became.len(), bytes.len());
            let rest = bytes.len() - quoted_more..;
            assert_eq!(became[rest.clone()], bytes[rest]);
        }
    }
}

/// Errors about anything: none changes the pair, and those that go on are about what is on its way.
#[test]
fn random_errors_harm_nothing() {
    if !available(Need::Root) {
        return;
    }
    let mut random = Random::seeded(seed());
    for scene in Scene::forwarded() {
        let mut counted = [0; 2];
        for round in 0..rounds(1) * 10_000 {
            let side = round % 2;
            let Range { start, end } = scene.on_its_way(side);
            let little = random.below(3) as u32;
            let seq = match random.below(4) {
                0 => random.next() as u32,
                1 => start.wrapping_sub(1).wrapping_add(little),
                2 => end.wrapping_sub(1).wrapping_add(little),
                _ => start.wrapping_add(random.below(WINDOW.into()) as u32),
            };
            let kind = (random.below(16) as u8, random.below(16) as u8);
            let version = usize::from(!scene.is_v4);
            let mut error = scene.error(side, kind, seq);
            error.mtu = random.next() as u16;
            let mut bytes = error.bytes();
            let is_mangled = random.below(4) == 0;
            if is_mangled {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
                bytes.truncate(bytes.len() - random.below(3) as usize);
            }
            scene.forget_errors();
            let (verdict, became) = scene.feed(1 - side, &bytes);
            if is_mangled {
                assert!([NEXT, DROP, REDIRECT].contains(&verdict));
                continue;
            }
            let is_error = match scene.is_v4 {
                true => matches!(kind.0, 3 | 11 | 12),
                false => matches!(kind.0, 1..=4),
            };
            let is_known = seq.wrapping_sub(start) <= end.wrapping_sub(start);
            // Parameter problems have more codes.
            let is_fatal = FATAL[version].contains(&kind) || kind.0 == [12, 4][version];
            let is_too_big = if scene.is_v4 {
                kind == (3, 4)
            } else {
                kind.0 == 2
            };
            let is_too_small = is_too_big && side == 1 && error.mtu < LEAST_SERVER_MTU;
            let was_no_bigger = is_too_big && u32::from(error.mtu) >= scene.quoted_bytes();
            let is_plausible = !is_fatal && !is_too_small && !was_no_bigger;
            let expected = match (is_error, is_known && is_plausible) {
                (false, _) => NEXT,
                (true, false) => DROP,
                (true, true) => REDIRECT,
            };
            assert_eq!(verdict, expected, "{error:?}");
            counted[usize::from(is_known)] += 1;
            if verdict == REDIRECT {
                let expected = scene.expected(side, &error, seq);
                assert_eq!(read(&became, scene.is_v4), expected);
            }
        }
        assert!(counted.iter().all(|count| *count > 500), "{counted:?}");
        assert_eq!(scene.flow().state.load(Relaxed), state::SPLICED);
        assert!(scene.joined.2.outcome().is_none());
        for _ in 0..100 {
            ping(&scene.joined.0, &scene.joined.1);
        }
    }
}

/// What is too long for the device beyond comes back to its sender as an error with the device's MTU.
#[test]
fn a_segment_that_is_too_long_comes_back_as_an_error() {
    if !available(Need::Root) {
        return;
    }
    for scene in Scene::forwarded() {
        for (side, device) in [(0, Lab::TO_SERVER), (1, Lab::TO_CLIENT)] {
            let [peer, relay] = scene.ends(side);
            let near = &scene.flow().side[side];
            let seq = near.acked.load(Relaxed) as u32;
            let mut frame = Frame::new([peer, relay], [seq, near.high_ack.load(Relaxed)], ACK);
            let recent = near.recent_timestamp.load(Relaxed);
            frame.timestamps = (recent != 0).then_some([recent, 0]);
            frame.payload = vec![0x5a; LONG];
            let long = frame.bytes();
            assert_eq!(scene.feed(side, &long).0, REDIRECT);
            let before = scene.counted(reason::TOO_BIG);
            let set_mtu = |mtu: u32| {
                let change = format!("link set {device} mtu {mtu}");
                run(scene.lab.relay(), "ip", &change);
            };
            set_mtu(SMALL_MTU);
            let (verdict, became) = scene.feed(side, &long);
            assert_eq!(verdict, REDIRECT);
            let kind = if scene.is_v4 { (3, 4) } else { (2, 0) };
            let told = Read {
                outer: [relay.ip(), peer.ip()],
                kind,
                mtu: SMALL_MTU as u16,
                quoted: [peer, relay],
                seq,
            };
            assert_eq!(read(&became, scene.is_v4), told);
            assert_eq!(scene.counted(reason::TOO_BIG), before + 1);
            // A longer header than IP's and TCP's has no room either, and one that fits has.
            let room = SMALL_MTU as usize + ETHERNET_BYTES;
            for (bytes, fits) in [(room, true), (room + 1, false)] {
                frame.payload.truncate(LONG);
                let excess = long.len() - bytes;
                frame.payload.truncate(LONG - excess);
                let (verdict, became) = scene.feed(side, &frame.bytes());
                assert_eq!(verdict, REDIRECT);
                assert_eq!(became.len() == bytes, fits, "{bytes}");
                frame.payload.resize(LONG, 0x5a);
            }
            // Whoever does not know the place of what is on its way uses up no share.
            scene.forget_errors();
            let mut forged = Frame::new([peer, relay], [seq.wrapping_sub(1 << 30), 0], ACK);
            forged.payload = vec![0x5a; LONG];
            let forged = forged.bytes();
            for _ in 0..2 * ERRORS_AT_ONCE {
                assert_eq!(scene.feed(side, &forged).0, DROP);
            }
            assert_eq!(scene.datapath.cold(0).until[side].load(Relaxed), 0);
            let made = (0..3 * ERRORS_AT_ONCE).filter(|_| scene.feed(side, &long).0 == REDIRECT);
            let made = made.count();
            assert!(made >= ERRORS_AT_ONCE, "{made}");
            netlab::until("none is left", || {
                scene.use_up_errors(side, 0);
                scene.feed(side, &long).0 == DROP
            });
            set_mtu(1500);
            scene.forget_errors();
        }
    }
}
