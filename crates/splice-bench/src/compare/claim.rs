//! The checks of a comparison: is the bench right, and is `auto` as fast as the best peer.

use splice::EngineChoice;

use crate::contest::question::Question;
use crate::contest::tally::{Tally, with_interval};
use crate::contestant::{Company, Contestant};
use crate::peer::Haproxy;
use crate::results::{Better, Check, Interval, Outcome, Unit, Verdict};
use crate::router::Router;
use crate::statistics::{CONFIDENCE, Sample};

const AUTO: Contestant = Contestant::Spliced(EngineChoice::Auto);

/// Peers that `auto` has to match.
const PEERS: [Contestant; 5] = [
    Contestant::Haproxy(Haproxy::Copying),
    Contestant::Haproxy(Haproxy::SplicingAuto),
    Contestant::Haproxy(Haproxy::Splicing),
    Contestant::Haproxy(Haproxy::SplicingTuned),
    Contestant::Nginx,
];

/// The routers by SNI that `spliced` is held against.
const ROUTERS: [Contestant; 2] = [
    Contestant::BySni(Router::Haproxy),
    Contestant::BySni(Router::Nginx),
];

/// Every check that these answers allow.
pub(crate) fn checks(tallies: &[Tally]) -> Vec<Check> {
    let rounds = tallies.iter().filter(|tally| tally.question.in_rounds());
    let mut checks: Vec<Check> = same_path_twice(tallies).into_iter().collect();
    for tally in rounds {
        for (number, told) in tally.question.quantities().iter().enumerate() {
            // CPU time is published, but it is not speed.
            if told.unit != Unit::CpuSecondsPerGigabyte {
                checks.extend(as_fast_as_the_best(tally, number));
            }
        }
        checks.extend(routed_by_sni(tally));
        checks.extend(forwarded(tally));
    }
    checks
}

/// Whether the bench finds a difference where there is none, more often than its confidence admits.
fn same_path_twice(tallies: &[Tally]) -> Option<Check> {
    let (mut called, mut all) = (0, 0);
    for tally in tallies.iter().filter(|tally| tally.question.in_rounds()) {
        for (number, told) in tally.question.quantities().iter().enumerate() {
            let direct = tally.sample(Contestant::Direct, number);
            let again = tally.sample(Contestant::DirectAgain, number);
            let interval = direct
                .zip(again)
                .and_then(|(direct, again)| again.ratio_to(direct).interval());
            let Some(interval) = interval else {
                continue;
            };
            all += 1;
            if Verdict::of(Some(interval), told.better) != Verdict::NoDifference {
                called += 1;
            }
        }
    }
    let admitted = admitted(all);
    (all > 0).then(|| Check {
        title: "the direct path twice: differences called where there is none".into(),
        asked: format!("at most {admitted} of {all}"),
        reached: format!("{called} of {all}"),
        outcome: if called <= admitted {
            Outcome::Met
        } else {
            Outcome::Missed
        },
    })
}

/// How many of `all` intervals may miss the truth before that is no chance any more: what the
/// confidence leaves, and three standard errors.
fn admitted(all: u32) -> u32 {
    let (all, miss) = (f64::from(all), 1.0 - CONFIDENCE);
    (all * miss + 3.0 * (all * miss * CONFIDENCE).sqrt()).floor() as u32
}

/// `auto` next to the best of its peers.
fn as_fast_as_the_best(tally: &Tally, quantity: usize) -> Option<Check> {
    let told = &tally.question.quantities()[quantity];
    let auto = tally.sample(AUTO, quantity)?;
    let goodness = |contestant: &Contestant| {
        let median = tally.sample(*contestant, quantity)?.median()?;
        Some(match told.better {
            Better::Higher => median,
            Better::Lower => -median,
        })
    };
    let best = PEERS
        .into_iter()
        .filter_map(|peer| Some((goodness(&peer)?, peer)))
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, peer)| peer)?;
    let ratios = auto.ratio_to(tally.sample(best, quantity)?);
    let interval = ratios.interval();
    Some(Check {
        title: format!(
            "{} over {}: {}, {}",
            AUTO.name(),
            best.name(),
            tally.question.id(),
            told.id
        ),
        asked: match told.better {
            Better::Higher => "at least 1".into(),
            Better::Lower => "at most 1".into(),
        },
        reached: with_interval(ratios.median()?, interval),
        outcome: match Verdict::of(interval, told.better) {
            Verdict::Better => Outcome::Met,
            Verdict::Worse => Outcome::Missed,
            Verdict::NoDifference => Outcome::Undecided,
        },
    })
}

