//! What a person types.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::cpus::Placement;
use crate::reproduce::arguments::{EchoServer, Reproduce};
use crate::server::Service;

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

    /// Everybody on everything: statistics with intervals, and a directory of results
    ///
    /// The direct path, every engine and the installed peers (HAProxy, nginx, socat, pen) in
    /// interleaved rounds: ping-pong, bulk, request-response, short connections, idle connections,
    /// a slow reader. Ratios to the direct path come with a bootstrap interval, and a difference
    /// that its interval does not support is not called one.
    ///
    /// Needs root, as the demo does. Ctrl-C ends it with what has been measured, marked as
    /// incomplete. Exit status: 0 ended well, 1 bytes were lost or a measurement failed, 2 wrong
    /// usage.
    Compare(Compare),

    /// Whether the bench measures what it says
    ///
    /// One path twice comes out the same, a relay that keeps every message for 200 µs comes out at
    /// that, and sockperf and iperf3 find the same figures on the direct path. Needs root. Exit
    /// status: 0 all of it holds, 1 it does not, 2 wrong usage.
    Check(Check),

    /// A relay that keeps every message for a known time, for the bench to check itself with
    #[command(hide = true)]
    Delay(Delay),

    /// The server's end of a measurement, with its socket as standard input
    #[command(hide = true)]
    Serve(Serve),

    /// The published experiments on TCP splicing again, with every engine
    ///
    /// Needs root, and cleans up, as `demo` does.
    Reproduce(Reproduce),

    #[command(hide = true)]
    EchoServer(EchoServer),

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

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The spliced program to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    spliced: Option<PathBuf>,

    /// Measure these contestants only (names as in the tables; copy is short for "spliced copy",
    /// haproxy-splice for "HAProxy splice"); direct always runs
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Leave these contestants out
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) except: Vec<String>,

    /// Ask only this: ping-pong, bulk, request-response, open-load, short-connections, idle,
    /// slow-reader, or one of them with its parameter, as ping-pong-64 or bulk-up
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    pub(crate) workload: Vec<String>,

    /// Rounds; fewer than 5 make no interval, and no difference is called then
    /// [default: 9, with --quick 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,

    /// Everything smaller and shorter: two minutes instead of twenty
    #[arg(long)]
    pub(crate) quick: bool,

    /// The CPU that client, relay and server share
    #[arg(long, value_name = "N", default_value_t = 0)]
    cpu: usize,

    /// Let client, relay and server run on any CPU; all are kept awake
    #[arg(long, conflicts_with = "cpu")]
    spread: bool,

    /// Requests that fall due in a second of the open load
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: u32,

    /// How long messages and requests go on before they count: with 0 it is seen what a young
    /// connection pays for, as auto's way into the kernel
    /// [default: 100, and 0.2 for each connection]
    #[arg(long, value_name = "MS")]
    pub(crate) warm_up: Option<u64>,

    /// Leave results.json, histograms and the pages made from them in this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) output: Option<PathBuf>,
}

impl Compare {
    /// Which spliced is measured.
    pub(crate) fn spliced(&self) -> Result<PathBuf> {
        if let Some(path) = &self.spliced {
            return Ok(path.clone());
        }
        let own = std::env::current_exe().context("this program does not know where it is")?;
        Ok(own.with_file_name("spliced"))
    }

    pub(crate) fn placement(&self) -> Placement {
        if self.spread {
            Placement::Spread
        } else {
            Placement::Pinned(self.cpu)
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The CPU that client, relay and server share
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cpu: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Delay {
    pub(crate) listen: SocketAddr,
    pub(crate) target: SocketAddr,
    /// How long, in µs
    microseconds: u64,
}

impl Delay {
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_micros(self.microseconds)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    pub(crate) service: Service,
    /// How large a message is, or how many threads there are
    pub(crate) number: usize,
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
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
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
