//! Ping-pong on several paths, told as sockperf tells it.

use anyhow::Result;

use super::record::{Told, failed, in_brackets, parameter, print_failed, quantity};
use crate::output::Output;
use crate::results::{self, Better, Distribution, Unit, Workload};
use crate::statistics::{Latencies, Sample};
use crate::table::Table;

/// What sockperf sends unless it is told otherwise.
pub(crate) const MESSAGE_BYTES: usize = 14;

/// The way one way is half of a round trip.
const ONE_WAY: f64 = 0.5;

/// The percentiles of the talk.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// What was measured on one path.
pub(crate) struct Path {
    pub(crate) name: String,
    round_trips: Latencies,
    /// Mean and [`QUANTILES`] of each round, one way, in µs.
    averages: Sample,
    quantiles: [Sample; QUANTILES.len()],
    pub(crate) failures: Vec<String>,
}

/// What an experiment is called.
pub(crate) struct About<'a> {
    pub(crate) id: &'a str,
    pub(crate) title: &'a str,
    pub(crate) description: &'a str,
    /// The path that the ratios are to.
    pub(crate) reference: &'a str,
}

/// The paths of an experiment.
pub(crate) struct Paths {
    pub(crate) all: Vec<Path>,
}

impl Path {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            round_trips: Latencies::new(),
            averages: Sample::default(),
            quantiles: Default::default(),
            failures: Vec::new(),
        }
    }

    /// Adds the round trips of a round.
    pub(crate) fn add(&mut self, round_trips: &Latencies) {
        self.averages
            .push(round_trips.histogram().mean() * ONE_WAY / 1e3);
        for (sample, (_, quantile)) in self.quantiles.iter_mut().zip(QUANTILES) {
            sample.push(round_trips.microseconds(quantile) * ONE_WAY);
        }
        self.round_trips.add(round_trips);
    }

    /// Keeps the reason of a round that failed; the others go on.
    pub(crate) fn note(&mut self, outcome: Result<()>) {
        if let Err(error) = outcome {
            eprintln!("  {} FAILED: {error:#}", self.name);
            self.failures.push(format!("{error:#}"));
        }
    }
}

impl Paths {
    pub(crate) fn new(names: &[impl AsRef<str>]) -> Self {
        Self {
            all: names.iter().map(|name| Path::new(name.as_ref())).collect(),
        }
    }

    /// Whether nothing failed.
    pub(crate) fn is_sound(&self) -> bool {
        self.all.iter().all(|path| path.failures.is_empty())
    }

    /// Prints a table with the ratio to `reference`, and what failed.
    pub(crate) fn print(&self, reference: &str) {
        let reference = self.all.iter().find(|path| path.name == reference);
        let mut table = Table::new(&[
            "path",
            "avg",
            "dev",
            "p50 (ratio)",
            "p99 (ratio)",
            "p99.9 (ratio)",
            "max",
            "count",
        ]);
        for path in self.measured() {
            let one_way = |nanoseconds: f64| format!("{:.2}", nanoseconds * ONE_WAY / 1e3);
            let histogram = path.round_trips.histogram();
            let mut row = vec![
                path.name.clone(),
                one_way(histogram.mean()),
                one_way(histogram.stdev()),
            ];
            for (index, (_, quantile)) in QUANTILES.into_iter().enumerate() {
                let all = path.round_trips.microseconds(quantile) * ONE_WAY;
                let ratio = reference
                    .map(|reference| path.quantiles[index].ratio_to(&reference.quantiles[index]))
                    .map_or_else(String::new, |ratio| in_brackets(&ratio));
                row.push(format!("{all:.2}{ratio}"));
            }
            row.push(one_way(histogram.max() as f64));
            row.push(histogram.len().to_string());
            table.push(row);
        }
        print!("{table}");
        for path in &self.all {
            print_failed(&path.name, &path.failures);
        }
    }

    /// The same for the results; histograms are saved in `output`.
    pub(crate) fn workload(&self, about: &About<'_>, output: Option<&Output>) -> Result<Workload> {
        let mut workload = Workload::new(about.id, about.title, about.description);
        workload.parameters = vec![parameter("message", format!("{MESSAGE_BYTES} B"))];
        let mut push = |id: &str, title: &str, of: &dyn Fn(&Path) -> Sample| {
            let samples = self.all.iter().map(|path| (path.name.clone(), of(path)));
            let samples: Vec<_> = samples.collect();
            let told = Told {
                id,
                title,
                unit: Unit::Microseconds,
                better: Better::Lower,
            };
            workload
                .quantities
                .push(quantity(told, about.reference, &samples));
        };
        push("latency-avg", "One-way latency, mean", &|path| {
            path.averages.clone()
        });
        for (index, (name, _)) in QUANTILES.into_iter().enumerate() {
            let id = format!("latency-{}", name.replace('.', "-"));
            push(&id, &format!("One-way latency, {name}"), &|path| {
                path.quantiles[index].clone()
            });
        }
        let mut distributions = Vec::new();
        for path in self.measured() {
            let histogram = path.round_trips.histogram();
            let file = output
                .map(|output| output.save_histogram(about.id, &path.name, histogram))
                .transpose()?;
            distributions.push(Distribution::of(&path.name, histogram, ONE_WAY, file));
        }
        workload.latencies = Some(results::Latencies {
            title: "One-way latency, half of the round trip".into(),
            unit: Unit::Microseconds,
            distributions,
        });
        for path in &self.all {
            workload.missing.extend(failed(&path.name, &path.failures));
        }
        Ok(workload)
    }

    fn measured(&self) -> impl Iterator<Item = &Path> {
        self.all
            .iter()
            .filter(|path| !path.round_trips.histogram().is_empty())
    }
}
