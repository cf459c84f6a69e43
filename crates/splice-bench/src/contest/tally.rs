//! The answers of all contestants to one question.

use std::fmt::Write as _;

use anyhow::Result;

use super::question::{Answer, Extents, Question};
use crate::contestant::Contestant;
use crate::output::Output;
use crate::results::{
    Better, Distribution, Interval, Latencies, Line, Measured, Missing, Quantity, Results, Series,
    Unit, Workload,
};
use crate::segment_counts::SegmentCounts;
use crate::statistics::{self, Sample};
use crate::table::Table;

/// The answers to one question, by contestant.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) question: Question,
    entries: Vec<Entry>,
}

/// The answers of one contestant, in the order of the rounds.
#[derive(Debug)]
struct Entry {
    contestant: Contestant,
    /// One for each quantity of the question.
    samples: Vec<Sample>,
    latencies: Option<statistics::Latencies>,
    points: Vec<(f64, f64)>,
    /// What became of its segments.
    segments: SegmentCounts,
    /// Why its further rounds are left out.
    over: Option<String>,
    failed: bool,
}

impl Tally {
    pub(crate) fn new(question: Question, contestants: &[Contestant]) -> Self {
        let entry = |&contestant: &Contestant| Entry {
            contestant,
            samples: question
                .quantities()
                .iter()
                .map(|_| Sample::default())
                .collect(),
            latencies: None,
            points: Vec::new(),
            segments: SegmentCounts::default(),
            over: None,
            failed: false,
        };
        Self {
            question,
            entries: contestants.iter().map(entry).collect(),
        }
    }

    /// Everyone's answers of one value.
    #[cfg(test)]
    pub(crate) fn of(question: Question, answers: &[(Contestant, &[f64])]) -> Self {
        let contestants: Vec<Contestant> = answers.iter().map(|answer| answer.0).collect();
        let mut tally = Self::new(question, &contestants);
        for (index, (_, values)) in answers.iter().enumerate() {
            for &value in *values {
                let mut answer = Answer::default();
                answer.values.push(Some(value));
                tally.add(index, answer);
            }
        }
        tally
    }

    /// Adds the answer of contestant number `index` in one more round.
    pub(crate) fn add(&mut self, index: usize, answer: Answer) {
        let entry = &mut self.entries[index];
        for (sample, value) in entry.samples.iter_mut().zip(answer.values) {
            value.into_iter().for_each(|value| sample.push(value));
        }
        match (&mut entry.latencies, answer.latencies) {
            (Some(all), Some(more)) => all.add(&more),
            (none @ None, some) => *none = some,
            (Some(_), None) => {}
        }
        entry.points.extend(answer.points);
    }

    /// Adds what became of the segments of contestant number `index` in one more round.
    pub(crate) fn count_segments(&mut self, index: usize, grown: &SegmentCounts) {
        self.entries[index].segments.add(grown);
    }

    /// Contestant number `index` has failed. Its further rounds are left out, because rounds pair the
    /// contestants.
    pub(crate) fn fail(&mut self, index: usize, why: String) {
        self.entries[index].failed = true;
        self.fail_quietly(index, why);
    }

    /// The same where this is no failure of the contestant.
    pub(crate) fn fail_quietly(&mut self, index: usize, why: String) {
        self.entries[index].over.get_or_insert(why);
    }

    pub(crate) fn is_over_for(&self, index: usize) -> bool {
        self.entries[index].over.is_some()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.entries.iter().any(|entry| entry.failed)
    }

    /// Those that failed, with the reason.
    pub(crate) fn failures(&self) -> Vec<(String, String)> {
        let failed = self.entries.iter().filter(|entry| entry.failed);
        failed
            .map(|entry| {
                let why = entry.over.clone().unwrap_or_default();
                let question = self.question.id();
                (entry.contestant.name(), format!("{question}: {why}"))
            })
            .collect()
    }

