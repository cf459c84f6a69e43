//! What a person types.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Measures every way of joining two sockets side by side, next to the direct path and to the peers
/// that are installed.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// One table: does every byte arrive, how fast, how soon, at what cost
    ///
    /// Needs root: makes three network namespaces (client, relay, server), which it removes again,
    /// also when interrupted. The machine's own network is left alone.
    Demo(Demo),

    /// Makes the pages of a directory of results again, from its results.json
    Report(Report),
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// The directory that a run has written
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The spliced program to measure
    #[arg(long, value_name = "PATH")]
    pub(crate) spliced: PathBuf,

    /// Rounds; each measures every contestant once, and the median over them counts
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,

    /// Bytes of the transfer whose hashes are compared, each way
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub(crate) bytes: u64,

    /// Round trips per contestant and round
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ping_pongs: u32,

    /// Pairs that are opened and left idle to see what one costs
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) idle_pairs: u32,

    /// One small round of everything, in about a minute; overrides the sizes above
    #[arg(long)]
    pub(crate) quick: bool,

    /// The CPU that client, relay and server share
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cpu: usize,

    /// Measure these contestants only (names as in the table); direct always runs
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Put only these workloads to them; hashes are compared in any case
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    pub(crate) workload: Vec<Workload>,
}

/// What a contestant can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Many bytes both ways at once
    Transfer,
    /// Small messages there and back
    PingPong,
    /// Connections that live for one byte each way
    ShortConnections,
    /// Pairs that have nothing to do
    Idle,
    /// Receivers that do not read
    Stalled,
}

impl Demo {
    /// Whether `workload` is wanted: all are unless some are named.
    pub(crate) fn wants(&self, workload: Workload) -> bool {
        self.workload.is_empty() || self.workload.contains(&workload)
    }

    /// With `--quick` applied.
    pub(crate) fn sized(self) -> Self {
        if !self.quick {
            return self;
        }
        Self {
            rounds: 1,
            bytes: 32 << 20,
            ping_pongs: 2_000,
            idle_pairs: 500,
            ..self
        }
    }
}

/// Reads `64`, `32KiB`, `256MiB` or `2GiB`.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        other => return Err(format!("unknown unit {other:?}: use B, KiB, MiB or GiB")),
    };
    let number = digits
        .parse::<u64>()
        .map_err(|error| format!("{digits:?}: {error}"))?;
    number
        .checked_mul(unit)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("{text:?} is zero or too large"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{Cli, parse_size};

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("12"), Ok(12));
        for wrong in ["", "MiB", "1MB", "0", "-1", "99999999999GiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
