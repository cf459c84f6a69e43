//! The kernel and [`FrameReader`] find the same frames in the same stream.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Shutdown;

use proptest::prelude::*;
use splice::EngineName;
use splice::mesh::{
    Bounds, Code, Departure, Event, Fault, Field, FrameReader, Framing, Length, MemberCounters,
    Notice,
};

use crate::random::{Random, run_seed};
use crate::stage::{Client, Stage};

by_each_engine!(the_same_frames_are_found_as_by_the_reader,);

/// How many framings one run tries, each with so many streams.
const FRAMINGS: u64 = 16;
const STREAMS: u64 = 12;

/// The most frames of a stream before it is spoilt.
const MOST_FRAMES: u64 = 40;

/// Unknown destinations of which each gets a notice of its own (`MOST_NOTICES`).
const TOLD_APART: usize = 64;

/// A destination that is no member: it fits into each width.
const NOBODY: u64 = 251;

fn random_field(random: &mut Random) -> Field {
    let width_bytes = 1 + random.below(8) as u32;
    Field {
        width_bytes,
        little_endian: width_bytes > 1 && random.below(2) == 0,
        offset_bytes: random.below(30) as u32,
    }
}

fn random_framing(random: &mut Random, is_delimited: bool) -> Framing {
    loop {
        let length = Length {
            field: random_field(random),
            added_bytes: match random.below(3) {
                0 => None,
                1 => Some(0),
                _ => Some(random.below(60) as u32),
            },
        };
        let most_bytes = [100, 1000, 60_000][random.below(3) as usize];
        let destination = random_field(random);
        let framing = if is_delimited {
            Framing::delimited(b'\n', destination, most_bytes.min(1000))
        } else {
            Framing::new(length, destination, most_bytes)
        };
        if let Ok(framing) = framing {
            return framing;
        }
    }
}

/// Frames for `destinations`, of which some are spoilt and the last may be cut off.
fn random_stream(random: &mut Random, framing: &Framing, destinations: &[u64]) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..random.below(MOST_FRAMES) {
        let most = framing.most_bytes() as usize - framing.header_bytes() as usize;
        let bytes = random.size(most + 1) - 1;
        let mut body: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
        // A delimiter in the middle would be no frame.
        body.retain(|byte| Some(*byte) != framing.delimiter());
        let to = destinations[random.below(destinations.len() as u64) as usize];
        let Some(frame) = framing.frame(to, &body) else {
            continue;
        };
        stream.extend(frame);
    }
    if stream.is_empty() {
        return stream;
    }
    let at = |random: &mut Random, len: usize| random.below(len as u64) as usize;
    match random.below(4) {
        // Whole, or cut off.
        0 => {}
        1 => stream.truncate(at(random, stream.len())),
        // A byte that is wrong, which may be one of a length.
        2 => {
            let place = at(random, stream.len());
            stream[place] ^= 1 << random.below(8);
        }
        // Noise from some point on.
        _ => {
            let place = at(random, stream.len());
            stream[place..].fill_with(|| random.next() as u8);
        }
    }
    stream
}

/// Cuts a stream at random points: into single bytes, small pieces, or large ones.
fn pieces<'a>(random: &mut Random, mut stream: &'a [u8]) -> Vec<&'a [u8]> {
    let most = [1, 10, 1000, 100_000][random.below(4) as usize];
    // Thousands of segments of one byte show no more than hundreds.
    let most = most.max(stream.len() / 500);
    let mut pieces = Vec::new();
    while !stream.is_empty() {
        let (piece, rest) = stream.split_at(random.size(most).min(stream.len()));
        pieces.push(piece);
        stream = rest;
    }
    pieces
}

/// What a stream has to come to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expected {
    /// By destination that is a member.
    frames: BTreeMap<u64, Vec<Vec<u8>>>,
    /// By destination that is none, how many; destination 0 for several.
    unknown: BTreeMap<u64, u64>,
    fault: Option<Fault>,
    is_within_frame: bool,
}

fn read(framing: &Framing, members: &[u64], pieces: &[&[u8]]) -> Expected {
    let mut expected = Expected::default();
    let mut reader = FrameReader::new(*framing);
    for piece in pieces {
        let fed = reader.feed(piece, |frame| {
            let to = framing.destination_of(frame).expect("a whole frame");
            if members.contains(&to) {
                expected.frames.entry(to).or_default().push(frame.to_vec());
            } else {
                *expected.unknown.entry(to).or_default() += 1;
            }
        });
        expected.fault = fed.err();
    }
    expected.is_within_frame = reader.is_within_frame();
    expected
}

