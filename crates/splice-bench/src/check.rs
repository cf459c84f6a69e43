//! `splice-bench check`: the bench itself, checked against known figures.
//!
//! The same path measured twice is the same, a relay that delays a message by 200 µs takes 200 µs
//! longer, and two other programs find the same figures. Each check takes more rounds until its interval
//! is narrow enough, up to a limit.

mod others;
mod targets;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::others::{Iperf3, Sockperf};
use crate::cli;
use crate::contest;
use crate::contestant::Contestant;
use crate::cpus::Placement;
use crate::relay::{Relay, Start};
use crate::site::{Site, require_open_files};
use crate::statistics::{FEWEST_ROUNDS, Interval, Sample};
use crate::table::Table;
use crate::usage::{self, Usage};
use crate::workload::transfer::Ways;
use crate::workload::{Window, ping_pong, short_connections, transfer};

/// How long one measurement counts.
const WINDOW: Duration = Duration::from_millis(200);

/// Bytes of a message, for sockperf as well.
const MESSAGE_BYTES: usize = 64;

/// The delay of the delaying relay, and the tolerance: a CPU that has slept or spun is some µs slower
/// to go on than one that has worked.
const DELAY: Duration = Duration::from_micros(200);
const DELAY_SLACK_MICROSECONDS: f64 = 5.0;

/// The part of all messages that is looked at for that.
const FASTEST: f64 = 0.1;

/// How far other programs may be off.
const OTHERS_SLACK: f64 = 0.05;

/// Files that this process has open besides the two ends of every idle pair.
const OTHER_FILES: u64 = 100;

/// What must be true of measurements.
#[derive(Clone, Copy, Debug)]
enum Claim {
    /// The interval contains this.
    Is(f64),
    /// The value lies so close to this.
    Near(f64, f64),
}

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    /// Not from so few rounds.
    Open,
}

impl Claim {
    fn answer(self, interval: Interval) -> Answer {
        let Interval { low, high } = interval;
        match self {
            // An interval misses the truth once in twenty times: more rounds tell.
            Self::Is(value) if (low..=high).contains(&value) => Answer::Yes,
            Self::Is(_) => Answer::Open,
            Self::Near(value, slack) => {
                let (least, most) = (value - slack, value + slack);
                if least <= low && high <= most {
                    Answer::Yes
                } else if high < least || most < low {
                    Answer::No
                } else {
                    Answer::Open
                }
            }
        }
    }

    /// When there are no more rounds.
    fn last_answer(self, interval: Interval, median: f64) -> bool {
        match self {
            Self::Is(_) => self.answer(interval) == Answer::Yes,
            Self::Near(value, slack) => (median - value).abs() <= slack,
        }
    }

    fn words(self) -> String {
        match self {
            Self::Is(value) => format!("{value} within the interval"),
            Self::Near(value, slack) => format!("{value} ± {slack}"),
        }
    }
}

/// A claim and its outcome.
#[derive(Debug)]
struct Checked {
    what: &'static str,
    claim: Claim,
    sample: Sample,
    holds: bool,
}

/// Takes rounds until `claim` is decided, at most `most_rounds`. A round gets its number.
fn check(
    what: &'static str,
    claim: Claim,
    most_rounds: usize,
    mut round: impl FnMut(usize) -> Result<f64>,
) -> Result<Checked> {
    let mut sample = Sample::default();
    let mut until = FEWEST_ROUNDS;
    let holds = loop {
        while sample.values().len() < until {
            let value = round(sample.values().len());
            sample.push(value.with_context(|| format!("{what} cannot be measured"))?);
        }
        let (Some(interval), Some(median)) = (sample.interval(), sample.median()) else {
            bail!("{until} rounds make no interval");
        };
        match claim.answer(interval) {
            Answer::Yes => break true,
            Answer::No => break false,
            Answer::Open if until >= most_rounds => break claim.last_answer(interval, median),
            // An odd number has a median that is one of the values.
            Answer::Open => until = (2 * until + 1).min(most_rounds),
        }
    };
    Ok(Checked {
        what,
        claim,
        sample,
        holds,
    })
}

