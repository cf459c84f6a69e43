//! What the project asks of itself, held against what was measured.

use splice::{EngineChoice, EngineName};

use crate::contestant::Contestant;
use crate::measured::{Measured, of};
use crate::peer::Haproxy;
use crate::statistics::Sample;
use crate::table::Table;

const COPY: Contestant = Contestant::Spliced(EngineChoice::Only(EngineName::Copy));
const PIPE: Contestant = Contestant::Spliced(EngineChoice::Only(EngineName::Pipe));
const HAPROXY: Contestant = Contestant::Haproxy(Haproxy::Copying);
/// Both ways of telling HAProxy to splice: the one of its manual and the one that it cannot refuse.
const HAPROXY_SPLICE: [Contestant; 2] = [
    Contestant::Haproxy(Haproxy::SplicingAuto),
    Contestant::Haproxy(Haproxy::Splicing),
];

/// 1 KiB: what an idle pair may cost of the process's own memory.
const IDLE_PAIR_BYTES: f64 = 1024.0;

/// 16 MiB: what a relay may hold of a pair whose receivers do not read.
const HELD_BYTES: f64 = (16 << 20) as f64;

/// One of the samples of a contestant.
type Column = fn(&Measured) -> &Sample;

/// Which side of the asked value is the good one.
#[derive(Clone, Copy, Debug)]
enum Asked {
    AtMost(f64),
    AtLeast(f64),
}

impl Asked {
    fn is_met(self, reached: f64) -> bool {
        match self {
            Self::AtMost(limit) => reached <= limit,
            Self::AtLeast(limit) => reached >= limit,
        }
    }

    fn words(self, unit: Unit) -> String {
        match self {
            Self::AtMost(limit) => format!("<= {}", unit.words(limit)),
            Self::AtLeast(limit) => format!(">= {}", unit.words(limit)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Ratio,
    Bytes,
    Mebibytes,
}

impl Unit {
    fn words(self, value: f64) -> String {
        match self {
            Self::Ratio => format!("{value:.2}"),
            Self::Bytes => format!("{value:.0} B"),
            Self::Mebibytes => format!("{:.2} MiB", value / f64::from(1 << 20)),
        }
    }
}

/// The figures as a table. Ratios are medians over the rounds of the ratio within one round.
pub(crate) fn table(all: &[Measured]) -> Table {
    let mut table = Table::new(&["figure", "asked", "reached", ""]).align_left(1);
    let mut row = |figure: String, asked: Asked, unit: Unit, reached: Option<f64>| {
        let (reached, verdict) = match reached {
            None => ("-".into(), "not measured"),
            Some(value) if asked.is_met(value) => (unit.words(value), "met"),
            Some(value) => (unit.words(value), "MISSED"),
        };
        table.push(vec![figure, asked.words(unit), reached, verdict.into()]);
    };
    let ratio = |own, other, sample: Column| {
        let (own, other) = (of(all, own)?, of(all, other)?);
        sample(own).ratio_to(sample(other)).median()
    };

    for peer in [Contestant::Nginx, HAPROXY] {
        let reached = ratio(COPY, peer, |measured| &measured.p50_microseconds);
        let figure = format!("{}: one-way p50 over that of {}", COPY.name(), peer.name());
        row(figure, Asked::AtMost(1.0), Unit::Ratio, reached);
    }
    for peer in HAPROXY_SPLICE {
        let reached = ratio(PIPE, peer, |measured| &measured.gigabits_per_second);
        let figure = format!("{}: Gb/s over that of {}", PIPE.name(), peer.name());
        row(figure, Asked::AtLeast(1.4), Unit::Ratio, reached);
    }

    let short: [(&str, Column); 2] = [
        ("one at a time", |measured| {
            &measured.one_at_a_time_per_second
        }),
        ("8 in flight", |measured| &measured.in_flight_per_second),
    ];
    for (how, sample) in short {
        let reached = ratio(COPY, HAPROXY, sample);
        let figure = format!(
            "{}: short connections/s, {how}, over HAProxy's",
            COPY.name()
        );
        row(figure, Asked::AtLeast(1.0), Unit::Ratio, reached);
    }

    let ours = |measured: &&Measured| matches!(measured.contestant, Contestant::Spliced(_));
    for measured in all.iter().filter(ours) {
        let name = measured.contestant.name();
        let figure = format!("{name}: own memory of an idle pair");
        row(
            figure,
            Asked::AtMost(IDLE_PAIR_BYTES),
            Unit::Bytes,
            measured.idle_pair_bytes,
        );
    }
    for measured in all.iter().filter(ours) {
        let name = measured.contestant.name();
        let held = measured.held.map(|held| held.total_bytes() as f64);
        let figure = format!("{name}: held of a pair that nobody reads");
        row(figure, Asked::AtMost(HELD_BYTES), Unit::Mebibytes, held);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{COPY, table};
    use crate::contestant::Contestant;
    use crate::measured::Measured;

    #[test]
    fn a_missed_figure_stands_out_and_a_missing_one_is_named() {
        let mut copy = Measured::nothing_of(COPY);
        copy.p50_microseconds = [20.0, 22.0, 21.0].into_iter().collect();
        copy.idle_pair_bytes = Some(100.0);
        let mut nginx = Measured::nothing_of(Contestant::Nginx);
        nginx.p50_microseconds = [10.0, 11.0, 10.5].into_iter().collect();
        let text = table(&[copy, nginx]).to_string();
        let line = |part: &str| {
            text.lines()
                .find(|line| line.contains(part))
                .expect("a row")
        };
        let missed = line("p50 over that of nginx");
        assert!(
            missed.contains(" 2.00 ") && missed.ends_with(" MISSED"),
            "{text}"
        );
        assert!(
            line("p50 over that of HAProxy").ends_with(" not measured"),
            "{text}"
        );
        assert!(line("idle pair").ends_with(" met"), "{text}");
    }
}
