//! Segments that are not in the plain form: a spliced pair goes back to its sockets for those that the relay's sockets
//! would take, and for no others.

use splice_bpf::types::segment_state;

use super::connection::{Connection, Side};
use super::ip_forms::{Fate, Form, v4, v6, with_tcp_options};
use super::segment::Segment;
use super::stage::{Family, Stage};
use super::wire::Wire;
use crate::patience::until;

/// What is forged, and what the end sends itself.
const FORGED: u64 = 6;
const FORGED_BYTES: &[u8] = &FORGED.to_le_bytes();
const OWN: u64 = 7;

fn forms(family: Family) -> Vec<Form> {
    match family {
        Family::V4 => v4(),
        Family::V6 => v6(),
    }
}

fn spliced(stage: &Stage) -> usize {
    let states = stage.hop().states();
    let spliced = states
        .iter()
        .filter(|state| **state == segment_state::SPLICED);
    spliced.count()
}

/// Whether the relay takes data in this form: whether its sockets do, or whether a pair goes back for it. Then the end
/// sends its own.
fn takes(stage: &Stage, wire: &Wire<'_>, side: Side, form: &Form, connection: &Connection) -> bool {
    let [from, to] = [side, side.other()].map(|side| connection.end(side));
    let segment = Segment {
        payload: FORGED_BYTES,
        ..Segment::next_of(from)
    };
    let before = spliced(stage);
    wire.send(&(form.of)(&segment.packet()));
    from.write_number(OWN);
    let got = to.read_number();
    if !stage.splices() {
        return got == FORGED;
    }
    assert_eq!(got, OWN, "{}", form.name);
    spliced(stage) < before
}

/// The sockets are asked, by the engine `copy`.
fn a_pair_goes_back_for_what_its_sockets_would_take(stage: &Stage) {
    Stage::with("copy", stage.family(), |copying| {
        for side in Side::BOTH {
            let [Some(wire), Some(wire_of_copying)] =
                [stage, copying].map(|stage| Wire::beside(stage, side))
            else {
                return;
            };
            let forms = forms(stage.family());
            let [pairs, copied] = [stage, copying].map(|stage| stage.connect(forms.len()));
            let mut wrong = Vec::new();
            for ((form, pair), copied) in forms.iter().zip(&pairs).zip(&copied) {
                let goes_back = takes(stage, &wire, side, form, pair);
                let is_taken = takes(copying, &wire_of_copying, side, form, copied);
                let is_expected = match form.fate {
                    Fate::Taken => is_taken,
                    Fate::Discarded => !is_taken,
                    Fate::Either => true,
                };
                if goes_back != is_taken || !is_expected {
                    wrong.push((form.name, goes_back, is_taken));
                }
            }
            assert!(
                wrong.is_empty(),
                "{side:?}, goes back, is taken: {wrong:#?}"
            );
            for pair in &pairs {
                pair.moves_data();
                pair.ends_in_order();
            }
            drop((pairs, copied));
            until("all pairs have ended", || stage.hop().states().is_empty());
        }
    });
}

/// A receiver reads no further, and takes the segment.
fn tcp_options_that_make_no_sense_count_for_nothing(stage: &Stage) {
    const OPTIONS: [&[u8]; 4] = [
        &[254, 0, 0, 0],
        &[254, 1, 0, 0],
        &[1, 1, 1, 254],
        // A timestamp that is longer than what is left, in place of the right one.
        &[0, 0, 8, 40],
    ];
    for side in Side::BOTH {
        let Some(wire) = Wire::beside(stage, side) else {
            return;
        };
        let pairs = stage.connect(OPTIONS.len());
        for (options, pair) in OPTIONS.iter().zip(&pairs) {
            let [from, to] = [side, side.other()].map(|side| pair.end(side));
            let segment = Segment {
                payload: FORGED_BYTES,
                ..Segment::next_of(from)
            };
            let before = spliced(stage);
            wire.send(&with_tcp_options(&segment.packet(), options));
            assert_eq!(to.read_number(), FORGED, "{options:?}");
            assert_eq!(spliced(stage), before, "{options:?}");
            // The same bytes, so that the end is where its stream is.
            from.write_number(FORGED);
            pair.moves_data();
            pair.ends_in_order();
        }
        drop(pairs);
        until("all pairs have ended", || stage.hop().states().is_empty());
    }
}

macro_rules! with_each_engine_that_splices {
    ($case:ident) => {
        mod $case {
            use super::{Family, Stage};

            #[test]
            fn auto_v4() {
                Stage::with("auto", Family::V4, super::$case);
            }

            #[test]
            fn auto_v6() {
                Stage::with("auto", Family::V6, super::$case);
            }

            #[test]
            fn segment_v4() {
                Stage::with("segment", Family::V4, super::$case);
            }

            #[test]
            fn segment_v6() {
                Stage::with("segment", Family::V6, super::$case);
            }
        }
    };
}

with_each_engine_that_splices!(a_pair_goes_back_for_what_its_sockets_would_take);
with_each_engine!(tcp_options_that_make_no_sense_count_for_nothing);
