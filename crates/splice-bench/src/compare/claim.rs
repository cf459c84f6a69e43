//! The checks of a comparison: is the bench right, and is `auto` as fast as the best peer.

use splice::EngineChoice;

use crate::contest::tally::{Tally, with_interval};
use crate::contestant::Contestant;
use crate::peer::Haproxy;
use crate::results::{Better, Check, Outcome, Unit, Verdict};
use crate::statistics::CONFIDENCE;

const AUTO: Contestant = Contestant::Spliced(EngineChoice::Auto);

/// Peers that `auto` has to match.
const PEERS: [Contestant; 5] = [
    Contestant::Haproxy(Haproxy::Copying),
    Contestant::Haproxy(Haproxy::SplicingAuto),
    Contestant::Haproxy(Haproxy::Splicing),
    Contestant::Haproxy(Haproxy::SplicingTuned),
    Contestant::Nginx,
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

#[cfg(test)]
mod tests {
    use super::{AUTO, admitted, checks};
    use crate::contest::question::Question;
    use crate::contest::tally::Tally;
    use crate::contestant::Contestant;
    use crate::peer::Haproxy;
    use crate::results::Outcome;

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
