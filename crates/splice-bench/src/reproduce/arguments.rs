//! The arguments of `reproduce`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::size;

#[derive(Debug, Args)]
pub(crate) struct Reproduce {
    #[command(subcommand)]
    pub(crate) experiment: Experiment,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// Echo servers, a socket spliced to itself (Cloudflare, 2019)
    ///
    /// Sends bursts of a fixed size and measures the time until each is back, with and without
    /// SO_BUSY_POLL. Prints the `Values` line and the histogram of the original.
    Echo(Echo),

    /// Ping-pong through a proxy between two veths (NDC TechTown 2024, second bench)
    Relay(Rounds),

    /// Ping-pong between two namespaces, with TCP and past it by SK_MSG redirection (the same talk,
    /// first bench)
    Bypass(Bypass),

    /// CPU time of the whole machine for bulk, each way and both ways (SO_SPLICE in FreeBSD)
    ///
    /// Measures every engine, and a proxy in C that either reads and writes (`proxy copy`) or uses
    /// SO_SPLICE (`proxy splice`). The second needs libso_splice.so.
    Cpu(Cpu),

    /// Datagrams a second that a relay passes on before it loses some, and the loss at each rate
    ///
    /// The datagrams of many clients arrive at the relay's device as from a network card, sent by a BPF
    /// program on a CPU of its own, and are counted at the server's device (Linux 5.18). Trains of them
    /// (--burst) go from socket to socket. Beside nginx's stream module (`listen udp`) and socat.
    Udp(Udp),

    /// Frames from member to member through `spliced mesh`, and through a hub in user space
    Mesh(Mesh),

    /// Ping-pong on one of many sessions, while the metrics of the relay are read or not
    Scrape(Scrape),

    /// Ping-pong on one of many connections, while another one is traced or not
    Trace(Trace),

    /// How long 'spliced check' takes for the examples, and for many listeners
    Configurations(Configurations),
}

#[derive(Debug, Args)]
pub(crate) struct Configurations {
    /// The spliced program to measure
    #[arg(long, value_name = "PATH")]
    pub(crate) spliced: PathBuf,

    /// The directory with the examples
    #[arg(long, value_name = "DIR", default_value = "examples")]
    pub(crate) examples: PathBuf,

    /// Configurations with so many listeners
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [50, 1000],
          value_parser = clap::value_parser!(u16).range(1..=40_000))]
    pub(crate) listeners: Vec<u16>,

    /// Number of interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Trace {
    #[command(flatten)]
    pub(crate) shared: Shared,

    #[command(flatten)]
    pub(crate) extent: Extent,

    /// The spliced program to measure
    #[arg(long, value_name = "PATH")]
    pub(crate) spliced: PathBuf,

    /// The relay's engine
    #[arg(long, value_name = "NAME", default_value = "copy")]
    pub(crate) engine: String,

    /// Number of connections: one that is measured, one that is traced, and idle ones
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) connections: u16,

    /// Also write what 'spliced trace --demo' prints into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Scrape {
    #[command(flatten)]
    pub(crate) shared: Shared,

    #[command(flatten)]
    pub(crate) extent: Extent,

    /// The spliced program to measure
    #[arg(long, value_name = "PATH")]
    pub(crate) spliced: PathBuf,

    /// The relay's engine
    #[arg(long, value_name = "NAME", default_value = "copy")]
    pub(crate) engine: String,

    /// Number of sessions that have nothing to do; two open files each, here and in the relay
    #[arg(long, value_name = "N", default_value_t = 9_500, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) sessions: u16,

    /// From one scrape to the next; Prometheus takes 15 000 or more
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Mesh {
    #[command(flatten)]
    pub(crate) shared: Shared,

    #[command(flatten)]
    pub(crate) extent: Extent,

    /// The spliced program to measure
    #[arg(long, value_name = "PATH")]
    pub(crate) spliced: PathBuf,

    /// Number of members
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 16, 64],
          value_parser = clap::value_parser!(u16).range(2..=64))]
    pub(crate) members: Vec<u16>,

    /// Bytes of a frame with its header, from 16 to 65536
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_frame,
          default_values = ["64", "16KiB"])]
    pub(crate) size: Vec<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct Udp {
    #[command(flatten)]
    pub(crate) rounds: Rounds,

    /// The CPU that sends; the relays share --cpu
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) load_cpu: usize,

    /// Number of clients
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) clients: u16,

    /// How many datagrams a client sends in one call (UDP_SEGMENT), as programs with QUIC do
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=40))]
    pub(crate) burst: u16,

    /// Bytes of a datagram, at least 16
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [64, 1200],
          value_parser = clap::value_parser!(u16).range(16..=1472))]
    pub(crate) size: Vec<u16>,
}

/// Arguments of every experiment.
#[derive(Debug, Args)]
pub(crate) struct Shared {
    /// Small run of about a minute; overrides the sizes
    #[arg(long)]
    pub(crate) quick: bool,

    /// The CPU that all programs share
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cpu: usize,

    /// Write results.json and the pages made from it into this new directory
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// The contestants.
#[derive(Debug, Args)]
pub(crate) struct Who {
    /// The spliced program to measure
    #[arg(long, value_name = "PATH")]
    pub(crate) spliced: PathBuf,

