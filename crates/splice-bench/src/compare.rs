//! `splice-bench compare`: the full comparison, in interleaved rounds, with confidence intervals.

mod claim;

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};

use crate::cli;
use crate::contest::question::{Extents, Question};
use crate::contest::{self, Outcome, Plan, tally};
use crate::contestant::Contestant;
use crate::cpus::Placement;
use crate::entrant::{Absent, chosen};
use crate::output::Output;
use crate::results::{
    self, Machine, Missing, Program, Results, Run, Schema, Sysctl, command_line, started,
};
use crate::settings;
use crate::site::{Site, require_open_files};
use crate::statistics::{CONFIDENCE, DRAWS};
use crate::usage::{self, Usage, interrupted_status};
use crate::versions;

/// Files that this process has open besides the two ends of every pair.
const OTHER_FILES: u64 = 100;

/// Bytes each way whose hashes are compared before anything is timed.
const HASHED_BYTES: u64 = 16 << 20;

/// Facts that are known before the first measurement.
struct Head {
    machine: Machine,
    sysctls: Vec<Sysctl>,
    programs: Vec<Program>,
    started: SystemTime,
    clock: Instant,
}

/// What a person's arguments ask for.
fn plan(arguments: &cli::Compare) -> Result<Plan> {
    let all = Contestant::all();
    let contestants = chosen(all, &arguments.only, &arguments.except).map_err(Usage)?;
    let quick = arguments.quick;
    let asked = Question::all(quick);
    let wanted = &arguments.workload;
    let is = |question: &Question, name: &str| question.family() == name || question.id() == name;
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
    let named =
        |question: &Question| wanted.is_empty() || wanted.iter().any(|name| is(question, name));
    Ok(Plan {
        contestants,
        questions: asked.into_iter().filter(named).collect(),
        rounds: arguments.rounds.unwrap_or(if quick { 5 } else { 9 }),
        extents: Extents {
            warm_up: arguments.warm_up.map(Duration::from_millis),
            per_second: arguments.rate,
            ..Extents::of(quick)
        },
        hashed_bytes: HASHED_BYTES,
    })
}

/// Runs the comparison. Exit code 1 says that bytes were lost or a measurement failed.
pub(crate) fn run(arguments: &cli::Compare) -> Result<ExitCode> {
    usage::require_root("compare")?;
    let spliced = usage::program(&arguments.spliced()?)?;
    let plan = plan(arguments)?;
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

    let measured = site.enter(|| contest::run(&site, &plan, &spliced))?;
    let results = told(head, arguments, &plan, &measured, output.as_ref())?;
    print!("{}", tally::tables(&results));
    if let Some(output) = &output {
        output.write(&results)?;
    }
    Ok(match netlab::interrupted() {
        Some(signal) => {
            eprintln!("splice-bench: interrupted; the results are incomplete and marked so");
            interrupted_status(signal)
        }
        None if measured.sound() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

fn told(
    head: Head,
    arguments: &cli::Compare,
    plan: &Plan,
    measured: &Outcome,
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
