//! The directory that a run leaves: `results.json`, histograms, and the pages made from them.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use crate::report;
use crate::results::Results;

/// The file that everything else but the histograms is made from.
const RESULTS: &str = "results.json";

/// Where histograms go.
const HISTOGRAMS: &str = "histograms";

/// A directory of results.
#[derive(Debug)]
pub(crate) struct Output {
    directory: PathBuf,
}

impl Output {
    /// Makes `directory` for a new run. One that holds results is refused: they took long.
    pub(crate) fn create(directory: &Path) -> Result<Self> {
        ensure!(
            !directory.join(RESULTS).exists(),
            "{} holds results already: name another directory",
            directory.display()
        );
        let histograms = directory.join(HISTOGRAMS);
        fs::create_dir_all(&histograms)
            .with_context(|| format!("cannot create {}", histograms.display()))?;
        Ok(Self {
            directory: directory.into(),
        })
    }

    /// One that a run has left.
    pub(crate) fn open(directory: &Path) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// Saves a histogram in ns, and returns the name for
    /// [`Distribution::file`](crate::results::Distribution::file).
    pub(crate) fn save_histogram(
        &self,
        workload: &str,
        contestant: &str,
        histogram: &Histogram<u64>,
    ) -> Result<String> {
        let name = format!("{HISTOGRAMS}/{workload}-{}.hlog", slug(contestant));
        let path = self.directory.join(&name);
        let file =
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let (mut file, mut serializer) = (BufWriter::new(file), V2DeflateSerializer::new());
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment(&format!("{workload}, {contestant}; values in ns"))
            .begin_log_with(&mut file, &mut serializer)?;
        // When each value was taken is not known: one interval holds them all.
        log.write_histogram(histogram, Duration::ZERO, Duration::ZERO, None)
            .map_err(|error| anyhow::anyhow!("cannot write {}: {error:?}", path.display()))?;
        Ok(name)
    }

    /// Writes `results.json` and everything that is made from it.
    pub(crate) fn write(&self, results: &Results) -> Result<()> {
        let path = self.directory.join(RESULTS);
        fs::write(&path, results.to_json()?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        report::write(&self.directory, results)
    }

    /// Makes the pages from the `results.json` that is there.
    pub(crate) fn write_again(&self) -> Result<()> {
        report::write(&self.directory, &self.read()?)
    }

    /// Draws the chart of the README into `file`.
    pub(crate) fn draw_chart(&self, file: &Path) -> Result<()> {
        let image = report::headline(&self.read()?)
            .with_context(|| format!("cannot use {}", self.directory.display()))?;
        fs::write(file, image).with_context(|| format!("cannot write {}", file.display()))
    }

    /// The results that are there.
    fn read(&self) -> Result<Results> {
        let path = self.directory.join(RESULTS);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Results::from_json(&text).with_context(|| format!("cannot use {}", path.display()))
    }
}

/// `name` as a part of a file name: lower case letters and digits, hyphens between.
pub(crate) fn slug(name: &str) -> String {
    let words: Vec<String> = name
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;

    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use netlab::Scratch;

    use super::{Output, RESULTS, slug};
    use crate::report::specimen;

    #[test]
    fn pages_are_made_again_from_the_file() {
        let scratch = Scratch::new("again").expect("a directory");
        let directory = scratch.path().join("results");
        let output = Output::create(&directory).expect("it is writable");
        output.write(&specimen::full()).expect("it is writable");
        let page = directory.join("report.html");
        let first = fs::read_to_string(&page).expect("it is written");
        fs::write(&page, "").expect("it is ours");
        Output::open(&directory)
            .write_again()
            .expect("it is readable");
        assert_eq!(fs::read_to_string(&page).expect("it is written"), first);

        let error = Output::create(&directory).expect_err("it holds results");
        assert!(
            error.to_string().contains("holds results already"),
            "{error}"
        );
    }

    #[test]
    fn results_that_cannot_be_read_are_refused_with_their_place() {
        let scratch = Scratch::new("broken").expect("a directory");
        let said = || {
            let error = Output::open(scratch.path()).write_again();
            format!("{:#}", error.expect_err("it is broken"))
        };
        assert!(said().contains(RESULTS), "{}", said());
        for text in [
            "",
            "{\"schema\": {\"name\": \"splice-bench results\", \"version\": 99}}",
        ] {
            scratch.write(RESULTS, text).expect("it is ours");
            assert!(
                said().contains(RESULTS) && said().lines().count() == 1,
                "{}",
                said()
            );
        }
        assert!(said().contains("version 99"), "{}", said());
    }

    #[test]
    fn a_histogram_survives_in_its_file() {
        let scratch = Scratch::new("histogram").expect("a directory");
        let output = Output::create(scratch.path()).expect("it is writable");
        let mut histogram = Histogram::new_with_max(1_000_000_000, 3).expect("a sound range");
        for nanoseconds in [3_700, 3_800, 65_000_000] {
            histogram.record(nanoseconds).expect("it is in the range");
        }
        let name = output
            .save_histogram("ping-pong-64", "HAProxy splice-auto", &histogram)
            .expect("it is writable");
        assert_eq!(name, "histograms/ping-pong-64-haproxy-splice-auto.hlog");

        let log = fs::read(scratch.path().join(name)).expect("it is written");
        let read = IntervalLogIterator::new(&log).find_map(|entry| match entry {
            Ok(LogEntry::Interval(interval)) => Some(interval.encoded_histogram().to_owned()),
            _ => None,
        });
        let mut bytes = Vec::new();
        base64::read::DecoderReader::new(
            read.expect("it has an interval").as_bytes(),
            &base64::prelude::BASE64_STANDARD,
        )
        .read_to_end(&mut bytes)
        .expect("it is base64");
        let again: Histogram<u64> = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .expect("it is a histogram");
        assert_eq!(again, histogram);
    }

    #[test]
    fn names_become_parts_of_file_names() {
        assert_eq!(slug("HAProxy splice-auto"), "haproxy-splice-auto");
        assert_eq!(slug("../../etc"), "etc");
    }
}
