//! Change-overs at random places.

use super::*;

/// No receiver dropped a segment because it looked old, or lay beyond its window, but for what it
/// had already (a repetition can overtake what it repeats, and is reported). A socket that ran out of
/// memory takes its word back by itself (`tcp_prune_queue`), change-over or not.
fn assert_lost_nothing(before: &[(String, u64)], after: &[(String, u64)]) {
    let grown = |wanted: &str| -> u64 {
        let both = before.iter().zip(after);
        both.filter(|((name, _), _)| name == wanted)
            .map(|((_, before), (_, after))| after - before)
            .sum()
    };
    assert!(grown("PAWSEstab") <= grown("TCPDSACKRecv"));
    assert!(grown("BeyondWindow") == 0 || grown("PruneCalled") > 0);
}

fn hunt_across(v6: bool, bytes: usize, rounds: usize, stamps: bool) {
    let lab = Lab::new().expect("a lab");
    for namespace in [lab.client(), lab.relay(), lab.server()] {
        namespace
            .set_sysctl("net.ipv4.tcp_timestamps", if stamps { "1" } else { "0" })
            .expect("sysctl");
        namespace
            .set_sysctl("net.ipv4.tcp_congestion_control", "reno")
            .expect("sysctl");
    }
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let mut random = Random(seed());
    for round in 0..rounds {
        let base = std::env::var_os("SEGMENT_BASELINE").map_or(0, |_| bytes as u64 * 2);
        let place = base + random.next() % (bytes as u64 * 3 / 4);
        let spaces = [lab.client(), lab.relay(), lab.server()];
        let before = spaces.map(counters_in);
        let (outcome, forwarded, pause) = both_ways(
            connect_across(&lab, v6),
            &splicer,
            place,
            bytes,
            random.next(),
        );
        let after = spaces.map(counters_in);
        let changes = [0, 1, 2].map(|space: usize| changes(&before[space], &after[space]));
        let changes = changes.join(" | ");
        eprintln!(
            "{round}: place {place}, {outcome:?}, forwarded {forwarded}, pause {pause:?}; {changes}"
        );
        assert_lost_nothing(&before.concat(), &after.concat());
        assert_eq!(outcome.reason, Reason::EndOfStream);
        if base == 0 {
            assert_eq!(
                outcome.engine,
                EngineName::Segment,
                "{}",
                outcome.why_engine
            );
        }
        assert_eq!(outcome.moved.a_to_b, bytes as u64);
        assert_eq!(outcome.moved.b_to_a, bytes as u64);
    }
}

fn hunt(ip: &str, bytes: usize, rounds: usize, stamps: bool) {
    let namespace = Namespace::new("seg").expect("a namespace");
    namespace
        .set_sysctl("net.ipv4.tcp_timestamps", if stamps { "1" } else { "0" })
        .expect("sysctl");
    namespace
        .set_sysctl("net.ipv4.tcp_congestion_control", "reno")
        .expect("sysctl");
    namespace
        .enter(|| {
            let splicer = Splicer::new(1).expect("a splicer");
            let mut random = Random(seed());
            for round in 0..rounds {
                let most = std::env::var("SEGMENT_PLACE").ok().and_then(|text| text.parse().ok());
                let base = std::env::var_os("SEGMENT_BASELINE").map_or(0, |_| bytes as u64 * 2);
                let place = base + random.next() % most.unwrap_or(bytes as u64 * 3 / 4);
                let before = counters();
                let (outcome, forwarded, pause) =
                    both_ways(connect_here(ip), &splicer, place, bytes, random.next());
                let after = counters();
                let changes = changes(&before, &after);
                eprintln!("{round}: place {place}, {outcome:?}, forwarded {forwarded}, pause {pause:?}; {changes}");
                assert_lost_nothing(&before, &after);
                assert_eq!(outcome.reason, Reason::EndOfStream);
                if std::env::var_os("SEGMENT_BASELINE").is_none() {
                    assert_eq!(outcome.engine, EngineName::Segment, "{}", outcome.why_engine);
                }
                assert_eq!(outcome.moved.a_to_b, bytes as u64);
                assert_eq!(outcome.moved.b_to_a, bytes as u64);
            }
        })
        .expect("entered");
}

#[test]
fn change_overs_at_random_places_over_lo() {
    if available(Need::Root) {
        hunt("127.0.0.1:0", 64 << 20, rounds(2), true);
    }
}

#[test]
fn change_overs_at_random_places_over_lo_without_stamps() {
    if available(Need::Root) {
        hunt("127.0.0.1:0", 64 << 20, rounds(2), false);
    }
}

#[test]
fn change_overs_at_random_places_over_lo_v6() {
    if available(Need::Root) {
        hunt("[::1]:0", 64 << 20, rounds(2), true);
    }
}

#[test]
fn change_overs_at_random_places_over_veths() {
    if available(Need::Root) {
        hunt_across(false, 64 << 20, rounds(2), true);
    }
}

#[test]
fn change_overs_at_random_places_over_veths_without_stamps() {
    if available(Need::Root) {
        hunt_across(false, 64 << 20, rounds(2), false);
    }
}

#[test]
fn change_overs_at_random_places_over_veths_v6() {
    if available(Need::Root) {
        hunt_across(true, 64 << 20, rounds(2), true);
    }
}

/// A request and its response, over and over, while the pair changes over.
#[test]
fn a_conversation_hardly_notices() {
    const ROUND_TRIPS: usize = 2000;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    // The first pair has the program attached.
    let _first = spliced_across(&lab, &splicer);
    let mut random = Random(seed());
    let mut worst = Duration::ZERO;
    for _ in 0..rounds(5) {
        let before = counters_across(&lab);
        let joined = connect_across(&lab, false);
        let options = Options {
            promote_to_segment: true,
            promote_after_bytes: random.next() % (ROUND_TRIPS as u64 * 10),
            ..Options::default()
        };
        let Joined {
            client,
            server,
            a,
            b,
        } = joined;
        let handle = splicer.join(a, b, &options).expect("joined");
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("TCP_NODELAY");
        }
        let mut longest = Duration::ZERO;
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            ping(&client, &server);
            longest = longest.max(start.elapsed());
        }
        assert_eq!(
            handle.engine().0,
            EngineName::Segment,
            "{}",
            handle.engine().1
        );
        let changes = changes(&before, &counters_across(&lab));
        eprintln!("longest round trip {longest:?}; {changes}");
        worst = worst.max(longest);
    }
    eprintln!("worst {worst:?}");
}
