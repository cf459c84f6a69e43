//! `splice-bench check`: whether the bench measures what it says.
//!
//! It is held against what is known: one path twice is the same, a relay that keeps a message for
//! 200 µs takes 200 µs longer, and two programs of others find the same figures. Each claim gets more
//! rounds until its interval is narrow enough to tell, up to a limit.

use std::fs::File;
use std::net::TcpStream;
use std::process::{ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netlab::{Lab, Process};

use crate::cli;
use crate::contestant::Contestant;
use crate::cpus::Placement;
use crate::relay::{Relay, Start};
use crate::results::Interval;
use crate::site::{PATIENCE, Site};
use crate::statistics::{FEWEST_ROUNDS, Sample};
use crate::table::Table;
use crate::usage::{self, Usage};
use crate::workload::ping_pong::Extent;
use crate::workload::transfer::Ways;
use crate::workload::{Window, ping_pong, short_connections, transfer};

/// How long one measurement counts.
const WINDOW: Duration = Duration::from_millis(200);

/// Rounds after which a claim is told from what there is.
const MOST_ROUNDS: usize = 31;

/// Bytes of a message: what sockperf is told as well.
const MESSAGE_BYTES: usize = 64;

/// What the delaying relay is told, and within what it has to come out: a CPU that has slept, or spun
/// for nobody, is some µs slower to go on than one that has not.
const DELAY: Duration = Duration::from_micros(200);
const DELAY_SLACK_MICROSECONDS: f64 = 5.0;

/// The part of all messages that is looked at for that.
const FASTEST: f64 = 0.1;

/// How far other programs may be off.
const OTHERS_SLACK: f64 = 0.05;

/// Ports of the other programs' servers, below those that are chosen by the kernel.
const SOCKPERF_PORT: u16 = 8_001;
const IPERF3_PORT: u16 = 8_002;

/// How often it is asked whether a server listens yet.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Something that has to be true of measurements.
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

/// A claim and what came out.
#[derive(Debug)]
struct Checked {
    what: &'static str,
    claim: Claim,
    sample: Sample,
    holds: bool,
}

/// Takes rounds until they tell whether `claim` holds. A round gets its number.
fn check(
    what: &'static str,
    claim: Claim,
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
            Answer::Open if until >= MOST_ROUNDS => break claim.last_answer(interval, median),
            // An odd number has a median that is one of the values.
            Answer::Open => until = (2 * until + 1).min(MOST_ROUNDS),
        }
    };
    Ok(Checked {
        what,
        claim,
        sample,
        holds,
    })
}

