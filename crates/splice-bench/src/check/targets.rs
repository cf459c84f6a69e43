//! The targets that the project sets itself, held against what was measured.

use std::iter;

use splice::{EngineChoice, EngineName};

use crate::contest::question::{Extents, Question};
use crate::contest::{Outcome, Plan};
use crate::contestant::Contestant;
use crate::peer::Haproxy;
use crate::statistics::Sample;
use crate::table::Table;
use crate::workload::transfer::Ways;

const COPY: Contestant = Contestant::Spliced(EngineChoice::Only(EngineName::Copy));
const PIPE: Contestant = Contestant::Spliced(EngineChoice::Only(EngineName::Pipe));
const HAPROXY: Contestant = Contestant::Haproxy(Haproxy::Copying);
/// Both ways of telling HAProxy to splice: the one of its manual and the one that it cannot refuse.
const HAPROXY_SPLICE: [Contestant; 2] = [
    Contestant::Haproxy(Haproxy::SplicingAuto),
    Contestant::Haproxy(Haproxy::Splicing),
];

const PING_PONG: Question = Question::PingPong { bytes: 64 };
const BULK: Question = Question::Bulk(Ways::Both);
const ONE_AT_A_TIME: Question = Question::ShortConnections { in_flight: 1 };
const IN_FLIGHT: Question = Question::ShortConnections { in_flight: 8 };

/// Bytes each way whose hashes are compared before anything is timed.
const HASHED_BYTES: u64 = 16 << 20;

/// As many as a full comparison takes.
const ROUNDS: u32 = 9;

/// 1 KiB: what an idle pair may cost of the process's own memory.
const IDLE_PAIR_BYTES: f64 = 1024.0;

/// 16 MiB: what a relay may hold of a pair whose receivers do not read.
const HELD_BYTES: f64 = (16 << 20) as f64;

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

/// What the targets are measured with.
pub(crate) fn plan() -> Plan {
    let own = |one: &Contestant| matches!(one, Contestant::Spliced(_));
    let peers = [Contestant::Nginx, HAPROXY]
        .into_iter()
        .chain(HAPROXY_SPLICE);
    Plan {
        contestants: iter::once(Contestant::Direct)
            .chain(Contestant::all().into_iter().filter(own))
            .chain(peers)
            .collect(),
        questions: vec![
            PING_PONG,
            BULK,
            ONE_AT_A_TIME,
            IN_FLIGHT,
            Question::Idle,
            Question::StalledReaders,
        ],
        rounds: ROUNDS,
        extents: Extents {
            idle_times: 1,
            ..Extents::of(false)
        },
        hashed_bytes: HASHED_BYTES,
    }
}

/// The targets as a table. Ratios are medians over the rounds of the ratio within one round.
pub(crate) fn table(found: &Outcome) -> Table {
    let mut table = Table::new(&["target", "asked", "reached", ""]).align_left(1);
    let mut row = |target: String, asked: Asked, unit: Unit, reached: Option<f64>| {
        let (reached, verdict) = match reached {
            None => ("-".into(), "not measured"),
            Some(value) if asked.is_met(value) => (unit.words(value), "met"),
            Some(value) => (unit.words(value), "MISSED"),
        };
        table.push(vec![target, asked.words(unit), reached, verdict.into()]);
    };
    // The first quantity of each question is the one that is asked for.
    let ratio = |own, other, question| {
        let tally = found.tally(question)?;
        let (own, other) = (tally.sample(own, 0)?, tally.sample(other, 0)?);
        own.ratio_to(other).median()
    };
    for peer in [Contestant::Nginx, HAPROXY] {
        let target = format!("{}: one-way p50 over that of {}", COPY.name(), peer.name());
        let reached = ratio(COPY, peer, PING_PONG);
        row(target, Asked::AtMost(1.0), Unit::Ratio, reached);
    }
    for peer in HAPROXY_SPLICE {
        let target = format!("{}: Gb/s over that of {}", PIPE.name(), peer.name());
        let reached = ratio(PIPE, peer, BULK);
        row(target, Asked::AtLeast(1.4), Unit::Ratio, reached);
    }
    for (how, question) in [("one at a time", ONE_AT_A_TIME), ("8 in flight", IN_FLIGHT)] {
        let target = format!(
            "{}: short connections/s, {how}, over HAProxy's",
            COPY.name()
        );
        let reached = ratio(COPY, HAPROXY, question);
        row(target, Asked::AtLeast(1.0), Unit::Ratio, reached);
    }
    for (words, question, asked, unit) in [
        (
            "own memory of an idle pair",
            Question::Idle,
            Asked::AtMost(IDLE_PAIR_BYTES),
            Unit::Bytes,
        ),
        (
            "memory held of a pair that nobody reads",
            Question::StalledReaders,
            Asked::AtMost(HELD_BYTES),
            Unit::Mebibytes,
        ),
    ] {
        let own = |one: &&Contestant| matches!(one, Contestant::Spliced(_));
        for &contestant in found.contestants.iter().filter(own) {
            let sample = found
                .tally(question)
                .and_then(|tally| tally.sample(contestant, 0));
            let target = format!("{}: {words}", contestant.name());
            row(target, asked, unit, sample.and_then(Sample::median));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{COPY, PING_PONG, plan, table};
    use crate::contest::Outcome;
    use crate::contest::question::Question;
    use crate::contest::tally::Tally;
    use crate::contestant::Contestant;

    #[test]
    fn a_missed_target_stands_out_and_a_missing_one_is_named() {
        let own: (Contestant, &[f64]) = (COPY, &[20.0, 22.0, 21.0]);
        let nginx: (Contestant, &[f64]) = (Contestant::Nginx, &[10.0, 11.0, 10.5]);
        let found = Outcome {
            contestants: vec![COPY, Contestant::Nginx],
            absent: Vec::new(),
            unsound: Vec::new(),
            tallies: vec![
                Tally::of(PING_PONG, &[own, nginx]),
                Tally::of(Question::Idle, &[(COPY, &[100.0])]),
            ],
        };
        let text = table(&found).to_string();
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

    #[test]
    fn the_plan_measures_all_that_the_table_asks_for() {
        let plan = plan();
        for contestant in [COPY, super::PIPE, super::HAPROXY, Contestant::Nginx] {
            assert!(plan.contestants.contains(&contestant));
        }
        for question in [PING_PONG, super::BULK, super::IN_FLIGHT, Question::Idle] {
            assert!(plan.questions.contains(&question));
        }
    }
}
