//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::contest::question::OPEN_PER_SECOND;
use crate::cpus::Placement;
use crate::reproduce::arguments::{EchoServer, Reproduce};
use crate::server::Service;

/// Measures spliced next to the direct path and to the other relays that are installed.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show in less than a minute what spliced is good for
    ///
    /// Measures spliced, the direct path and other relays in interleaved rounds, says in one sentence
    /// what the rounds support, and shows one live connection that moves into the kernel.
    ///
    /// Needs root: the demo creates three network namespaces (client, relay, server) and removes them
    /// again, also when interrupted. The machine's own network stays as it is. Exit status: 0 success,
    /// 1 bytes were lost, a measurement failed or the live connection did not move, 2 wrong usage.
    Demo(Demo),

    /// Run the full comparison with confidence intervals
    ///
    /// Measures the direct path, every engine and the other ways through a machine (HAProxy, nginx,
    /// Envoy, socat, pen, nftables DNAT) in interleaved rounds: ping-pong, bulk, request-response,
    /// short and young connections, all ports in use, routing by SNI, idle connections, a slow reader. Ratios to the direct path have a bootstrap
    /// interval. The comparison calls no difference that the interval does not support.
    ///
    /// Needs root, as the demo does. Ctrl-C ends the run and keeps what has been measured, marked as
    /// incomplete. Exit status: 0 success, 1 bytes were lost or a measurement failed, 2 wrong usage.
    Compare(Compare),

    /// Check the bench itself against known figures
    ///
    /// The same path measured twice must come out equal. A relay that delays every message by 200 µs
    /// must come out 200 µs slower. On the direct path, sockperf and iperf3 must find the same
    /// figures. With --spliced, it also measures what the project asks of itself.
    ///
    /// Needs root. Exit status: 0 every check holds, 1 one does not, 2 wrong usage.
    Check(Check),

    /// A relay that delays every message by a known time, for `check`
    #[command(hide = true)]
    Delay(Delay),

    /// The library's forwarding from the SYN on as a relay, for `compare`
    #[command(hide = true)]
    Forward(Forward),

    /// The server of a measurement; its socket is standard input
    #[command(hide = true)]
    Serve(Serve),

    /// Repeat the published experiments on TCP splicing with every engine
    ///
    /// Needs root, and cleans up, as `demo` does.
    Reproduce(Reproduce),

    #[command(hide = true)]
    EchoServer(EchoServer),

    /// The hub that `reproduce mesh` compares with
    #[command(hide = true)]
    MeshHub { listen: SocketAddr },

    /// Write the pages of a results directory again, from its results.json
    Report(Report),

    /// Draw the chart of the README from the results of a comparison
    Chart(Chart),
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// The directory that a run has written
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Chart {
    /// The directory that `compare --output` has written
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,

    /// The SVG file to write
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The spliced program to measure
    #[arg(long, value_name = "PATH")]
    pub(crate) spliced: PathBuf,

    /// Number of rounds; a verdict takes at least 5
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,

    /// Measure every engine and every contestant of `compare`
    #[arg(long)]
    pub(crate) all: bool,

    /// Measure only these contestants (names as in the table); direct always runs
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        conflicts_with = "all"
    )]
    pub(crate) only: Vec<String>,

    /// The CPU that client, relay and server share
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cpu: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The spliced program to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    spliced: Option<PathBuf>,

    /// Measure only these contestants (names as in the tables; copy is short for "spliced copy",
    /// haproxy-splice for "HAProxy splice"); direct always runs
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Leave these contestants out
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) except: Vec<String>,

    /// Run only these workloads: ping-pong, bulk, request-response, open-load, short-connections,
    /// same-port, young, ports, sni-latency, sni-first-byte, sni-short, idle, slow-reader, or one of them with its parameter, such as ping-pong-64 or bulk-up
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    pub(crate) workload: Vec<String>,

    /// Number of rounds; an interval takes at least 5, and without intervals no difference is called
    /// [default: 9, with --quick 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,

    /// Fewer, smaller and shorter measurements: two minutes instead of twenty
    #[arg(long)]
    pub(crate) quick: bool,

    /// The CPU that client, relay and server share
    #[arg(long, value_name = "N", default_value_t = 0)]
    cpu: usize,

    /// Let client, relay and server run on any CPU; all CPUs are kept awake
    #[arg(long, conflicts_with = "cpu")]
    spread: bool,

    /// Requests per second of the open load
    #[arg(long, value_name = "N", default_value_t = OPEN_PER_SECOND, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: u32,

    /// Warm-up before messages and requests count; 0 includes what a young connection costs, such as
    /// its way into the kernel with the engine auto [default: 100, and 0.2 for each connection]
    #[arg(long, value_name = "MS")]
    pub(crate) warm_up: Option<u64>,

    /// Write results.json, the histograms and the pages made from them into this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) output: Option<PathBuf>,
}

impl Compare {
    /// The spliced program to measure.
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
    /// Largest number of rounds for a check; it stops earlier when its interval is narrow enough
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u32).range(5..))]
    pub(crate) rounds: u32,

    /// Also hold this spliced program against the targets of the project
    #[arg(long, value_name = "PATH")]
    pub(crate) spliced: Option<PathBuf>,

    /// The CPU that client, relay and server share
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cpu: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Delay {
    pub(crate) listen: SocketAddr,
    pub(crate) target: SocketAddr,
    /// Delay of each message, in µs
    microseconds: u64,
}

impl Delay {
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_micros(self.microseconds)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Forward {
    pub(crate) listen: SocketAddr,
    pub(crate) target: SocketAddr,
    /// Further listeners, for connections that only fill the table
    #[arg(long, default_value_t = 0)]
    pub(crate) crowd: u16,
    /// Where these lead
    #[arg(long)]
    pub(crate) crowd_at: Option<IpAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    pub(crate) service: Service,
    /// Bytes of a message, or number of threads
    pub(crate) number: usize,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
