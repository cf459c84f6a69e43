use super::*;
use crate::kernel::segment::sample::{COOKIES, DEVICES, RECEIVED_BYTES, pair, unseen_pair};
use splice_bpf::types::SegmentSeen;

const NOTHING: [Stream; 2] = [Stream {
    in_flight_bytes: 0,
    has_ended: false,
}; 2];
const NOT_NOTED: [Option<NotedSegment>; 2] = [None; 2];
const MS: Duration = Duration::from_millis(1);

fn watching() -> ChangeOver {
    let mut change_over = ChangeOver::new(Asked::default());
    change_over.begin_watching(COOKIES);
    change_over
}

/// In Overlap, with both streams empty.
fn overlapping(found: &SegmentInspection) -> (ChangeOver, Translation) {
    let mut change_over = watching();
    let translation = Translation::between(found, [0, 0]);
    change_over.prepare_overlap(&translation);
    change_over.begin_overlap();
    (change_over, translation)
}

fn spliced(found: &SegmentInspection) -> ChangeOver {
    let (mut change_over, _) = overlapping(found);
    assert_eq!(change_over.splice(found), Progress::Spliced(SHORTEST_PAUSE));
    change_over
}

/// What watching comes to where it comes to an end.
fn outcome(found: &SegmentInspection, is_admitted: bool) -> Progress {
    let now = Instant::now();
    match watching().watch(found, NOTHING, NOT_NOTED, [false; 2], is_admitted, now) {
        Watched::Stays(progress) => progress,
        other => panic!("{other:?}"),
    }
}

#[test]
fn overlap_begins_once_segments_of_both_peers_were_seen() {
    let (change_over, now) = (watching(), Instant::now());
    let watched = change_over.watch(&pair(), NOTHING, NOT_NOTED, [false; 2], true, now);
    assert!(matches!(watched, Watched::Translatable(_)), "{watched:?}");
    let mut found = pair();
    found.seen[1] = SegmentSeen::default();
    let watched = change_over.watch(&found, NOTHING, NOT_NOTED, [false; 2], true, now);
    let Watched::Unseen { side, device, .. } = watched else {
        panic!("{watched:?}");
    };
    assert_eq!((side, device), (Side::B, DEVICES[1]));
}

#[test]
fn a_socket_without_a_route_looks_for_one_ever_more_rarely() {
    let (mut change_over, start) = (watching(), Instant::now());
    let mut found = unseen_pair();
    found.socket[1].out_device = 0;
    let watched = change_over.watch(&found, NOTHING, NOT_NOTED, [false; 2], true, start);
    assert!(matches!(watched, Watched::Unrouted(Side::B)), "{watched:?}");
    let looks = |seconds: &u64| change_over.begins_search(start + Duration::from_secs(*seconds));
    let looked: Vec<u64> = (0..=256).filter(looks).collect();
    assert_eq!(looked, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]);
}

#[test]
fn unseen_peers_are_probed_three_times_and_then_refused() {
    let (mut change_over, start) = (watching(), Instant::now());
    let found = unseen_pair();
    let (mut now, mut probes) = (start, Vec::new());
    let refused_after = loop {
        let watched = change_over.watch(&found, NOTHING, NOT_NOTED, [false; 2], true, now);
        let Watched::Unseen { is_probe_due, .. } = watched else {
            panic!("{watched:?}");
        };
        if is_probe_due {
            change_over.probed(now);
            probes.push(now - start);
        }
        match change_over.later_or(now, Cause::Filters.because("unseen")) {
            Progress::Copying(pause) => now += pause,
            refused => {
                assert_eq!(refused, Progress::Refused(Cause::Filters.because("unseen")));
                break now - start;
            }
        }
    };
    // Not at the first look: where bytes flow, a segment comes without a probe.
    assert_eq!(probes[0], SHORTEST_PAUSE);
    assert_eq!(probes.len(), PROBES as usize);
    for probes in probes.windows(2) {
        let apart = probes[1] - probes[0];
        assert!(apart > BETWEEN_PROBES, "{apart:?}");
        assert!(apart <= BETWEEN_PROBES + LONGEST_PAUSE, "{apart:?}");
    }
    let unanswered = refused_after - probes[2];
    assert!(unanswered > SEEN_WITHIN, "{unanswered:?}");
    assert!(unanswered <= SEEN_WITHIN + LONGEST_PAUSE, "{unanswered:?}");
}