/// What routing by SNI may cost, as far as this question tells: messages next to the direct path, the
/// first byte next to HAProxy, short connections next to the better router.
fn routed_by_sni(tally: &Tally) -> Option<Check> {
    // The first quantity of each question is the one that is asked for.
    let sample = |contestant| tally.sample(contestant, 0);
    let spliced = Contestant::BySni(Router::Spliced);
    let (own, direct) = (sample(spliced)?, sample(Contestant::Direct)?);
    let (other, what, ratios, most) = match tally.question {
        Question::SniLatency => (
            Contestant::Direct,
            "latency-p50",
            own.ratio_to(direct),
            1.03,
        ),
        Question::SniFirstByte => {
            let haproxy = ROUTERS[0];
            (haproxy, "latency-p50", own.ratio_to(sample(haproxy)?), 1.0)
        }
        Question::SniShort { .. } => {
            let added = |of: &Sample| of.less(direct);
            let (_, best, theirs) = ROUTERS
                .into_iter()
                .filter_map(|peer| {
                    let added = added(sample(peer)?);
                    Some((added.median()?, peer, added))
                })
                .min_by(|one, other| one.0.total_cmp(&other.0))?;
            (
                best,
                "cpu added to direct",
                added(own).ratio_to(&theirs),
                0.9,
            )
        }
        _ => return None,
    };
    let interval = ratios.interval();
    let (spliced, other, id) = (spliced.name(), other.name(), tally.question.id());
    Some(Check {
        title: format!("{spliced} over {other}: {id}, {what}"),
        asked: format!("at most {most}"),
        reached: with_interval(ratios.median()?, interval),
        outcome: match interval {
            Some(interval) if interval.high <= most => Outcome::Met,
            Some(interval) if interval.low > most => Outcome::Missed,
            _ => Outcome::Undecided,
        },
    })
}

/// What forwarding from the SYN on may cost: short connections next to the direct path and to address translation,
/// young ones next to the direct path, and messages in a full table next to those in an empty one.
fn forwarded(tally: &Tally) -> Vec<Check> {
    let alone = Contestant::Forward(Company::Alone);
    let crowded = Contestant::Forward(Company::Crowded);
    match tally.question {
        Question::ShortConnections { .. } => [(Contestant::Direct, 0.97), (Contestant::Dnat, 1.0)]
            .into_iter()
            .filter_map(|(other, least)| within(tally, [alone, other], 0, least))
            .collect(),
        // The second quantity is the 99th percentile.
        Question::Young => within(tally, [alone, Contestant::Direct], 1, 1.1)
            .into_iter()
            .collect(),
        Question::PingPong { .. } => within(tally, [crowded, alone], 0, 1.05)
            .into_iter()
            .collect(),
        _ => Vec::new(),
    }
}

/// Whether the first one's ratio to the other is not worse than `bound`.
fn within(
    tally: &Tally,
    [own, other]: [Contestant; 2],
    quantity: usize,
    bound: f64,
) -> Option<Check> {
    let ratios = tally
        .sample(own, quantity)?
        .ratio_to(tally.sample(other, quantity)?);
    let told = &tally.question.quantities()[quantity];
    let interval = ratios.interval();
    let asked = match told.better {
        Better::Higher => format!("at least {bound}"),
        Better::Lower => format!("at most {bound}"),
    };
    let outcome = match (interval, told.better) {
        (Some(Interval { low, .. }), Better::Higher) if low >= bound => Outcome::Met,
        (Some(Interval { high, .. }), Better::Higher) if high < bound => Outcome::Missed,
        (Some(Interval { high, .. }), Better::Lower) if high <= bound => Outcome::Met,
        (Some(Interval { low, .. }), Better::Lower) if low > bound => Outcome::Missed,
        _ => Outcome::Undecided,
    };
    let (own, other) = (own.name(), other.name());
    Some(Check {
        title: format!("{own} over {other}: {}, {}", tally.question.id(), told.id),
        asked,
        reached: with_interval(ratios.median()?, interval),
        outcome,
    })
}

#[cfg(test)]
mod tests {
    use super::{AUTO, ROUTERS, admitted, checks};
    use crate::contest::question::Question;
    use crate::contest::tally::Tally;
    use crate::contestant::{Company, Contestant};
    use crate::peer::Haproxy;
    use crate::results::Outcome;
    use crate::router::Router;

    const SPLICED: Contestant = Contestant::BySni(Router::Spliced);
    const NGINX: Contestant = Contestant::Nginx;
    const HAPROXY: Contestant = Contestant::Haproxy(Haproxy::Copying);

