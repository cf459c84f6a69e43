//! What a person typed.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "the comments are the program's help, where [::1] is an address"
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use splice::{Address, EngineChoice};

use crate::sections::{self, as_help};

/// Joins sockets so that their bytes flow without being lost.
#[derive(Debug, Parser)]
#[command(
    name = "spliced",
    version = env!("SPLICED_VERSION"),
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// How much to tell on standard error.
    #[arg(
        long,
        global = true,
        env = "SPLICED_LOG",
        value_name = "LEVEL",
        default_value = "info"
    )]
    pub(crate) log: Level,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Relay(RelayArgs),
    Echo(EchoArgs),
    Doctor(DoctorArgs),
}

/// Try what works here: each engine (copy, pipe, aio, uring, sockmap, segment) on sockets of its own.
///
/// Every engine gets a yes, or a no with the reason and the remedy. Defects that this kernel has
/// are told as well. It takes a second or two and leaves nothing behind. Run it as the user, and
/// with the limits and capabilities, that the relay is going to have.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::DOCTOR))]
pub(crate) struct DoctorArgs {
    /// Print JSON: kernel; engines, each with engine, verdict (yes or no), reason and remedy;
    /// defects, each with name, present (null when it could not be tried) and reason.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Relay every connection to LISTEN to TARGET.
///
/// Addresses are written 127.0.0.1:80, [::1]:80, :80 (every local address to listen on, this
/// host's loopback to connect to), host:port (every address of the name is tried in turn),
/// unix:/path or unix:@abstract. localhost is 127.0.0.1 and [::1].
///
/// If the name in TARGET does not resolve, the relay starts, resets its clients and asks again
/// until it does. A TARGET that is the relay itself is refused, also when a name comes to stand
/// for it later.
///
/// No log holds up the traffic. Up to 16384 lines wait for a reader that stalls or a disk that is
/// full; further ones are dropped and counted, and a warning tells how many. At its end the relay
/// waits for the access log for what is left of the drain timeout, or one second if that is longer,
/// and for standard error for one second.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::RELAY))]
pub(crate) struct RelayArgs {
    /// Where to accept connections.
    pub(crate) listen: Address,

    /// Where to connect each of them to.
    pub(crate) target: Address,

    /// How to move the bytes: auto, copy (read and write), pipe (splice(2)), aio (Linux AIO, for
    /// comparison), uring (io_uring(7)), or by BPF programs in the kernel: sockmap (redirect) or
    /// segment (translate TCP segments).
    ///
    /// auto begins with copy, takes pipe for a flow that moves bulk, and tries segment for a pair
    /// that has moved 64 KiB or lives for 50 ms, where its program can be loaded. An engine asked for by
    /// name is used, or the relay refuses to start. copy, pipe, aio and uring move every byte from
    /// the first on; bytes for which no pipe can be had for a moment are copied. sockmap and segment
    /// take a connection that has begun with copy: sockmap leaves the first 20 ms, bulk and slow
    /// receivers to copy, segment all bytes before its change-over. The access log names one of
    /// these two only if it moved bytes, and says how many were copied.
    ///
    /// uring needs Linux 5.19, is at its best from 6.10 on, and is refused where io_uring is
    /// forbidden (kernel.io_uring_disabled, or the seccomp filter of a container); auto does not
    /// pick it.
    ///
    /// sockmap and segment join TCP with TCP and need CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. auto
    /// never picks sockmap, which is for small messages: the start of bulk can cost it a repetition
    /// of the sender. Asked for by name, segment resets a pair that cannot be translated, with a
    /// warning; where LISTEN and TARGET have no address family in common, the relay refuses to
    /// start. 'spliced doctor' tells which engines work here.
    #[arg(long, default_value_t, value_name = "ENGINE")]
    pub(crate) engine: EngineChoice,

    /// Let segment move connections past the packet filters of this host (nftables, iptables, BPF programs
    /// of its control group), whatever their rules say.
    ///
    /// Without it a connection is spliced only if the filters would let its segments through anyway and do
    /// nothing else with them, such as logging, marking or limiting them; one that new rules would stop is
    /// reset. Counters without a name do not count what is spliced.
    #[arg(long)]
    pub(crate) bypass_firewall: bool,

    /// How long a client waits for its connection to the target, all its addresses together.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "5s")]
    pub(crate) connect_timeout: Duration,

    /// Write a line of JSON to this file or FIFO (- is standard output) for every connection that has
    /// ended. SIGUSR1 opens it again.
    #[arg(long, value_name = "PATH")]
    pub(crate) access_log: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) life: LifeArgs,
}

/// Give every byte that comes to LISTEN back to who sent it: each connection is spliced to itself.
///
/// Addresses are those of 'spliced relay'. What a client has sent and not taken back is bounded; its
/// end of stream is answered behind all of its bytes.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ECHO))]
pub(crate) struct EchoArgs {
    /// Where to accept connections.
    pub(crate) listen: Address,

    /// How to move the bytes: auto, copy (read and write), pipe (splice(2)), aio (one io_submit(2)
    /// reads and writes), uring (io_uring(7)), or sockmap (a BPF program redirects what comes). An engine
    /// that needs two sockets is refused.
    #[arg(long, default_value_t, value_name = "ENGINE")]
    pub(crate) engine: EngineChoice,

    /// Poll the network device for up to 10 ms before sleeping: SO_BUSY_POLL on every connection,
    /// and the same for the wait of the event loops (Linux 6.9 on). It has an effect where the
    /// device can be polled (NAPI), which loopback cannot.
    #[arg(long)]
    pub(crate) busy_poll: bool,

    #[command(flatten)]
    pub(crate) life: LifeArgs,
}

/// How many there are, and how long they live.
#[derive(Args, Debug)]
pub(crate) struct LifeArgs {
    /// Threads, each with an event loop and a listening socket of its own [default: one per CPU].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Reset a connection on which nothing has moved for this long (500ms, 5m, 1h 30m)
    /// [default: never].
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) idle_timeout: Option<Duration>,

    /// Accept no more than this many connections at once; others wait in the listener's backlog
    /// [default: no limit].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: Option<u32>,

    /// How long to let connections end by themselves after SIGTERM or SIGINT. Those that are left are
    /// reset, and the exit status is 3.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) drain_timeout: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| {
        "it is not a time; write a number and its unit, such as 500ms, 30s or 5m".into()
    })
}

/// Longer ones are mistakes, and at some length the clock overflows.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

fn time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be longer than zero".into()),
        time if time > LONGEST => Err("it is longer than a year; leave it out for no limit".into()),
        time => Ok(time),
    }
}