#[test]
fn a_pair_that_changes_over_is_refused_no_more() {
    let mut now = Instant::now();
    let (mut change_over, _) = overlapping(&pair());
    for _ in 0..PROBES {
        change_over.probed(now);
    }
    now += 2 * SEEN_WITHIN;
    let progress = change_over.later_or(now, Cause::Engine.because("the kernel does not answer"));
    assert_eq!(progress, Progress::Copying(SHORTEST_PAUSE));
}

#[test]
fn a_pair_is_declined_when_a_stream_has_ended() {
    let mut found = pair();
    // TCP_CLOSE_WAIT
    found.socket[1].state = 8;
    assert_eq!(
        outcome(&found, true),
        Progress::Refused(Cause::State.because(ENDED_BEFORE))
    );
    let mut found = pair();
    found.socket[0].cookie += 1;
    assert_eq!(
        outcome(&found, true),
        Progress::Refused(Cause::State.because(ENDED_BEFORE))
    );
}

#[test]
fn a_pair_is_refused_when_its_last_hop_is_in_the_way() {
    let mut found = pair();
    found.seen[0].hops = 1;
    match outcome(&found, true) {
        Progress::Refused(Refusal { cause, why }) => {
            assert_eq!(cause, Cause::Network);
            assert!(why.contains("TTL of 1"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pair_is_declined_when_its_way_has_changed() {
    let declined = |progress: Progress| match progress {
        Progress::Refused(Refusal {
            cause: Cause::Network,
            why,
        }) => why,
        other => panic!("{other:?}"),
    };
    let why = declined(outcome(&pair(), false));
    assert!(why.contains("route has changed"), "{why}");
    let mut found = pair();
    found.socket[1].path_mtu = 1_300;
    let why = declined(outcome(&found, true));
    assert!(why.contains("takes 1300"), "{why}");
}

#[test]
fn each_pause_is_twice_the_one_before_up_to_the_longest() {
    let mut watching = watching();
    let (mut overlapping, _) = overlapping(&pair());
    for (change_over, longest) in [
        (&mut watching, LONGEST_PAUSE),
        (&mut overlapping, LONGEST_OVERLAP_PAUSE),
    ] {
        let mut expected = SHORTEST_PAUSE;
        for _ in 0..16 {
            assert_eq!(change_over.later(), Progress::Copying(expected));
            expected = (2 * expected).min(longest);
        }
    }
}

#[test]
fn looks_are_frequent_as_long_as_the_peers_acknowledge_more() {
    let mut found = pair();
    let (mut change_over, _) = overlapping(&found);
    change_over.keep_emptying(&found, LONGEST_OVERLAP_PAUSE);
    let stalled = change_over.keep_emptying(&found, LONGEST_OVERLAP_PAUSE);
    assert_eq!(stalled, Progress::Copying(2 * SHORTEST_PAUSE));
    found.socket[1].snd_una = found.socket[1].snd_una.wrapping_add(1);
    let moving = change_over.keep_emptying(&found, LONGEST_OVERLAP_PAUSE);
    assert_eq!(moving, Progress::Copying(SHORTEST_PAUSE));
}

#[test]
fn a_stream_is_empty_when_the_other_peer_has_acknowledged_all_of_it() {
    let found = pair();
    let (change_over, _) = overlapping(&found);
    let is_empty = |found: &SegmentInspection, stream| change_over.is_empty(found, stream, 0);
    assert!(is_empty(&found, Stream::default()));
    let in_flight = Stream {
        in_flight_bytes: 1,
        ..Stream::default()
    };
    assert!(!is_empty(&found, in_flight));
    let mut unread = found;
    unread.socket[0].rcv_nxt += 1;
    assert!(!is_empty(&unread, Stream::default()));
    let mut unacknowledged = found;
    unacknowledged.socket[1].snd_una = found.socket[1].snd_una.wrapping_sub(1);
    assert!(!is_empty(&unacknowledged, Stream::default()));
}

#[test]
fn a_stream_bypasses_the_sockets_once_it_has_been_empty_for_a_while() {
    let (mut found, start) = (pair(), Instant::now());
    let (mut change_over, _) = overlapping(&found);
    let mut takeover_seq = |found: &SegmentInspection, after: Duration| {
        change_over.takeover_seq_when_idle(found, Stream::default(), 0, start + after)
    };
    assert_eq!(takeover_seq(&found, Duration::ZERO), None);
    assert_eq!(takeover_seq(&found, IDLE), None);
    // One more byte goes through the sockets: the silence begins anew.
    let (near, far) = (0, 1);
    for seq in [
        &mut found.socket[near].copied_seq,
        &mut found.socket[near].rcv_nxt,
    ] {
        *seq = seq.wrapping_add(1);
    }
    for seq in [
        &mut found.socket[far].write_seq,
        &mut found.socket[far].snd_una,
    ] {
        *seq = seq.wrapping_add(1);
    }
    assert_eq!(takeover_seq(&found, IDLE + MS), None);
    assert_eq!(takeover_seq(&found, 2 * IDLE + MS), None);
    let end = found.socket[near].rcv_nxt;
    assert_eq!(takeover_seq(&found, 2 * IDLE + 2 * MS), Some(end));
}

#[test]
fn an_empty_stream_bypasses_the_sockets_at_once_unless_too_much_was_announced() {
    let mut found = pair();
    let (change_over, translation) = overlapping(&found);
    let takeover_seq = |found: &SegmentInspection, stream| {
        change_over.takeover_seq_at_once(&translation, found, stream, 0)
    };
    let end = found.socket[0].rcv_nxt;
    assert_eq!(takeover_seq(&found, Stream::default()), Some(end));
    let in_flight = Stream {
        in_flight_bytes: 1,
        ..Stream::default()
    };
    assert_eq!(takeover_seq(&found, in_flight), None);
    // More than a first window, and more than the other peer has room for.
    found.socket[0].rcv_wnd = FIRST_WINDOW_BYTES as u32;
    assert_eq!(takeover_seq(&found, Stream::default()), Some(end));
    found.socket[0].rcv_wnd += 1;
    assert_eq!(takeover_seq(&found, Stream::default()), None);
}

#[test]
fn a_late_segment_wakes_the_sockets() {
    let (mut found, now) = (pair(), Instant::now());
    let mut change_over = spliced(&found);
    found.socket[1].rcv_nxt += RECEIVED_BYTES;
    let is_over = true;
    let asleep = change_over.look_at_sleepers(&found, is_over, now);
    assert_eq!(asleep, Asleep::MaySend(LAST_ACK_WITHIN));
    let asleep = change_over.look_at_sleepers(&found, !is_over, now);
    assert_eq!(asleep, Asleep::Late);
    change_over.overlap_again();
    assert_eq!(change_over.phase(), Phase::Overlap);
    assert_eq!(change_over.later(), Progress::Copying(SHORTEST_PAUSE));
    // A socket that is gone is not woken.
    let mut change_over = spliced(&pair());
    found.socket[1].cookie += 1;
    let asleep = change_over.look_at_sleepers(&found, !is_over, now);
    assert_eq!(asleep, Asleep::MaySend(LAST_ACK_WITHIN));
}

#[test]
fn sleeping_sockets_are_silent_after_the_longest_delayed_acknowledgement() {
    let (found, first_look) = (pair(), Instant::now());
    let mut change_over = spliced(&found);
    for (after, expected) in [
        (Duration::ZERO, Asleep::MaySend(LAST_ACK_WITHIN)),
        (LAST_ACK_WITHIN - MS, Asleep::MaySend(MS)),
        (LAST_ACK_WITHIN, Asleep::Silent),
        (SLEEPING_PAUSE, Asleep::Silent),
    ] {
        let asleep = change_over.look_at_sleepers(&found, false, first_look + after);
        assert_eq!(asleep, expected, "{after:?}");
    }
    // The next sleep is counted from its own first look.
    change_over.overlap_again();
    change_over.splice(&found);
    let asleep = change_over.look_at_sleepers(&found, false, first_look + SLEEPING_PAUSE);
    assert_eq!(asleep, Asleep::MaySend(LAST_ACK_WITHIN));
}
