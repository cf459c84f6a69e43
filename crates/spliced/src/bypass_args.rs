//! The arguments of `spliced bypass`.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "the comments are the program's help, where [::1] is an address"
)]

use std::path::PathBuf;

use clap::{Args, Subcommand};
use splice::bypass::{CaptureOptions, DEFAULT_PINS, Rule};
use splice::trace::ConnectionFilter;

use crate::sections::{self, as_help};

/// Have the connections between control groups of this host go from socket to socket, past the network stack.
///
/// Connections between processes of the groups are watched, also those that are there already. One that shows small
/// messages is redirected: what one process sends goes straight to the reader of the other one. Bulk stays on TCP. The
/// processes are not changed; docs/bypass.md says what they may notice. A signal or 'spliced bypass off' undoes it without
/// losing a byte. If this process is killed, everything goes over TCP; the next start or 'off' clears up.
///
/// Redirected messages pass no packet filter, tc program or tcpdump. Connections whose segments a filter on the way would
/// stop, change or count are left alone. The same page says what else is.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_long_help = as_help(sections::BYPASS))]
pub(crate) struct BypassArgs {
    #[command(subcommand)]
    pub(crate) action: Option<Action>,

    #[command(flatten)]
    pub(crate) start: StartArgs,

    #[command(flatten)]
    pub(crate) demo: DemoArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Show what it saves: round trips of a small message between network namespaces, by TCP and past it, with both redirects
    /// of sent messages, "send to local" and "send to egress". It makes namespaces and a control group, which go at the
    /// end, and takes some 10 s. Its pins have the name of --pins with -demo behind. Needs CAP_SYS_ADMIN, and ip(8).
    #[arg(long, conflicts_with_all = ["cgroup", "all", "allow", "deny", "bulk_bytes", "despite_fionread", "bypass_firewall"])]
    pub(crate) demo: bool,

    /// Print JSON: message_bytes, cpu, rounds, round_seconds and ways, each with way, redirect, has_proxy, round_trips,
    /// p50_us, p99_us, p50_of_tcp and redirected.
    #[arg(long, requires = "demo")]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Show the connections: both ends with process, control group and container, messages, bytes, rate, state and why.
    Status(StatusArgs),
    /// Write what is redirected to a file of packets, which Wireshark and tcpdump read.
    ///
    /// Each message is a TCP segment with the addresses of its connection as the client has them. Its sequence number is the
    /// one that it had if all had gone over TCP; there is no SYN and no FIN. What goes over TCP is not in the file, but on the
    /// devices. A signal ends the capture and completes the file. Messages that come faster than they can be written are
    /// lost; their number is told at the end and in the file.
    Capture(CaptureArgs),
    /// End it, whether its process lives or not.
    Off(PinsArgs),
}

#[derive(Args, Debug)]
pub(crate) struct StartArgs {
    /// The directory of a control group (version 2) whose processes, and those of the groups below it, are covered. Give it
    /// once or more often.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Vec<PathBuf>,

    /// Cover every process of this host: allows --cgroup to be the root.
    #[arg(long)]
    pub(crate) all: bool,

    /// Take only connections that match: conditions with commas between, as net:10.0.0.0/8,port:5432-5440,uid:70. With
    /// several of these options one has to match.
    #[arg(long, value_name = "RULE")]
    pub(crate) allow: Vec<Rule>,

    /// Leave connections alone that match. It counts more than --allow.
    #[arg(long, value_name = "RULE")]
    pub(crate) deny: Vec<Rule>,

    /// Longer messages go over TCP, and connections whose messages are longer on average. It is measured at the start if it
    /// is not given.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) bulk_bytes: Option<u32>,

    /// Start although FIONREAD does not count all that a redirected connection has to read, as on this kernel if the start
    /// is refused: programs that ask before they read may stall (Java and .NET do).
    #[arg(long)]
    pub(crate) despite_fionread: bool,

    /// Redirect connections although a packet filter, a tc program or a shaper on the way would stop, change or count their
    /// segments.
    #[arg(long)]
    pub(crate) bypass_firewall: bool,

    #[command(flatten)]
    pub(crate) pins: PinsArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct PinsArgs {
    /// Where it is pinned: a directory in a BPF file system, one for each bypass.
    #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_PINS)]
    pub(crate) pins: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Print JSON: owner, is_alive, bulk_bytes, members, missed, conflicts, messages, redirected_messages, redirected_bytes
    /// and connections, each with client, server, state and why.
    #[arg(long)]
    pub(crate) json: bool,

    /// Show it again each second until a signal comes.
    #[arg(long, conflicts_with = "json")]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) pins: PinsArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CaptureArgs {
    /// The file to write, in the format pcapng; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: PathBuf,

    /// Only this connection: the address of one end, or of both with - between (10.0.0.1:80, [::1]:80, :80,
    /// 10.0.0.1:80-10.0.0.2:5000).
    #[arg(long, value_name = "FILTER")]
    pub(crate) connection: Option<ConnectionFilter>,

    /// How many bytes of each message.
    #[arg(short, long, value_name = "BYTES", default_value_t = CaptureOptions::SNAP_MOST,
          value_parser = clap::value_parser!(u32).range(0..=i64::from(CaptureOptions::SNAP_MOST)))]
    pub(crate) snap_bytes: u32,

    /// End after so many messages.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// Also messages of redirected connections that went over TCP, as they were offered, with a comment that says so.
    #[arg(long)]
    pub(crate) with_passed: bool,

    #[command(flatten)]
    pub(crate) pins: PinsArgs,
}