/// Checks everything. Exit code 1 says that something did not hold.
pub(crate) fn run(arguments: &cli::Check) -> Result<ExitCode> {
    usage::require_root("check")?;
    for (program, package) in [("sockperf", "sockperf"), ("iperf3", "iperf3")] {
        if netlab::program(program).is_none() {
            bail!(Usage(format!(
                "{program} is not installed, against which this bench is checked: apt install \
                 {package}"
            )));
        }
    }
    let site = Site::build(Placement::Pinned(arguments.cpu))?;
    let checked = site.enter(|| check_all(&site))?;
    let mut table = Table::new(&["checked", "asked", "found", "95 % between", "rounds", ""]);
    for one in &checked {
        let interval = one.sample.interval().map_or_else(String::new, |interval| {
            format!("{:.3} and {:.3}", interval.low, interval.high)
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
    Ok(if checked.iter().all(|one| one.holds) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn check_all(site: &Site) -> Result<Vec<Checked>> {
    let direct = Site::server();
    let one_way_at = |address, quantile| {
        let latencies = ping_pong::play(
            site,
            address,
            MESSAGE_BYTES,
            Extent::For(Window::of(WINDOW)),
        )?;
        anyhow::Ok(latencies.microseconds(quantile) / 2.0)
    };
    let one_way = |address| one_way_at(address, 0.5);
    let throughput = || {
        let flow = transfer::flow(site, direct, Ways::Up, WINDOW)?;
        anyhow::Ok(flow.gigabits_per_second())
    };
    let efficiency = || {
        let flow = transfer::flow(site, direct, Ways::Up, WINDOW)?;
        anyhow::Ok(flow.gigabits_per_cpu_second())
    };
    let short = || short_connections::rate(site, direct, 1, WINDOW);

    let delays = [Duration::ZERO, DELAY];
    let relays = [delaying(site, 0, delays[0])?, delaying(site, 1, delays[1])?];
    // Whoever sleeps for 200 µs may find the CPU taken by something else on a busy machine. That is
    // not the delay, and does not happen to the fastest.
    let delayed = |index: usize| one_way_at(relays[index].address(), FASTEST);
    let sockperf = Sockperf::start(site)?;
    let iperf3 = Iperf3::start(site)?;
    let near_one = Claim::Near(1.0, OTHERS_SLACK);
    Ok(vec![
        check(
            "direct twice: one-way latency, ratio",
            Claim::Is(1.0),
            |round| {
                in_turn(round, || one_way(direct), || one_way(direct))
                    .map(|[one, other]| one / other)
            },
        )?,
        check("direct twice: throughput, ratio", Claim::Is(1.0), |round| {
            in_turn(round, throughput, throughput).map(|[one, other]| one / other)
        })?,
        check(
            "direct twice: short connections, ratio",
            Claim::Is(1.0),
            |round| in_turn(round, short, short).map(|[one, other]| one / other),
        )?,
        check(
            "a relay that keeps each message for 200 µs, less one that does not: µs",
            Claim::Near(DELAY.as_micros() as f64, DELAY_SLACK_MICROSECONDS),
            |round| {
                in_turn(round, || delayed(1), || delayed(0)).map(|[with, without]| with - without)
            },
        )?,
        check("one-way latency over sockperf's", near_one, |round| {
            in_turn(round, || one_way(direct), || sockperf.one_way(site))
                .map(|[own, other]| own / other)
        })?,
        // On a CPU that they have to themselves, that is the throughput; what else runs on it takes
        // time from one and then from the other, but hardly makes them do less in theirs.
        check("throughput in CPU time over iperf3's", near_one, |round| {
            in_turn(round, efficiency, || iperf3.efficiency(site)).map(|[own, other]| own / other)
        })?,
    ])
}

/// Measures both, in another order every other round: whoever comes second may find the machine
/// different.
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
    match contestant.start(site, std::path::Path::new(""), index)? {
        Start::Running(relay) => Ok(relay),
        Start::Refused(why) => bail!("{}: {why}", contestant.name()),
    }
}

/// sockperf's server; it runs a client for each measurement.
#[derive(Debug)]
struct Sockperf {
    _server: Process,
}

impl Sockperf {
    fn start(site: &Site) -> Result<Self> {
        let mut command = site.lab.server().command("sockperf");
        command.args(["server", "--tcp", "-i", &Lab::SERVER_V4.to_string()]);
        command.args(["-p", &SOCKPERF_PORT.to_string()]);
        let server = serve(site, command, "sockperf", SOCKPERF_PORT)?;
        Ok(Self { _server: server })
    }

    /// The median one-way latency that it finds, in µs.
    fn one_way(&self, site: &Site) -> Result<f64> {
        let mut command = site.lab.client().command("sockperf");
        command.args(["ping-pong", "--tcp", "-i", &Lab::SERVER_V4.to_string()]);
        command.args(["-p", &SOCKPERF_PORT.to_string(), "-t", "1"]);
        command.args(["-m", &MESSAGE_BYTES.to_string()]);
        let said = said(command, "sockperf")?;
        median_of_sockperf(&said).with_context(|| format!("sockperf named no median: {said}"))
    }
}

/// Reads `---> percentile 50.000 =    3.800`, possibly between escape sequences for colours.
fn median_of_sockperf(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains("percentile 50.0"))?;
    let (_, value) = line.split_once('=')?;
    let digits = value
        .trim()
        .split(|letter: char| !letter.is_ascii_digit() && letter != '.');
    digits.into_iter().next()?.parse().ok()
}

/// iperf3's server; it runs a client for each measurement.
#[derive(Debug)]
struct Iperf3 {
    _server: Process,
}

impl Iperf3 {
    fn start(site: &Site) -> Result<Self> {
        let mut command = site.lab.server().command("iperf3");
        command.args(["--server", "--bind", &Lab::SERVER_V4.to_string()]);
        command.args(["--port", &IPERF3_PORT.to_string()]);
        let server = serve(site, command, "iperf3", IPERF3_PORT)?;
        Ok(Self { _server: server })
    }

    /// Gigabits that arrive in a second of CPU time of both ends.
    fn efficiency(&self, site: &Site) -> Result<f64> {
        let mut command = site.lab.client().command("iperf3");
        command.args(["--client", &Lab::SERVER_V4.to_string(), "--json"]);
        command.args(["--port", &IPERF3_PORT.to_string(), "--time", "1"]);
        // As much per system call as our own sender.
        command.args(["--length", "256K"]);
        let said = said(command, "iperf3")?;
        let json: serde_json::Value =
            serde_json::from_str(&said).context("iperf3 did not answer in JSON")?;
        gigabits_per_cpu_second(&json["end"]).with_context(|| format!("iperf3 left out: {said}"))
    }
}

/// The end of iperf3's report: what arrived, and how much of a CPU each side has taken meanwhile.
fn gigabits_per_cpu_second(end: &serde_json::Value) -> Option<f64> {
    let bits_per_second = end["sum_received"]["bits_per_second"].as_f64()?;
    let cpu = &end["cpu_utilization_percent"];
    let percent = cpu["host_total"].as_f64()? + cpu["remote_total"].as_f64()?;
    Some(bits_per_second / 1e9 / (percent / 100.0))
}

/// Starts a server and waits until it listens.
fn serve(
    site: &Site,
    mut command: std::process::Command,
    name: &str,
    port: u16,
) -> Result<Process> {
    let log = File::create(site.scratch.path().join(format!("{name}.log")))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let process = Process::spawn(&mut command)?;
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect_timeout(&(Lab::SERVER_V4, port).into(), PATIENCE).is_err() {
        ensure!(Instant::now() < deadline, "{name} does not listen");
        thread::sleep(ASK_EVERY);
    }
    Ok(process)
}

/// What a program prints that ends well.
fn said(mut command: std::process::Command, name: &str) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{name} failed: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{Claim, MOST_ROUNDS, check, gigabits_per_cpu_second, median_of_sockperf};
    use crate::random::Random;

    /// `middle` and at most `noise` to either side.
    fn noisy(middle: f64, noise: f64) -> impl FnMut(usize) -> anyhow::Result<f64> {
        let mut random = Random::new(5);
        move |_| Ok(middle + noise * (random.below(2_001) as f64 / 1_000.0 - 1.0))
    }

    fn holds(claim: Claim, round: impl FnMut(usize) -> anyhow::Result<f64>) -> bool {
        check("something", claim, round)
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
            let checked = check("something", Claim::Near(1.0, 0.05), noisy(1.0, noise));
            checked.expect("rounds do not fail").sample.values().len()
        };
        assert_eq!(rounds(0.01), 5);
        assert_eq!(rounds(0.5), MOST_ROUNDS);
    }

    #[test]
    fn cpu_time_is_found_in_what_iperf3_says() {
        let end = serde_json::json!({
            "sum_received": { "bits_per_second": 30e9 },
            "cpu_utilization_percent": { "host_total": 40.0, "remote_total": 20.0 },
        });
        let found = gigabits_per_cpu_second(&end).expect("all is there");
        assert!((found - 50.0).abs() < 1e-9, "{found}");
        assert_eq!(gigabits_per_cpu_second(&serde_json::json!({})), None);
    }

    #[test]
    fn the_median_is_found_in_what_sockperf_says() {
        let said = "sockperf: ---> <MAX> observation =  231.5\n\
                    sockperf: ---> percentile 50.000 =    3.812\u{1b}[0m\n";
        assert_eq!(median_of_sockperf(said), Some(3.812));
        assert_eq!(
            median_of_sockperf("sockperf: No messages were received"),
            None
        );
    }
}
