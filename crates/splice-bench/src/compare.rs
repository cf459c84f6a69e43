//! `splice-bench compare`: everybody on everything, in interleaved rounds, with intervals.

mod claim;
mod question;
mod tally;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};

use self::question::{Extents, Question};
use self::tally::Tally;
use crate::cli;
use crate::contestant::Contestant;
use crate::cpus::Placement;
use crate::entrant::{Absent, Entrant, chosen};
use crate::output::Output;
use crate::progress::Progress;
use crate::results::{
    self, Machine, Missing, Program, Results, Run, Schema, Sysctl, command_line, started,
};
use crate::settings;
use crate::site::{Site, require_open_files};
use crate::statistics::{CONFIDENCE, DRAWS};
use crate::usage::{self, Usage};
use crate::versions;
use crate::workload::transfer;

/// Files that this process has open besides the two ends of every pair.
const OTHER_FILES: u64 = 100;

/// Bytes each way whose hashes are compared before anything is timed.
const CHECKED_BYTES: u64 = 16 << 20;

/// What a shell makes of a program that a signal ended: this and the signal's number.
const SIGNALLED: i32 = 128;

/// What is known before anything is measured.
struct Head {
    machine: Machine,
    sysctls: Vec<Sysctl>,
    programs: Vec<Program>,
    started: SystemTime,
    clock: Instant,
}

/// What a run is to do.
struct Plan {
    contestants: Vec<Contestant>,
    questions: Vec<Question>,
    rounds: u32,
    extents: Extents,
}

impl Plan {
    fn of(arguments: &cli::Compare) -> Result<Self> {
        let all = Contestant::all();
        let contestants = chosen(all, &arguments.only, &arguments.except).map_err(Usage)?;
        let quick = arguments.quick;
        let asked = Question::all(quick);
        let wanted = &arguments.workload;
        let is =
            |question: &Question, name: &str| question.family() == name || question.id() == name;
        if let Some(unknown) = wanted
            .iter()
            .find(|name| !asked.iter().any(|question| is(question, name)))
        {
            let mut families: Vec<&str> = asked.iter().map(|question| question.family()).collect();
            families.dedup();
            let families = families.join(", ");
            bail!(Usage(format!(
                "--workload does not know {unknown:?}: choose from {families}"
            )));
        }
        let extents = Extents {
            // Ten and more of the scheduler's slices, and thousands of messages.
            warm_up: arguments.warm_up.map(Duration::from_millis),
            window: Duration::from_millis(if quick { 40 } else { 200 }),
            idle_pairs: if quick { 500 } else { 3_000 },
            // The kernel's memory is that of the whole machine: what else it did in one of three
            // is not the median.
            idle_times: if quick { 1 } else { 3 },
            slow_reader: Duration::from_secs(if quick { 1 } else { 5 }),
            per_second: arguments.rate,
        };
        let named =
            |question: &Question| wanted.is_empty() || wanted.iter().any(|name| is(question, name));
        Ok(Self {
            contestants,
            questions: asked.into_iter().filter(named).collect(),
            rounds: arguments.rounds.unwrap_or(if quick { 5 } else { 9 }),
            extents,
        })
    }

    /// How many measurements there are at most.
    fn steps(&self) -> u64 {
        let each = |question: &Question| u64::from(question.times(self.rounds, &self.extents));
        let questions: u64 = self.questions.iter().map(each).sum();
        questions * self.contestants.len() as u64
    }
}

