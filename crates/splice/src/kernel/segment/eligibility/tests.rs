use super::*;
use crate::kernel::segment::sample::{COOKIES, DEVICES, pair, unseen_pair};

const PAST_FIREWALL: Asked = Asked {
    bypasses_firewall: true,
    peers: PeerNames { a: "A", b: "B" },
};

/// What stands in the way of a pair that is a sample but for `change`.
fn obstacle(change: impl FnOnce(&mut SegmentInspection)) -> Obstacle {
    let mut found = pair();
    change(&mut found);
    examine(&found, &COOKIES, Asked::default()).expect_err("an obstacle")
}

/// Why such a pair is refused, with this cause.
fn refusal(expected: Cause, change: impl FnOnce(&mut SegmentInspection)) -> String {
    match obstacle(change) {
        Obstacle::Refused(Refusal { cause, why }) if cause == expected => why.into_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn plain_tcp_connections_are_eligible() {
    assert_eq!(examine(&pair(), &COOKIES, Asked::default()), Ok(()));
}

#[test]
fn a_socket_that_no_translated_segment_can_stand_for_is_refused() {
    for (bit, cause, word) in [
        (has::SIGNED, Cause::Sockets, "signed"),
        (has::LAYERED, Cause::Sockets, "layer"),
        (has::WRAPPED, Cause::Network, "IPsec"),
        (has::MARKED, Cause::Sockets, "SO_MARK"),
        (has::CLASSED, Cause::Sockets, "IP_TOS"),
        (has::BOUND, Cause::Sockets, "VRF"),
        // Linux 6.18 knows accurate ECN and does not negotiate it (`net.ipv4.tcp_ecn` takes no 3).
        (has::COUNTS_ECN, Cause::Sockets, "accurate ECN"),
        (has::FILTERED, Cause::Filters, "control group"),
        (has::EXTENDED, Cause::Filters, "sock_ops"),
    ] {
        for (socket, peer) in [(0, "A "), (1, "B ")] {
            let why = refusal(cause, |found| found.socket[socket].flags |= bit);
            let whose = format!("the connection with {peer}");
            assert!(why.starts_with(&whose) && why.contains(word), "{why}");
        }
    }
}

#[test]
fn a_control_group_filter_is_no_obstacle_where_packet_filters_are_bypassed() {
    let mut found = pair();
    found.socket[0].flags |= has::FILTERED | has::EXTENDED;
    assert_eq!(examine(&found, &COOKIES, PAST_FIREWALL), Ok(()));
    found.socket[0].flags |= has::MARKED;
    assert!(matches!(
        examine(&found, &COOKIES, PAST_FIREWALL),
        Err(Obstacle::Refused(_))
    ));
}

#[test]
fn two_connections_that_differ_in_what_segments_carry_are_refused() {
    let why = refusal(Cause::Sockets, |found| {
        found.tuple[0].source[10..12].fill(0xff)
    });
    assert!(why.contains("IPv4") && why.contains("IPv6"), "{why}");
    let why = refusal(Cause::Network, |found| {
        found.socket[1].flags |= has::TIMESTAMPS
    });
    assert!(why.contains("timestamps"), "{why}");
}

#[test]
fn segments_that_do_not_fit_on_the_other_side_stay_with_the_sockets() {
    let why = refusal(Cause::Network, |found| {
        found.socket[0].announced_mss = 1_441
    });
    assert!(why.contains("1441") && why.contains("1440"), "{why}");
    // The announcement makes room for timestamps, which the socket does not count.
    let why = refusal(Cause::Network, |found| {
        for socket in &mut found.socket {
            socket.flags |= has::TIMESTAMPS;
            socket.announced_mss = 1_429;
        }
    });
    assert!(why.contains("1441"), "{why}");
}

#[test]
fn segments_that_do_not_fit_on_the_path_stay_with_the_sockets() {
    for (mtu, fits) in [(1_460, true), (1_459, false)] {
        for side in 0..2 {
            let mut found = pair();
            found.socket[side].path_mtu = mtu;
            match examine(&found, &COOKIES, Asked::default()) {
                Ok(()) => assert!(fits),
                Err(Obstacle::Refused(Refusal { cause, why })) => {
                    assert!(
                        !fits && cause == Cause::Network && why.contains("1459"),
                        "{why}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_window_too_small_for_the_steps_it_is_announced_in_is_refused() {
    let why = refusal(Cause::Network, |found| {
        found.socket[1].largest_window = 2_799
    });
    assert!(why.contains("2799"), "{why}");
    let why = refusal(Cause::Network, |found| {
        found.socket[0].own_scale = 14;
        found.socket[1].largest_window = 32_767;
    });
    assert!(why.contains("16384"), "{why}");
}

#[test]
fn a_socket_that_has_to_look_for_its_route_keeps_its_pair_for_the_moment() {
    let found = obstacle(|found| {
        found.socket[1].out_device = 0;
        found.socket[1].out_type = 0;
    });
    assert_eq!(found, Obstacle::Unrouted(Side::B));
}

#[test]
fn a_device_that_segments_cannot_be_sent_on_is_refused() {
    let why = refusal(Cause::Network, |found| found.socket[0].out_type = 65_534);
    assert!(why.contains("65534"), "{why}");
}

#[test]
fn a_pair_whose_segments_come_in_by_another_device_stays_with_its_sockets() {
    let why = refusal(Cause::Network, |found| found.socket[0].in_device = 9);
    assert!(why.contains("device 9"), "{why}");
}

#[test]
fn a_socket_in_the_place_of_one_that_is_gone_is_not_the_pairs() {
    let mut found = pair();
    found.socket[0].state = LISTEN;
    assert_eq!(
        examine(&found, &COOKIES, Asked::default()),
        Err(Obstacle::Ended)
    );
    let mut found = pair();
    found.socket[1].flags = 0;
    assert_eq!(
        examine(&found, &COOKIES, Asked::default()),
        Err(Obstacle::Ended)
    );
    let why = refusal(Cause::Sockets, |found| found.socket[1].cookie += 1);
    assert!(why.contains("network namespace"), "{why}");
}

#[test]
fn a_connection_is_seen_by_its_syn_or_by_a_segment_near_it() {
    assert!(was_seen(&pair(), 0, None, false));
    assert!(!was_seen(&pair(), 0, None, true));
    let found = unseen_pair();
    assert!(!was_seen(&found, 0, None, false));
    let near = NotedSegment {
        device: DEVICES[0],
        seq: found.socket[0].rcv_nxt,
        ack: found.socket[0].snd_nxt,
        hops: 64,
    };
    for only_noted in [false, true] {
        assert!(was_seen(&found, 0, Some(near), only_noted));
    }
    for foreign in [
        NotedSegment {
            device: DEVICES[1],
            ..near
        },
        NotedSegment {
            seq: near.seq.wrapping_add(NEAR),
            ..near
        },
        NotedSegment {
            ack: near.ack.wrapping_add(1),
            ..near
        },
    ] {
        assert!(!was_seen(&found, 0, Some(foreign), false), "{foreign:?}");
    }
}

#[test]
fn the_syn_of_an_earlier_connection_with_the_same_ports_does_not_count() {
    let mut found = pair();
    found.seen[0].seq = found.seen[0].seq.wrapping_sub(1);
    assert!(!was_seen(&found, 0, None, false));
}

#[test]
fn a_segment_on_its_last_hop_cannot_be_forwarded() {
    let mut found = pair();
    assert!(can_go_on(&found, 0, None));
    found.seen[0].hops = 1;
    assert!(!can_go_on(&found, 0, None));
    // The latest segment counts, not the SYN.
    let noted = NotedSegment {
        device: DEVICES[0],
        seq: 0,
        ack: 0,
        hops: 2,
    };
    assert!(can_go_on(&found, 0, Some(noted)));
}