    /// The values of quantity number `quantity` that `contestant` has, if any.
    pub(crate) fn sample(&self, contestant: Contestant, quantity: usize) -> Option<&Sample> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.contestant == contestant)?;
        Some(&entry.samples[quantity]).filter(|sample| !sample.values().is_empty())
    }

    /// The workload of the results. Histograms go into `output`.
    pub(crate) fn workload(&self, extents: &Extents, output: Option<&Output>) -> Result<Workload> {
        let mut workload = self.question.workload(extents);
        for (number, told) in self.question.quantities().iter().enumerate() {
            workload.quantities.push(Quantity {
                id: told.id.into(),
                title: told.title.into(),
                unit: told.unit,
                better: told.better,
                reference: self.reference(number).map(|_| Contestant::Direct.name()),
                measured: self.measured(number, told.better),
            });
        }
        workload.latencies = self.latencies(&workload.id, output)?;
        workload.series = self.series();
        let missing = |entry: &Entry| {
            Some(Missing {
                what: entry.contestant.name(),
                why: entry.over.clone()?,
            })
        };
        for entry in &self.entries {
            if let Some(unusual) = entry.segments.unusual() {
                let name = entry.contestant.name();
                let note = format!("{name}: segments by the names of docs/segment.md: {unusual}");
                workload.notes.push(note);
            }
        }
        workload.missing = self.entries.iter().filter_map(missing).collect();
        Ok(workload)
    }

    /// What the ratios are to: the direct path, where it was measured. What is taken once has no ratio
    /// that could be trusted.
    fn reference(&self, quantity: usize) -> Option<&Sample> {
        let direct = self.sample(Contestant::Direct, quantity);
        direct.filter(|_| self.question.in_rounds())
    }

    fn measured(&self, quantity: usize, better: Better) -> Vec<Measured> {
        let direct = self.sample(Contestant::Direct, quantity);
        // The direct path's kernel memory is that of the two ends, which is no relay's.
        let ends = direct
            .filter(|_| self.question == Question::Idle)
            .and_then(Sample::median);
        let one = |entry: &Entry| {
            let sample = match ends {
                Some(_) if entry.contestant.is_reference() => return None,
                Some(ends) => entry.samples[quantity]
                    .values()
                    .iter()
                    .map(|value| value - ends)
                    .collect(),
                None => entry.samples[quantity].clone(),
            };
            let reference = self.reference(quantity);
            let reference = reference.filter(|_| entry.contestant != Contestant::Direct);
            Measured::of(entry.contestant.name(), &sample, reference, better)
        };
        self.entries.iter().filter_map(one).collect()
    }

    fn latencies(&self, id: &str, output: Option<&Output>) -> Result<Option<Latencies>> {
        let mut distributions = Vec::new();
        for entry in &self.entries {
            let Some(latencies) = &entry.latencies else {
                continue;
            };
            let (name, histogram) = (entry.contestant.name(), latencies.histogram());
            let save = |output: &Output| output.save_histogram(id, &name, histogram);
            let file = output.map(save).transpose()?;
            let scale = self.question.latency_scale();
            distributions.push(Distribution::of(&name, histogram, scale, file));
        }
        Ok((!distributions.is_empty()).then(|| Latencies {
            title: self.question.latency_title().into(),
            unit: Unit::Microseconds,
            distributions,
        }))
    }

    fn series(&self) -> Option<Series> {
        let filled = self.entries.iter().filter(|entry| !entry.points.is_empty());
        let lines: Vec<Line> = filled
            .map(|entry| Line {
                contestant: entry.contestant.name(),
                points: entry.points.clone(),
            })
            .collect();
        (!lines.is_empty()).then(|| Series {
            title: "Memory that the relay holds".into(),
            unit: Unit::Bytes,
            better: Better::Lower,
            lines,
        })
    }
}

/// A table for every workload, for a terminal.
pub(crate) fn tables(results: &Results) -> String {
    let mut text = String::new();
    for workload in &results.workloads {
        let _ = writeln!(text, "{}", workload.title);
        for quantity in &workload.quantities {
            let mut table = Table::new(&[
                quantity.title.as_str(),
                "",
                quantity.reference.as_ref().map_or("", |_| "over direct"),
                "",
            ]);
            for measured in &quantity.measured {
                let ratio = measured.ratio.as_ref();
                table.push(vec![
                    measured.contestant.clone(),
                    quantity.unit.tell(measured.median),
                    ratio.map_or_else(String::new, |ratio| {
                        with_interval(ratio.median, ratio.interval)
                    }),
                    ratio.map_or_else(String::new, |ratio| ratio.verdict.to_string()),
                ]);
            }
            let _ = writeln!(text, "{table}");
        }
        for missing in &workload.missing {
            let _ = writeln!(text, "{}: {}", missing.what, missing.why);
        }
        let _ = writeln!(text);
    }
    for missing in &results.missing {
        let _ = writeln!(text, "{}: {}", missing.what, missing.why);
    }
    let mut checks = Table::new(&["check", "expected", "found", ""]).align_left(2);
    for check in &results.checks {
        checks.push(vec![
            check.title.clone(),
            check.asked.clone(),
            check.reached.clone(),
            check.outcome.to_string(),
        ]);
    }
    let _ = write!(text, "\n{checks}");
    text
}

/// `1.34 (1.31 to 1.38)`
pub(crate) fn with_interval(middle: f64, interval: Option<Interval>) -> String {
    interval.map_or_else(
        || format!("{middle:.3}"),
        |Interval { low, high }| format!("{middle:.3} ({low:.3} to {high:.3})"),
    )
}

#[cfg(test)]
mod tests {
    use splice::EngineChoice;

    use super::{Contestant, Extents, Question, SegmentCounts, Tally};

    #[test]
    fn a_workload_notes_segments_that_took_an_unusual_way() {
        let contestants = [Contestant::Direct, Contestant::Spliced(EngineChoice::Auto)];
        let mut tally = Tally::new(Question::Idle, &contestants);
        for gone in [1, 2] {
            let grown = SegmentCounts(vec![("translated", 9), ("gone", gone)]);
            tally.count_segments(1, &grown);
        }
        let workload = tally
            .workload(&Extents::of(true), None)
            .expect("no file is written");
        assert_eq!(
            workload.notes,
            ["spliced auto: segments by the names of docs/segment.md: gone 3"]
        );
    }
}