/// Sends a stream and compares what becomes of it.
fn compare(stage: &Stage, receivers: &mut [Client], random: &mut Random, totals: &mut [u64; 4]) {
    let mut sender = stage.member();
    let mut members: Vec<u64> = receivers.iter().map(|receiver| receiver.id).collect();
    let stream = random_stream(
        random,
        &stage.framing,
        &[members[0], members[1], members[0], NOBODY],
    );
    let pieces = pieces(random, &stream);
    // What a spoilt stream sends to its sender would come between its notices.
    members.push(sender.id);
    let expected = read(&stage.framing, &members, &pieces);
    sender.stream.set_nodelay(true).expect("set");
    for piece in &pieces {
        sender.stream.write_all(piece).expect("sent");
    }
    sender.stream.shutdown(Shutdown::Write).expect("shut down");

    for receiver in receivers.iter_mut() {
        for frame in expected.frames.get(&receiver.id).into_iter().flatten() {
            let came = receiver.frame().expect("a frame");
            assert!(came == *frame, "{} bytes came", came.len());
        }
    }
    let mut to_itself = Vec::new();
    let mut unknown = BTreeMap::<u64, u64>::new();
    let mut fault = None;
    while let Some(frame) = sender.frame() {
        match Notice::of_frame(&stage.framing, &frame) {
            None => to_itself.push(frame),
            Some(notice) => match notice.code {
                Code::Unknown => {
                    *unknown.entry(notice.destination).or_default() += u64::from(notice.frames);
                }
                Code::TooLong => fault = Some(Fault::TooLong(notice.destination)),
                Code::TooShort => fault = Some(Fault::TooShort(notice.destination)),
                code => panic!("{code:?}"),
            },
        }
    }
    let itself = expected.frames.get(&sender.id);
    assert_eq!(to_itself.len(), itself.map_or(0, Vec::len));
    assert!(itself.is_none_or(|frames| *frames == to_itself));
    if expected.unknown.len() <= TOLD_APART {
        assert_eq!(unknown, expected.unknown);
    }
    let sum = |counts: &BTreeMap<u64, u64>| counts.values().sum::<u64>();
    assert_eq!(sum(&unknown), sum(&expected.unknown));
    assert_eq!(fault, expected.fault);
    let (why, counters) = departure(stage, sender.id);
    let expected_why = match expected.fault {
        Some(Fault::TooLong(_)) => Departure::TooLong,
        Some(Fault::TooShort(_)) => Departure::TooShort,
        None if expected.is_within_frame => Departure::WithinFrame,
        None => Departure::EndOfStream,
    };
    assert_eq!(why, expected_why);
    let known: usize = expected.frames.values().map(Vec::len).sum();
    assert_eq!(counters.sent_frames, known as u64);
    assert_eq!(counters.unknown_frames, sum(&expected.unknown));
    totals[0] += known as u64;
    totals[1] += counters.unknown_frames;
    totals[2] += u64::from(fault.is_some());
    totals[3] += u64::from(expected.is_within_frame);
}

fn departure(stage: &Stage, id: u64) -> (Departure, MemberCounters) {
    loop {
        match stage.event() {
            Event::Left {
                member,
                why,
                counters,
            } => {
                assert_eq!(member, id);
                return (why, counters);
            }
            Event::Refused { sender, .. } => assert_eq!(sender, id),
            event => panic!("{event:?}"),
        }
    }
}

fn the_same_frames_are_found_as_by_the_reader(engine: EngineName) {
    println!("SPLICED_SEED={}", run_seed());
    let mut totals = [0; 4];
    for salt in 0..FRAMINGS {
        let mut random = Random::of_run(salt);
        let framing = random_framing(&mut random, salt % 4 == 0);
        println!("{salt}: {framing:?}");
        let bounds = Bounds {
            member_bytes: 2 << 20,
            ..Bounds::default()
        };
        let stage = Stage::new(engine, framing, bounds);
        let mut receivers = [stage.member(), stage.member()];
        for _ in 0..STREAMS {
            compare(&stage, &mut receivers, &mut random, &mut totals);
        }
    }
    let [known, unknown, faults, cut] = totals;
    println!("{known} frames delivered, {unknown} to nobody, {faults} faults, {cut} cut off");
    // Else the streams show too little.
    assert!(known > 500 && unknown > 100 && faults > 10 && cut > 10);
}

fn framings() -> impl Strategy<Value = Framing> {
    let seed_and_kind = (any::<u64>(), any::<bool>());
    seed_and_kind.prop_map(|(seed, kind)| random_framing(&mut Random::seeded(seed), kind))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Of any bytes, noise included, cut anywhere.
    #[test]
    fn a_reader_does_not_depend_on_the_cuts(framing in framings(), seed in any::<u64>()) {
        let mut random = Random::seeded(seed);
        let stream = random_stream(&mut random, &framing, &[1, 2, NOBODY]);
        let whole = read(&framing, &[1, 2], &[&stream]);
        prop_assert_eq!(&read(&framing, &[1, 2], &pieces(&mut random, &stream)), &whole);
        let bytes: Vec<&[u8]> = stream.chunks(1).take(5000).collect();
        if bytes.len() == stream.len() {
            prop_assert_eq!(&read(&framing, &[1, 2], &bytes), &whole);
        }
    }

    /// What comes out, one after the other, is what went in.
    #[test]
    fn a_reader_loses_and_invents_nothing(framing in framings(), seed in any::<u64>()) {
        let mut random = Random::seeded(seed);
        let stream = random_stream(&mut random, &framing, &[1, 2, NOBODY]);
        let mut reader = FrameReader::new(framing);
        let mut come = Vec::new();
        let mut fault = None;
        for piece in pieces(&mut random, &stream) {
            fault = reader.feed(piece, |frame| {
                assert_eq!(framing.length_of(frame), Ok(Some(frame.len())));
                come.extend_from_slice(frame);
            }).err();
        }
        prop_assert_eq!(&come[..], &stream[..come.len()]);
        let rest = &stream[come.len()..];
        match framing.length_of(rest) {
            Err(length) => prop_assert!(matches!(
                fault, Some(Fault::TooLong(said) | Fault::TooShort(said)) if said == length
            )),
            Ok(whole) => {
                prop_assert_eq!(fault, None);
                prop_assert!(whole.is_none_or(|whole| whole > rest.len()));
                prop_assert_eq!(reader.is_within_frame(), !rest.is_empty());
            }
        }
    }
}