    /// Five rounds of short connections.
    fn tally(rates: &[(Contestant, [f64; 5])]) -> Tally {
        let rates: Vec<_> = rates
            .iter()
            .map(|(who, values)| (*who, &values[..]))
            .collect();
        Tally::of(Question::ShortConnections { in_flight: 1 }, &rates)
    }

    #[test]
    fn auto_is_held_against_the_best_peer() {
        let haproxy = (HAPROXY, [100.0, 101.0, 99.0, 100.0, 100.0]);
        for (nginx, outcome) in [
            ([90.0, 91.0, 92.0, 90.0, 91.0], Outcome::Met),
            ([111.0, 112.0, 109.0, 111.0, 107.0], Outcome::Undecided),
            ([121.0, 122.0, 119.0, 121.0, 117.0], Outcome::Missed),
        ] {
            let auto = (AUTO, [110.0, 111.0, 110.0, 109.0, 110.0]);
            let checks = checks(&[tally(&[haproxy, (NGINX, nginx), auto])]);
            assert_eq!(checks.len(), 1);
            assert_eq!(checks[0].outcome, outcome, "{checks:?}");
        }
    }

    #[test]
    fn what_routing_adds_to_the_direct_path_is_held_against_the_better_router() {
        let [haproxy, nginx] = ROUTERS;
        for (own, outcome) in [
            ([186.0, 187.0, 188.0, 186.0, 187.0], Outcome::Met),
            ([189.0, 191.0, 190.0, 188.0, 192.0], Outcome::Undecided),
            ([195.0, 196.0, 194.0, 195.0, 197.0], Outcome::Missed),
        ] {
            let all: [(Contestant, &[f64]); 4] = [
                (Contestant::Direct, &[100.0; 5]),
                (SPLICED, &own),
                (haproxy, &[230.0; 5]),
                (nginx, &[200.0; 5]),
            ];
            let checks = checks(&[Tally::of(Question::SniShort { in_flight: 1 }, &all)]);
            assert_eq!(checks.len(), 1);
            assert_eq!(checks[0].outcome, outcome, "{checks:?}");
            assert!(checks[0].title.starts_with("spliced SNI over nginx SNI: "));
        }
    }

    #[test]
    fn forwarding_is_held_against_the_direct_path_and_address_translation() {
        let forward = Contestant::Forward(Company::Alone);
        let direct = (Contestant::Direct, [100.0; 5]);
        let dnat = (Contestant::Dnat, [98.0; 5]);
        for (own, outcomes) in [
            ([99.0, 98.5, 99.0, 99.5, 98.5], [Outcome::Met, Outcome::Met]),
            (
                [98.0, 96.0, 98.5, 97.5, 95.0],
                [Outcome::Undecided, Outcome::Undecided],
            ),
            ([90.0, 91.0, 92.0, 91.0, 90.0], [Outcome::Missed; 2]),
        ] {
            let checks = checks(&[tally(&[direct, dnat, (forward, own)])]);
            let found: Vec<_> = checks.iter().map(|check| check.outcome).collect();
            assert_eq!(found, outcomes, "{checks:?}");
        }
    }

    #[test]
    fn messages_in_a_full_table_are_held_against_those_in_an_empty_one() {
        let [alone, crowded] = [Company::Alone, Company::Crowded].map(Contestant::Forward);
        for (own, outcome) in [
            ([103.0; 5], Outcome::Met),
            ([103.0, 104.0, 105.0, 106.0, 107.0], Outcome::Undecided),
            ([107.0; 5], Outcome::Missed),
        ] {
            let question = Question::PingPong { bytes: 64 };
            let all: [(_, &[f64]); 2] = [(alone, &[100.0; 5]), (crowded, &own)];
            let checks = checks(&[Tally::of(question, &all)]);
            assert_eq!(checks.len(), 1);
            assert_eq!(checks[0].outcome, outcome, "{checks:?}");
        }
    }

    #[test]
    fn a_bench_that_finds_what_is_not_there_is_found_out() {
        let direct = (Contestant::Direct, [1.0, 1.1, 0.9, 1.0, 1.0]);
        for (again, outcome) in [
            ([1.01, 1.08, 0.91, 1.0, 1.0], Outcome::Met),
            ([1.05, 1.16, 0.95, 1.05, 1.05], Outcome::Missed),
        ] {
            let tallies: Vec<Tally> = (0..5)
                .map(|_| tally(&[direct, (Contestant::DirectAgain, again)]))
                .collect();
            assert_eq!(checks(&tallies)[0].outcome, outcome);
        }
        // 5 % of 40 are 2, and the standard error of that is 1.38.
        assert_eq!(admitted(40), 6);
    }
}