/// Runs the comparison. Exit code 1 says that bytes were lost or a measurement failed.
pub(crate) fn run(arguments: &cli::Compare) -> Result<ExitCode> {
    usage::require_root("compare")?;
    let spliced = usage::program(&arguments.spliced()?)?;
    let plan = Plan::of(arguments)?;
    let output = arguments.output.as_deref().map(Output::create);
    let output = output.transpose()?;
    netlab::end_gracefully()?;
    let (started, clock) = (SystemTime::now(), Instant::now());
    // Before this thread is pinned.
    let machine = Machine::this()?;
    let site = Site::build(arguments.placement())?;
    let lab = &site.lab;
    let namespaces = [
        ("client", lab.client()),
        ("relay", lab.relay()),
        ("server", lab.server()),
    ];
    let head = Head {
        machine,
        sysctls: settings::read(&namespaces)?,
        programs: versions::of_programs(&spliced),
        started,
        clock,
    };
    require_open_files(2 * u64::from(plan.extents.idle_pairs) + OTHER_FILES)?;

    let measured = site.enter(|| measure(&site, &plan, &spliced))?;
    let results = told(head, arguments, &plan, &measured, output.as_ref())?;
    print!("{}", tally::tables(&results));
    if let Some(output) = &output {
        output.write(&results)?;
    }
    Ok(match netlab::interrupted() {
        Some(signal) => {
            eprintln!("splice-bench: interrupted; the results are incomplete and marked so");
            ExitCode::from((SIGNALLED + signal) as u8)
        }
        None if measured.sound() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

/// What came of a run.
struct Measured {
    contestants: Vec<Contestant>,
    absent: Vec<Absent>,
    /// Who did not bring every byte, and how.
    unsound: Vec<Absent>,
    tallies: Vec<Tally>,
}

impl Measured {
    fn sound(&self) -> bool {
        self.unsound.is_empty() && !self.tallies.iter().any(Tally::has_failed)
    }
}

fn measure(site: &Site, plan: &Plan, spliced: &Path) -> Result<Measured> {
    let (mut entrants, absent) = Entrant::start_all(site, spliced, &plan.contestants)?;
    let contestants: Vec<Contestant> = entrants.iter().map(|one| one.contestant).collect();
    let count = entrants.len();
    let mut measured = Measured {
        absent,
        unsound: Vec::new(),
        tallies: plan
            .questions
            .iter()
            .map(|&question| Tally::new(question, &contestants))
            .collect(),
        contestants,
    };
    let mut progress = Progress::new(plan.steps());
    progress.part("comparing hashes".into());
    for entrant in &mut entrants {
        if netlab::interrupted().is_some() {
            return Ok(measured);
        }
        let outcome = transfer::check(site, entrant.address(), CHECKED_BYTES).and_then(|same| {
            ensure!(same, "the bytes that arrived are not those sent");
            Ok(())
        });
        if let Err(error) = outcome {
            let why = format!("{error:#}");
            progress.say(&format!("{} FAILED: {why}", entrant.contestant.name()));
            measured.unsound.push((entrant.contestant, why));
            recover(site, spliced, entrant)?;
        }
    }
    for round in 0..plan.rounds as usize {
        progress.part(format!("round {} of {}", round + 1, plan.rounds));
        let tallies = measured.tallies.iter_mut();
        for (number, tally) in tallies
            .filter(|tally| tally.question.in_rounds())
            .enumerate()
        {
            for position in 0..count {
                // Whoever goes first may find the machine different: everybody does, in turn.
                let index = (round + number + position) % count;
                if netlab::interrupted().is_some() {
                    return Ok(measured);
                }
                one(
                    site,
                    plan,
                    spliced,
                    &mut entrants[index],
                    index,
                    tally,
                    &progress,
                )?;
            }
        }
    }
    for tally in &mut measured.tallies {
        if tally.question.in_rounds() {
            continue;
        }
        progress.part(tally.question.family().into());
        for turn in 0..tally.question.times(plan.rounds, &plan.extents) as usize {
            for position in 0..count {
                let index = (turn + position) % count;
                if netlab::interrupted().is_some() {
                    return Ok(measured);
                }
                if let Err(error) = entrants[index].restart(site, spliced) {
                    tally.fail(index, format!("{error:#}"));
                }
                one(
                    site,
                    plan,
                    spliced,
                    &mut entrants[index],
                    index,
                    tally,
                    &progress,
                )?;
            }
        }
    }
    Ok(measured)
}

/// Asks one contestant once. What failed is noted; the other measurements go on.
fn one(
    site: &Site,
    plan: &Plan,
    spliced: &Path,
    entrant: &mut Entrant,
    index: usize,
    tally: &mut Tally,
    progress: &Progress,
) -> Result<()> {
    let (question, name) = (tally.question, entrant.contestant.name());
    progress.step(&format!("{}, {name}", question.id()));
    let needs_more = question.connections(&plan.extents) > entrant.contestant.most_connections();
    if needs_more {
        let most = entrant.contestant.most_connections();
        tally.fail_quietly(
            index,
            format!("it is not asked for more than {most} connections"),
        );
    }
    let skipped = question.needs_relay() && entrant.relay.is_none();
    if !skipped && !tally.is_over_for(index) {
        match question.ask(site, entrant, &plan.extents) {
            Ok(answer) => tally.add(index, answer),
            Err(error) => {
                let why = format!("{error:#}");
                progress.say(&format!("{name} FAILED at {}: {why}", question.id()));
                tally.fail(index, why);
                recover(site, spliced, entrant)?;
            }
        }
    }
    progress.done();
    Ok(())
}

/// A failure may have left connections that nobody asked for, and the relay in the middle of one.
fn recover(site: &Site, spliced: &Path, entrant: &mut Entrant) -> Result<()> {
    entrant.restart(site, spliced)?;
    site.drain()
}

fn told(
    head: Head,
    arguments: &cli::Compare,
    plan: &Plan,
    measured: &Measured,
    output: Option<&Output>,
) -> Result<Results> {
    let missing = |(contestant, why): &Absent| Missing {
        what: contestant.name(),
        why: why.clone(),
    };
    let unsound = measured.unsound.iter().map(|(contestant, why)| Missing {
        what: contestant.name(),
        why: format!("FAILED to bring every byte: {why}"),
    });
    let tallies = measured.tallies.iter();
    let workloads = tallies.map(|tally| tally.workload(&plan.extents, output));
    Ok(Results {
        schema: Schema::current(),
        run: Run {
            title: "splice-bench compare".into(),
            command: command_line(),
            started: started(head.started),
            duration_seconds: head.clock.elapsed().as_secs_f64(),
            complete: netlab::interrupted().is_none(),
            placement: match arguments.placement() {
                Placement::Pinned(cpu) => results::Placement::OneCpu { cpu },
                Placement::Spread => results::Placement::Spread {
                    cpus: head.machine.cpus,
                },
            },
            spinner: true,
            rounds: plan.rounds,
            warm_up: match plan.extents.warm_up {
                Some(time) => format!("{} ms of the same load", time.as_millis()),
                None => "100 ms of the same load, and 0.2 ms for each connection".into(),
            } + "; for bulk, until 16 MiB have arrived",
            confidence: CONFIDENCE,
            resamples: DRAWS,
        },
        machine: head.machine,
        sysctls: head.sysctls,
        programs: head.programs,
        contestants: measured
            .contestants
            .iter()
            .map(|contestant| results::Contestant {
                name: contestant.name(),
                kind: contestant.kind(),
                how: contestant.how(),
            })
            .collect(),
        missing: measured.absent.iter().map(missing).chain(unsound).collect(),
        workloads: workloads.collect::<Result<_>>()?,
        checks: claim::checks(&measured.tallies),
        notes: Vec::new(),
    })
}