    /// Measure only these contestants (names as in the tables); the reference always runs
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Echo {
    #[command(flatten)]
    pub(crate) shared: Shared,

    #[command(flatten)]
    pub(crate) who: Who,

    /// Number of runs; each measures every contestant once, on a new connection
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Number of bursts in a run
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) bursts: u32,

    /// Bytes of a burst
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_block,
          default_values = ["2MiB", "16KiB", "128KiB"])]
    pub(crate) block: Vec<usize>,

    /// The CPU of the echo servers, if it is not that of the client
    #[arg(long, value_name = "N")]
    pub(crate) server_cpu: Option<usize>,

    /// Make the devices like a network card: segments of one MTU, and NAPI, which SO_BUSY_POLL polls.
    /// Two pollers on one CPU hold each other up for 10 ms at a time, so the servers need a CPU of
    /// their own
    #[arg(long, requires = "server_cpu")]
    pub(crate) napi: bool,
}

/// How often and how long something is measured.
#[derive(Debug, Args)]
pub(crate) struct Extent {
    /// Number of rounds; each measures every contestant once
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,

    /// Duration of one measurement
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) milliseconds: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Rounds {
    #[command(flatten)]
    pub(crate) shared: Shared,

    #[command(flatten)]
    pub(crate) who: Who,

    #[command(flatten)]
    pub(crate) extent: Extent,
}

#[derive(Debug, Args)]
pub(crate) struct Cpu {
    #[command(flatten)]
    pub(crate) rounds: Rounds,

    /// The libso_splice.so that the proxy gets SO_SPLICE from [default: the one beside spliced]
    #[arg(long, value_name = "PATH")]
    so_splice: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Bypass {
    #[command(flatten)]
    pub(crate) shared: Shared,

    #[command(flatten)]
    pub(crate) extent: Extent,
}

impl Echo {
    /// With `--quick` applied.
    pub(crate) fn sized(self) -> Self {
        if !self.shared.quick {
            return self;
        }
        Self {
            runs: 2,
            bursts: 300,
            ..self
        }
    }
}

impl Cpu {
    /// The library that the proxy gets SO_SPLICE from.
    pub(crate) fn so_splice(&self, spliced: &Path) -> PathBuf {
        let beside = || spliced.with_file_name("libso_splice.so");
        self.so_splice.clone().unwrap_or_else(beside)
    }
}

impl Extent {
    /// With `--quick` applied.
    pub(crate) fn sized(&self, quick: bool) -> Self {
        let (rounds, milliseconds) = if quick {
            (3, 500)
        } else {
            (self.rounds, self.milliseconds)
        };
        Self {
            rounds,
            milliseconds,
        }
    }

    /// How long one measurement takes.
    pub(crate) fn window(&self) -> Duration {
        Duration::from_millis(self.milliseconds)
    }
}

/// An echo server of the bench's own; used by `reproduce echo`.
#[derive(Debug, Args)]
pub(crate) struct EchoServer {
    pub(crate) kind: OwnEcho,

    pub(crate) listen: SocketAddr,

    #[arg(long)]
    pub(crate) busy_poll: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OwnEcho {
    /// read(2) and write(2) in a loop: what everybody is held against.
    ReadWrite,
    /// SOCKMAP as in 2019: a verdict program that redirects everything.
    #[value(name = "sockmap-2019")]
    Sockmap2019,
    /// The same without the large send buffer that it was given.
    #[value(name = "sockmap-2019-untuned")]
    Sockmap2019Untuned,
}

/// Reads the size of a frame.
fn parse_frame(text: &str) -> Result<usize, String> {
    let bytes = size::parse(text)?;
    match usize::try_from(bytes) {
        Ok(bytes @ 16..=65_536) => Ok(bytes),
        _ => Err("a frame has 16 to 65536 bytes".into()),
    }
}

/// Reads the size of a burst.
fn parse_block(text: &str) -> Result<usize, String> {
    // More would not fit a socket's buffer twice, which the kernel counts in an i32 and doubles.
    const MOST: u64 = 256 << 20;
    let bytes = size::parse(text)?;
    if bytes % 8 != 0 || bytes > MOST {
        return Err("a burst is a multiple of 8 bytes, and 256MiB at most".into());
    }
    usize::try_from(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::{Cpu, parse_block};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        cpu: Cpu,
    }

    #[test]
    fn the_library_lies_beside_spliced_unless_told() {
        let spliced = Path::new("/built/spliced");
        for (more, library) in [
            (&[][..], "/built/libso_splice.so"),
            (&["--so-splice", "other.so"], "other.so"),
        ] {
            let words = ["cpu", "--spliced", "spliced"].iter().chain(more);
            let line = Line::try_parse_from(words).expect("it is correct");
            assert_eq!(line.cpu.so_splice(spliced), Path::new(library));
        }
    }

    #[test]
    fn a_burst_has_its_limits() {
        assert_eq!(parse_block("128KiB"), Ok(128 << 10));
        assert!(parse_block("7").is_err());
        assert!(parse_block("1GiB").is_err());
    }
}
