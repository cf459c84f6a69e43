//! Data that comes in a form which no socket here gives it: a router loses the segments that it should pass on, and sends
//! others instead.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use netlab::{Need, available};
use splice_base::repair::timestamp;

use super::connection::Side;
use super::ip_forms::{DESTINATION, HOP_BY_HOP, ROUTING, behind, in_fragments, with_options};
use super::segment::Segment;
use super::stage::{Family, IN_ORDER, Stage};
use super::untranslated::expect_return;
use super::wire::Wire;
use crate::payload::Payload;

const SEGMENT_BYTES: usize = 1000;
const SEGMENTS: u64 = 8;
/// A multiple of 8.
const FRAGMENT_BYTES: usize = 304;
/// Between two rounds, like between retransmissions.
const PAUSE: Duration = Duration::from_millis(20);

/// All segments with data that a router is to pass on.
const LOSE: &str = "table inet lose {
    chain forward { type filter hook forward priority 0; meta length > 200 drop; }
}";

/// What becomes of a packet on its way; the number is another one for each packet.
type Carry = fn(&[u8], u16) -> Vec<Vec<u8>>;

const PADDING: [u8; 6] = [1, 4, 0, 0, 0, 0];

fn fragments(packet: &[u8], number: u16) -> Vec<Vec<u8>> {
    in_fragments(packet, FRAGMENT_BYTES, number)
}

/// The last one first.
fn fragments_backwards(packet: &[u8], number: u16) -> Vec<Vec<u8>> {
    let mut fragments = fragments(packet, number);
    fragments.reverse();
    fragments
}

/// The first one in the middle, and one of them twice.
fn fragments_in_disorder(packet: &[u8], number: u16) -> Vec<Vec<u8>> {
    let mut fragments = fragments(packet, number);
    fragments.swap(0, 1);
    fragments.insert(0, fragments[2].clone());
    fragments
}

fn fragments_with_options(packet: &[u8], number: u16) -> Vec<Vec<u8>> {
    // One that each fragment has: its first bit is set.
    const OPTION: [u8; 4] = [0x9e, 4, 0, 0];
    let fragments = fragments(packet, number).into_iter();
    fragments
        .map(|fragment| with_options(&fragment, &OPTION))
        .collect()
}

fn headers(packet: &[u8], _: u16) -> Vec<Vec<u8>> {
    vec![behind(
        packet,
        &[
            (HOP_BY_HOP, &PADDING),
            (DESTINATION, &PADDING),
            (ROUTING, &[0; 6]),
        ],
    )]
}

/// Before the header of a fragment, and in what is fragmented.
fn fragments_with_headers(packet: &[u8], number: u16) -> Vec<Vec<u8>> {
    let packet = behind(packet, &[(DESTINATION, &PADDING)]);
    let fragments = in_fragments(&packet, FRAGMENT_BYTES, number).into_iter();
    let headers: [(u8, &[u8]); 1] = [(HOP_BY_HOP, &PADDING)];
    fragments
        .map(|fragment| behind(&fragment, &headers))
        .collect()
}

fn a_route_recorded(packet: &[u8], _: u16) -> Vec<Vec<u8>> {
    vec![with_options(
        packet,
        &[7, 11, 8, 198, 18, 1, 2, 0, 0, 0, 0, 0],
    )]
}

/// `side` sends, and each of its segments comes in this form. Afterwards as they were.
fn arrives(stage: &Stage, wire: &Wire<'_>, side: Side, carry: Carry) {
    let connections = stage.connect(1);
    let [connection] = &connections[..] else {
        unreachable!("one was asked for");
    };
    connection.moves_data();
    // With this, all that `side` has sent is acknowledged. It sends none of it again, which would get lost.
    connection.moves_a_byte(side.other());
    let [from, to] = [side, side.other()].map(|side| connection.end(side));
    let router = match side {
        Side::Client => stage.lab().client(),
        Side::Server => stage.lab().server(),
    };
    let nft = |words: &[&str]| {
        let done = router
            .command("nft")
            .args(words)
            .output()
            .expect("nft runs");
        assert!(done.status.success(), "{done:?}");
    };
    let first = Segment::next_of(from);
    let payload = Payload::new(8);
    let bytes = SEGMENTS * SEGMENT_BYTES as u64;
    nft(&[LOSE]);
    let has_come = AtomicBool::new(false);
    thread::scope(|scope| {
        let received = scope.spawn(|| {
            to.expect(payload, 0, bytes);
            has_come.store(true, Relaxed);
        });
        from.send(payload, 0, bytes);
        let mut number = 0;
        while !has_come.load(Relaxed) && !received.is_finished() {
            for index in 0..SEGMENTS {
                let position = index * SEGMENT_BYTES as u64;
                let segment = Segment {
                    timestamp: Some(timestamp(from).expect("TCP_TIMESTAMP")),
                    payload: payload.piece(position, SEGMENT_BYTES),
                    ..first.clone().ahead(position as u32)
                };
                number += 1;
                for packet in carry(&segment.packet(), number) {
                    wire.send(&packet);
                }
            }
            thread::sleep(PAUSE);
        }
    });
    nft(&["delete", "table", "inet", "lose"]);
    connection.moves_data();
    connection.ends_in_order();
}

fn all_arrive(stage: &Stage, side: Side, forms: &[Carry], why: &str) {
    if !available(Need::Nft) {
        return;
    }
    let Some(wire) = Wire::beside(stage, side) else {
        return;
    };
    for carry in forms {
        arrives(stage, &wire, side, *carry);
    }
    stage.expect_ended(forms.len(), IN_ORDER);
    expect_return(stage, why);
}

fn data_in_fragments(stage: &Stage, side: Side) {
    const V4: [Carry; 4] = [
        fragments,
        fragments_backwards,
        fragments_in_disorder,
        fragments_with_options,
    ];
    const V6: [Carry; 4] = [
        fragments,
        fragments_backwards,
        fragments_in_disorder,
        fragments_with_headers,
    ];
    let forms = match stage.family() {
        Family::V4 => V4,
        Family::V6 => V6,
    };
    all_arrive(stage, side, &forms, "come in fragments");
}

fn data_behind_headers(stage: &Stage, side: Side) {
    let forms: Carry = match stage.family() {
        Family::V4 => a_route_recorded,
        Family::V6 => headers,
    };
    all_arrive(stage, side, &[forms], "have IP options");
}

fn data_of_the_client_in_fragments(stage: &Stage) {
    data_in_fragments(stage, Side::Client);
}

fn data_of_the_server_in_fragments(stage: &Stage) {
    data_in_fragments(stage, Side::Server);
}

fn data_of_the_client_behind_headers(stage: &Stage) {
    data_behind_headers(stage, Side::Client);
}

fn data_of_the_server_behind_headers(stage: &Stage) {
    data_behind_headers(stage, Side::Server);
}

with_each_engine!(data_of_the_client_in_fragments, routed);
with_each_engine!(data_of_the_server_in_fragments, routed);
with_each_engine!(data_of_the_client_behind_headers, routed);
with_each_engine!(data_of_the_server_behind_headers, routed);
