//! What an experiment leaves behind for later: the results of one run.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::Result;

use super::arguments::Shared;
use crate::output::Output;
use crate::results::{
    self, Better, Contestant, Interval, Machine, Measured, Missing, Parameter, Placement, Quantity,
    Results, Run, Schema, Unit, Workload,
};
use crate::site::Site;
use crate::statistics::{CONFIDENCE, DRAWS, Sample};
use crate::usage::interrupted_status;
use crate::{settings, versions};

/// A run that has begun.
pub(crate) struct Record {
    machine: Machine,
    began: Instant,
    started: SystemTime,
}

/// What a run was about.
pub(crate) struct About<'a> {
    pub(crate) site: &'a Site,
    pub(crate) title: &'a str,
    pub(crate) cpu: usize,
    pub(crate) rounds: u32,
    pub(crate) warm_up: &'a str,
    /// The program that was measured, if one was.
    pub(crate) spliced: Option<&'a Path>,
    pub(crate) contestants: Vec<Contestant>,
    /// Who could not take part, and why.
    pub(crate) absent: Vec<Missing>,
    pub(crate) notes: Vec<String>,
}

/// Where `--output` wants the results, refused at once if it cannot be had.
pub(crate) fn output(shared: &Shared) -> Result<Option<Output>> {
    shared.output.as_deref().map(Output::create).transpose()
}

impl Record {
    /// From now on Ctrl-C ends the run with what it has. To be called before this thread is pinned:
    /// the machine is asked how many CPUs it has.
    pub(crate) fn begin() -> Result<Self> {
        netlab::end_gracefully()?;
        Ok(Self {
            machine: Machine::this()?,
            began: Instant::now(),
            started: SystemTime::now(),
        })
    }

    /// Writes everything into `output`, if there is one. The exit code says whether it was `sound`
    /// and came to its end.
    pub(crate) fn finish(
        self,
        output: Option<&Output>,
        about: About<'_>,
        workloads: Vec<Workload>,
        sound: bool,
    ) -> Result<ExitCode> {
        let seconds = self.began.elapsed().as_secs_f64();
        if let Some(output) = output {
            let lab = &about.site.lab;
            let namespaces = [
                ("client", lab.client()),
                ("relay", lab.relay()),
                ("server", lab.server()),
            ];
            output.write(&Results {
                schema: Schema::current(),
                run: Run {
                    title: about.title.into(),
                    command: results::command_line(),
                    started: results::started(self.started),
                    duration_seconds: seconds,
                    complete: netlab::interrupted().is_none(),
                    placement: Placement::OneCpu { cpu: about.cpu },
                    spinner: true,
                    rounds: about.rounds,
                    warm_up: about.warm_up.into(),
                    confidence: CONFIDENCE,
                    resamples: DRAWS,
                },
                machine: self.machine,
                sysctls: settings::read(&namespaces)?,
                programs: about.spliced.map(versions::of_programs).unwrap_or_default(),
                contestants: about.contestants,
                missing: about.absent,
                workloads,
                checks: Vec::new(),
                notes: about.notes,
            })?;
        }
        eprintln!("took {seconds:.0} s");
        Ok(match netlab::interrupted() {
            Some(signal) => {
                eprintln!("splice-bench: interrupted; the results are incomplete");
                interrupted_status(signal)
            }
            None if sound => ExitCode::SUCCESS,
            None => ExitCode::FAILURE,
        })
    }
}

/// What one failed at, for the results.
pub(crate) fn failed<'a>(
    name: &'a str,
    failures: &'a [String],
) -> impl Iterator<Item = Missing> + 'a {
    failures.iter().map(|why| missing(name, why))
}

/// Says who could not take part, and why.
pub(crate) fn print_absent(absent: &[Missing]) {
    for Missing { what, why } in absent {
        println!("{what}: {why}");
    }
}

/// Says who failed at what.
pub(crate) fn print_failed(name: &str, failures: &[String]) {
    for failure in failures {
        println!("{name} FAILED: {failure}");
    }
}

/// What is measured in which unit, and which way is good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a> {
    pub(crate) id: &'a str,
    pub(crate) title: &'a str,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
}

/// Everybody's sample of one quantity, with the ratio to that of `reference`.
pub(crate) fn quantity(told: Told<'_>, reference: &str, samples: &[(String, Sample)]) -> Quantity {
    let held_against = samples.iter().find(|(name, _)| name == reference);
    let one = |(name, sample): &(String, Sample)| {
        let reference = held_against
            .filter(|_| name != reference)
            .map(|(_, sample)| sample);
        Measured::of(name.clone(), sample, reference, told.better)
    };
    Quantity {
        id: told.id.into(),
        title: told.title.into(),
        unit: told.unit,
        better: told.better,
        reference: Some(reference.into()),
        measured: samples.iter().filter_map(one).collect(),
    }
}

pub(crate) fn parameter(name: &str, value: impl ToString) -> Parameter {
    Parameter {
        name: name.into(),
        value: value.to_string(),
    }
}

pub(crate) fn missing(what: &str, why: &str) -> Missing {
    Missing {
        what: what.into(),
        why: why.into(),
    }
}

/// ` (0.79, 0.77 to 0.82)`: a ratio, and where it can be trusted to lie.
pub(crate) fn in_brackets(ratio: &Sample) -> String {
    let Some(median) = ratio.median() else {
        return String::new();
    };
    match ratio.interval() {
        Some(Interval { low, high }) => format!(" ({median:.2}, {low:.2} to {high:.2})"),
        None => format!(" ({median:.2})"),
    }
}
