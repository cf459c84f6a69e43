//! `splice-bench demo`: what spliced is good for, shown in less than a minute.

mod live;
mod verdict;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use splice::EngineChoice;

use self::verdict::Row;
use crate::cli;
use crate::contest::question::{Extents, Question};
use crate::contest::{self, Outcome, Plan};
use crate::contestant::Contestant;
use crate::cpus::Placement;
use crate::entrant::chosen;
use crate::peer::Haproxy;
use crate::results::number;
use crate::site::{PATIENCE, Site};
use crate::statistics::Sample;
use crate::table::Table;
use crate::usage::{self, Usage, interrupted_status};
use crate::workload::transfer::Ways;

const SPLICED: Contestant = Contestant::Spliced(EngineChoice::Auto);

/// The rows without `--all`. Of HAProxy's ways to relay this one has the highest throughput.
const CONTESTANTS: [Contestant; 5] = [
    Contestant::Direct,
    SPLICED,
    Contestant::Haproxy(Haproxy::SplicingTuned),
    Contestant::Nginx,
    Contestant::Socat,
];

const BULK: Question = Question::Bulk(Ways::Both);
/// Small enough for one segment, large enough for a request.
const PING_PONG: Question = Question::PingPong { bytes: 64 };

/// How long one measurement counts: long against the scheduler's slices of a few ms, short enough for
/// five contestants, two workloads and seven rounds in half a minute.
const WINDOW: Duration = Duration::from_millis(250);

/// Bytes each way whose hashes are compared before anything is timed.
const HASHED_BYTES: u64 = 4 << 20;

/// Runs the demo. Exit code 1 says that bytes were lost, a measurement failed, or the live connection
/// did not move into the kernel.
pub(crate) fn run(arguments: &cli::Demo) -> Result<ExitCode> {
    usage::require_root("the demo")?;
    let spliced = usage::program(&arguments.spliced)?;
    let all = if arguments.all || !arguments.only.is_empty() {
        Contestant::all()
    } else {
        CONTESTANTS.into()
    };
    let plan = Plan {
        contestants: chosen(all, &arguments.only, &[]).map_err(Usage)?,
        questions: vec![BULK, PING_PONG],
        rounds: arguments.rounds,
        extents: Extents {
            window: WINDOW,
            ..Extents::of(false)
        },
        hashed_bytes: HASHED_BYTES,
    };
    let begin = Instant::now();
    netlab::end_gracefully()?;
    let site = Site::build(Placement::Pinned(arguments.cpu))?;
    let found = site.enter(|| contest::run(&site, &plan, &spliced))?;
    if let Some(signal) = netlab::interrupted() {
        eprintln!("splice-bench: interrupted before there was anything to show");
        return Ok(interrupted_status(signal));
    }
    print(arguments, &site, &found);
    // It shows what the row of `auto` is about.
    if found.contestants.contains(&SPLICED) {
        let watched = site.enter(|| live::watch(&site, &splice::Options::default(), PATIENCE))?;
        print!("\n{}", live::told(&watched));
    }
    eprintln!("\nThis took {:.0} s.", begin.elapsed().as_secs_f64());
    Ok(if found.sound() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print(arguments: &cli::Demo, site: &Site, found: &Outcome) {
    let rows = rows(found);
    println!(
        "A client sends to a server through each of these. All of them share CPU {}, so every cycle \
         counts.\nMedian of {} interleaved rounds, and from the lowest to the highest; congestion \
         control {}.\np50 and p99 are one-way latencies of 64-byte messages; CPU time is that of the \
         whole machine.\n",
        arguments.cpu, arguments.rounds, site.congestion_control
    );
    println!("{}", table(&rows));
    for (contestant, why) in &found.absent {
        println!("{} does not take part: {why}", contestant.name());
    }
    for (contestant, why) in &found.unsound {
        println!("{} FAILED: {why}", contestant.name());
    }
    for (name, why) in found.tallies.iter().flat_map(|tally| tally.failures()) {
        println!("{name} FAILED: {why}");
    }
    if let Some(sentence) = verdict::sentence(&SPLICED.name(), &rows) {
        println!("{}", wrapped(&sentence));
    }
}

/// The four columns of everyone that took part.
fn rows(found: &Outcome) -> Vec<Row> {
    // Places among the quantities of the questions.
    let columns = [(BULK, 0), (PING_PONG, 0), (PING_PONG, 1), (BULK, 1)];
    let row = |&contestant: &Contestant| Row {
        name: contestant.name(),
        is_relay: !contestant.is_reference(),
        columns: columns.map(|(question, quantity)| {
            let tally = found.tally(question);
            let sample = tally.and_then(|tally| tally.sample(contestant, quantity));
            sample.cloned().unwrap_or_default()
        }),
    };
    found.contestants.iter().map(row).collect()
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["", "Gb/s", "p50 µs", "p99 µs", "CPU s/GB"]);
    for row in rows {
        let mut cells = vec![row.name.clone()];
        cells.extend(row.columns.iter().map(with_spread));
        table.push(cells);
    }
    table
}

/// `12.3 (11.9 to 12.8)`: the median, and what lies between the lowest and the highest round.
fn with_spread(sample: &Sample) -> String {
    match (sample.median(), sample.range()) {
        (Some(median), Some((low, high))) => {
            format!("{} ({} to {})", number(median), number(low), number(high))
        }
        _ => "-".into(),
    }
}

/// `text` in lines of a terminal.
fn wrapped(text: &str) -> String {
    const COLUMNS: usize = 96;
    let (mut out, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 {
            let fits = column + 1 + width <= COLUMNS;
            out.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        out.push_str(word);
        column += width;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Row, table, wrapped};
    use crate::statistics::Sample;

    #[test]
    fn a_long_sentence_is_wrapped_between_words() {
        let text = "word ".repeat(60);
        let lines = wrapped(text.trim());
        assert!(lines.lines().all(|line| line.len() <= 96), "{lines}");
        assert_eq!(lines.replace('\n', " "), text.trim());
    }

    #[test]
    fn the_table_shows_the_real_spread() {
        let sample = |values: &[f64]| Sample::from_iter(values.iter().copied());
        let row = Row {
            name: "direct".into(),
            is_relay: false,
            columns: [
                sample(&[30.0, 20.0, 40.0]),
                sample(&[4.0]),
                sample(&[]),
                sample(&[0.15, 0.149, 0.2]),
            ],
        };
        let text = table(&[row]).to_string();
        for cell in [
            "30.0 (20.0 to 40.0)",
            "4.00 (4.00 to 4.00)",
            " -  ",
            "0.150 (0.149 to 0.200)",
        ] {
            assert!(text.contains(cell), "no {cell:?} in\n{text}");
        }
    }
}