/// Checks everything. Exit code 1 says that something did not hold, or that bytes were lost; a target
/// that was missed does not.
pub(crate) fn run(arguments: &cli::Check) -> Result<ExitCode> {
    usage::require_root("check")?;
    for program in ["sockperf", "iperf3"] {
        if netlab::program(program).is_none() {
            bail!(Usage(format!(
                "{program} is not installed, against which this bench is checked: apt install \
                 {program}"
            )));
        }
    }
    let spliced = arguments.spliced.as_deref().map(usage::program);
    let spliced = spliced.transpose()?;
    let site = Site::build(Placement::Pinned(arguments.cpu))?;
    let most_rounds = arguments.rounds as usize;
    let checked = site.enter(|| check_all(&site, most_rounds))?;
    let mut table = Table::new(&["check", "expected", "found", "95 % interval", "rounds", ""]);
    for one in &checked {
        let interval = one.sample.interval().map_or_else(String::new, |interval| {
            format!("{:.3} to {:.3}", interval.low, interval.high)
        });
        table.push(vec![
            one.what.into(),
            one.claim.words(),
            one.sample
                .median()
                .map_or_else(String::new, |median| format!("{median:.3}")),
            interval,
            one.sample.values().len().to_string(),
            if one.holds { "holds" } else { "FAILED" }.into(),
        ]);
    }
    print!("{table}");
    let mut sound = checked.iter().all(|one| one.holds);
    if let Some(spliced) = spliced {
        sound &= print_targets(&site, &spliced)?;
    }
    Ok(if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Measures `spliced` and what it is held against. Returns whether every byte arrived and no
/// measurement failed.
fn print_targets(site: &Site, spliced: &Path) -> Result<bool> {
    let plan = targets::plan();
    require_open_files(2 * u64::from(plan.extents.idle_pairs) + OTHER_FILES)?;
    let found = site.enter(|| contest::run(site, &plan, spliced))?;
    print!("\n{}", targets::table(&found));
    for (contestant, why) in &found.absent {
        println!("{} does not take part: {why}", contestant.name());
    }
    Ok(found.sound())
}

/// Measures something once.
type Measure<'a> = &'a dyn Fn() -> Result<f64>;

fn check_all(site: &Site, most_rounds: usize) -> Result<Vec<Checked>> {
    let direct = Site::server();
    let one_way_at = |address, quantile| {
        let latencies = ping_pong::play(site, address, MESSAGE_BYTES, Window::of(WINDOW))?;
        anyhow::Ok(latencies.microseconds(quantile) / 2.0)
    };
    let one_way = |address| one_way_at(address, 0.5);
    let flow = || transfer::flow(site, direct, Ways::Up, WINDOW, None);
    let throughput = || Ok(flow()?.gigabits_per_second());
    let efficiency = || Ok(flow()?.gigabits_per_cpu_second());
    let short = || short_connections::rate(site, direct, 1, WINDOW);

    let delays = [Duration::ZERO, DELAY];
    let relays = [delaying(site, 0, delays[0])?, delaying(site, 1, delays[1])?];
    // Whoever sleeps for 200 µs may find the CPU taken by something else on a busy machine. That is
    // not the delay, and does not happen to the fastest.
    let delayed = |index: usize| one_way_at(relays[index].address(), FASTEST);
    let sockperf = Sockperf::start(site)?;
    let iperf3 = Iperf3::start(site)?;
    let latency = || one_way(direct);
    let ratio = |what, claim, one: Measure<'_>, other: Measure<'_>| {
        check(what, claim, most_rounds, |round| {
            in_turn(round, one, other).map(|[one, other]| one / other)
        })
    };
    let twice = |what, measure| ratio(what, Claim::Is(1.0), measure, measure);
    let beside = |what, own, other| ratio(what, Claim::Near(1.0, OTHERS_SLACK), own, other);
    let delay = Claim::Near(DELAY.as_micros() as f64, DELAY_SLACK_MICROSECONDS);
    let what = "a relay that delays by 200 µs, less one that does not: µs";
    let (sockperf, iperf3) = (|| sockperf.one_way(site), || iperf3.efficiency(site));
    Ok(vec![
        twice("direct twice: one-way latency, ratio", &latency)?,
        twice("direct twice: throughput, ratio", &throughput)?,
        twice("direct twice: short connections, ratio", &short)?,
        check(what, delay, most_rounds, |round| {
            in_turn(round, || delayed(1), || delayed(0)).map(|[with, without]| with - without)
        })?,
        beside("one-way latency over sockperf's", &latency, &sockperf)?,
        // On a CPU that they have to themselves, that is the throughput; what else runs on it takes
        // time from one and then from the other, but hardly makes them do less in theirs.
        beside("throughput in CPU time over iperf3's", &efficiency, &iperf3)?,
    ])
}

/// Measures both, in alternating order: the second may find the machine different.
fn in_turn(
    round: usize,
    one: impl Fn() -> Result<f64>,
    other: impl Fn() -> Result<f64>,
) -> Result<[f64; 2]> {
    if round.is_multiple_of(2) {
        Ok([one()?, other()?])
    } else {
        let other = other()?;
        Ok([one()?, other])
    }
}

fn delaying(site: &Site, index: u16, delay: Duration) -> Result<Relay> {
    let contestant = Contestant::Delaying(delay);
    // It has no need of spliced.
    match contestant.start(site, Path::new(""), index)? {
        Some(Start::Running(relay)) => Ok(relay),
        None => bail!("{} started no process", contestant.name()),
        Some(Start::Refused(why)) => bail!("{}: {why}", contestant.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Claim, check};
    use crate::random::Random;

    const MOST_ROUNDS: usize = 31;

    /// `middle` and at most `noise` to either side.
    fn noisy(middle: f64, noise: f64) -> impl FnMut(usize) -> anyhow::Result<f64> {
        let mut random = Random::new(5);
        move |_| Ok(middle + noise * (random.below(2_001) as f64 / 1_000.0 - 1.0))
    }

    fn holds(claim: Claim, round: impl FnMut(usize) -> anyhow::Result<f64>) -> bool {
        check("something", claim, MOST_ROUNDS, round)
            .expect("rounds do not fail")
            .holds
    }

    #[test]
    fn what_is_wrong_is_found_however_noisy() {
        let delay = Claim::Near(200.0, 5.0);
        for noise in [0.1, 10.0] {
            assert!(holds(delay, noisy(200.0, noise)), "noise {noise}");
            assert!(!holds(delay, noisy(220.0, noise)), "noise {noise}");
            assert!(holds(Claim::Is(1.0), noisy(1.0, noise / 100.0)));
            assert!(!holds(Claim::Is(1.0), noisy(1.15, noise / 100.0)));
        }
    }

    #[test]
    fn noise_gets_more_rounds_and_quiet_does_not() {
        let rounds = |noise| {
            let checked = check(
                "something",
                Claim::Near(1.0, 0.05),
                MOST_ROUNDS,
                noisy(1.0, noise),
            );
            checked.expect("rounds do not fail").sample.values().len()
        };
        assert_eq!(rounds(0.01), 5);
        assert_eq!(rounds(0.5), MOST_ROUNDS);
    }
}
