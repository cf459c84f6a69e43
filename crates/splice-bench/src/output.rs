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
        let path = self.directory.join(RESULTS);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let results =
            Results::from_json(&text).with_context(|| format!("cannot use {}", path.display()))?;
        report::write(&self.directory, &results)
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
