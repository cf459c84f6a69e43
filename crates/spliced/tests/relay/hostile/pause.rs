//! How long the receiver of a stream in full flow waits while its pair goes back to its sockets, beside a copied stream that
//! meets with the same: at the median no more than a retransmission timeout longer.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Need, available};
use serde_json::Value;

use super::bad_network::nft;
use super::connection::{Connection, Side};
use super::path_mtu::{SMALL_MTU, WIDE_MTU, cable_beyond, cable_of_the_relay, narrow, set_mtu};
use super::path_mtu_time::forget_paths;
use super::site::Site;
use super::stage::{Family, IN_ORDER, Stage};
use super::times::{SLACK, TIMEOUT};
use super::untranslated::{fragment, unfragment};
use crate::payload::Payload;
use crate::peer::{End, Over};

/// On a stage, towards each side.
const STREAMS: usize = 10;

/// What the receiver takes at once, as far as the times of arrival are told apart.
const BLOCK_BYTES: u64 = 16 << 10;
/// Before the change.
const BEFORE: Duration = Duration::from_millis(100);
/// After it, the waits of its first half second count. Longer ones count as a whole.
const AFTER: Duration = Duration::from_millis(500);

/// Why a pair goes back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// None: how long the receiver waits anyway.
    Nothing,
    /// Nothing that is under way gets lost but by going back.
    Filters,
    Route,
    LinkBeyondARouter,
    LinkOfTheRelay,
    Fragments,
}

impl Change {
    fn make(self, stage: &Stage, connection: &Connection, side: Side) {
        match self {
            Self::Nothing => {}
            Self::Filters => {
                let rules = "table inet later { chain input { type filter hook input priority 0; meta l4proto tcp meta mark set 7; }; }";
                nft(stage.lab().relay().command("nft").arg(rules));
            }
            Self::Route => Site { stage, side }.use_route(&format!(" mtu {SMALL_MTU}")),
            Self::LinkBeyondARouter => narrow(cable_beyond(stage, side)),
            Self::LinkOfTheRelay => narrow(cable_of_the_relay(stage, side)),
            Self::Fragments => fragment(stage, side.other(), std::slice::from_ref(connection)),
        }
    }

    fn undo(self, stage: &Stage, side: Side) {
        match self {
            Self::Nothing => {}
            Self::Filters => {
                let delete = ["delete", "table", "inet", "later"];
                nft(stage.lab().relay().command("nft").args(delete));
            }
            Self::Route => Site { stage, side }.restore_route(),
            Self::LinkBeyondARouter => cable_beyond(stage, side)
                .into_iter()
                .for_each(|(namespace, device)| set_mtu(namespace, device, WIDE_MTU)),
            Self::LinkOfTheRelay => cable_of_the_relay(stage, side)
                .into_iter()
                .for_each(|(namespace, device)| set_mtu(namespace, device, WIDE_MTU)),
            Self::Fragments => unfragment(stage, side.other()),
        }
        forget_paths(stage);
    }
}

/// The longest wait of the receiver after the change. Both streams end.
fn longest_wait(connection: &Connection, side: Side, change: impl FnOnce() + Send) -> Duration {
    let (from, to) = (connection.end(side.other()), connection.end(side));
    let payload = Payload::new(6);
    let [has_changed, is_over] = [const { AtomicBool::new(false) }; 2];
    thread::scope(|scope| {
        let over = Over(&is_over);
        let sent = scope.spawn(|| {
            let mut sent = 0;
            while !is_over.load(Acquire) {
                from.send(payload, sent, BLOCK_BYTES);
                sent += BLOCK_BYTES;
            }
            from.end_stream();
            sent
        });
        let mut received = 0;
        let mut receive = || {
            let began = Instant::now();
            to.expect(payload, received, BLOCK_BYTES);
            received += BLOCK_BYTES;
            began.elapsed()
        };
        let begun = Instant::now();
        while begun.elapsed() < BEFORE {
            receive();
        }
        scope.spawn(|| {
            change();
            has_changed.store(true, Release);
        });
        let (mut longest, mut until) = (Duration::ZERO, None);
        while until.is_none_or(|until| Instant::now() < until) {
            longest = longest.max(receive());
            if until.is_none() && has_changed.load(Acquire) {
                until = Some(Instant::now() + AFTER);
            }
        }
        drop(over);
        let (rest, end) = to.read_to_end(payload, received);
        assert_eq!(
            (received + rest, end),
            (sent.join().expect("it goes on"), End::OfStream)
        );
        to.end_stream();
        from.expect_end();
        longest
    })
}

/// Those of some streams towards each side.
fn longest_waits(engine: &str, family: Family, change: Change) -> Vec<Duration> {
    let mut waits = Vec::new();
    for side in Side::BOTH {
        Stage::routed(engine, family, |stage| {
            for round in 1..=STREAMS {
                let connection = stage.connect(1).pop().expect("one");
                let make = || change.make(stage, &connection, side);
                waits.push(longest_wait(&connection, side, make));
                drop(connection);
                stage.expect_ended(round, IN_ORDER);
                change.undo(stage, side);
            }
            let is_back = |entry: &Value| entry["engine"] != "segment";
            let expected = change != Change::Nothing || !stage.splices();
            assert!(
                stage
                    .hop()
                    .entries()
                    .iter()
                    .all(|entry| is_back(entry) == expected)
            );
        });
    }
    waits.sort_unstable();
    waits
}

/// The share of them that waits no longer than that, in hundredths.
const SHARES: [usize; 3] = [50, 90, 100];

/// Of this share. There are no waits without the means.
fn longest_of(share: usize, waits: &[Duration]) -> Option<Duration> {
    let at = (waits.len() * share / 100).min(waits.len().checked_sub(1)?);
    waits.get(at).copied()
}

fn tell(family: Family, changes: &[Change]) {
    if !available(Need::Nft) {
        return;
    }
    let mut failed = Vec::new();
    for change in changes {
        let medians = ["copy", "auto"].map(|engine| {
            let waits = longest_waits(engine, family, *change);
            let told = SHARES.map(|share| {
                format!(
                    "{share} % {:.1?}",
                    longest_of(share, &waits).unwrap_or_default()
                )
            });
            eprintln!("{family:?} {change:?} {engine}: {}", told.join(", "));
            longest_of(50, &waits)
        });
        let [Some(copied), Some(spliced)] = medians else {
            return;
        };
        if spliced > copied * 3 / 2 + TIMEOUT + SLACK {
            failed.push(format!("{change:?}: copy {copied:.1?}, auto {spliced:.1?}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
#[ignore = "soak: takes figures"]
fn v4() {
    use Change::{Filters, Fragments, LinkBeyondARouter, LinkOfTheRelay, Nothing, Route};
    tell(
        Family::V4,
        &[
            Nothing,
            Filters,
            Route,
            LinkBeyondARouter,
            LinkOfTheRelay,
            Fragments,
        ],
    );
}

#[test]
#[ignore = "soak: takes figures"]
fn v6() {
    use Change::{Filters, LinkBeyondARouter, LinkOfTheRelay, Nothing, Route};
    tell(
        Family::V6,
        &[Nothing, Filters, Route, LinkBeyondARouter, LinkOfTheRelay],
    );
}
