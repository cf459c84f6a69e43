//! The command line.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "the comments are the program's help, where [::1] is an address"
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use splice::{Address, EngineChoice, KeepAlive, SocketName, UserTimeout};

use crate::access_log_args::AccessLogArgs;
use crate::adopt_args::AdoptArgs;
use crate::bypass_args::BypassArgs;
use crate::control_args::{ControlArgs, WhichArgs};
use crate::datagram_args::DatagramArgs;
use crate::file_access::FileAccess;
use crate::log_level::Level;
use crate::mesh_args::MeshArgs;
use crate::peer_timeouts::{PeerTimeouts, keepalive, user_timeout};
use crate::sections::{self, as_help};
use crate::server_args::{BackendsArgs, DrainArgs, UndrainArgs, WeighArgs};
use crate::session_args::{KillArgs, SessionsArgs, TopArgs};
pub(crate) use crate::time_text::{duration, time};
use crate::trace_arguments::TraceArgs;

/// Relay TCP and UNIX connections, inside the kernel where possible.
#[derive(Debug, Parser)]
#[command(
    name = "spliced",
    version = env!("SPLICED_VERSION"),
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Log level on standard error.
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

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Relay(RelayArgs),
    Run(RunArgs),
    Check(CheckArgs),
    Reload(ReloadArgs),
    Status(StatusArgs),
    Sessions(SessionsArgs),
    Kill(KillArgs),
    Top(TopArgs),
    Backends(BackendsArgs),
    Drain(DrainArgs),
    Undrain(UndrainArgs),
    Weigh(WeighArgs),
    Echo(EchoArgs),
    Mesh(MeshArgs),
    Adopt(AdoptArgs),
    Bypass(BypassArgs),
    Doctor(DoctorArgs),
    Matrix(MatrixArgs),
    Trace(TraceArgs),
}

/// Test which engines work on this host: copy, pipe, aio, uring, sockmap and segment.
///
/// The doctor tries each engine on sockets of its own and prints yes, or no with the reason and the
/// remedy. It also tests for known defects of the kernel, and shows what maps of sockets can do since which
/// kernel, and here, and which other features of kernels matter. It takes a second or two and leaves nothing
/// behind. Run it as the same user, with the same limits and capabilities, as the relay.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::DOCTOR))]
pub(crate) struct DoctorArgs {
    /// Print JSON: kernel; engines, each with engine, verdict (yes or no), reason and remedy; defects,
    /// each with name, present (null if it could not be tested) and reason; time_line, each with since, what,
    /// works (null if it could not be tried) and reason; features, with the same fields; segments, each reason with its count.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show which redirects of SOCKMAP work on this kernel, between which kinds of sockets.
///
/// There are four redirects: what a socket sends or receives goes to the reader or to the peer of another socket.
/// Each is tried with a message between every two of six kinds of sockets, with both types of maps. A "no" says how
/// the kernel fails. It takes some seconds and leaves nothing behind.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::MATRIX))]
pub(crate) struct MatrixArgs {
    /// Show the tables of this redirect only.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) redirect: Option<MatrixRedirect>,
    /// Show the tables of this type of map only.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) map: Option<MatrixMap>,
    /// Print JSON: kernel; tables, each with redirect, map and cells; each cell with source, target, works (null if it
    /// could not be tried) and reason.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A redirect of `spliced matrix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MatrixRedirect {
    /// What a socket sends, to the reader of the target.
    SendToLocal,
    /// What a socket sends, to the peer of the target.
    SendToEgress,
    /// What a socket receives, to the peer of the target.
    IngressToEgress,
    /// What a socket receives, to the reader of the target.
    IngressToLocal,
}

/// A type of map of `spliced matrix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MatrixMap {
    /// An array.
    Sockmap,
    /// A hash table.
    Sockhash,
}

/// Report every mistake in a configuration file, and what the file does on this host.
///
/// Standard error gets a line for each mistake and each warning, with file, line and column. If there are no
/// mistakes, standard output says for each listener which engines its connections use and which connections cannot be
/// spliced, and for each backend its addresses and whether the source address of the servers' answers leads back here.
///
/// The check resolves every name, at most 10 seconds in all. It opens no listening socket and connects to no
/// server. Run it as the same user, with the same capabilities, as 'spliced run'.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::CHECK))]
pub(crate) struct CheckArgs {
    /// The configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Print JSON: mistakes and warnings with their places, and what was found of engines, listeners and backends.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Accept connections on LISTEN and relay each to TARGET.
///
/// An address is 127.0.0.1:80, [::1]:80, :80 (listen: every local address; connect: this host's
/// loopback), host:port (every address of the name, tried 250 ms apart or as soon as one fails),
/// unix:/path or unix:@abstract. localhost is 127.0.0.1 and [::1].
///
/// Datagrams are relayed between udp:HOST:PORT and unixgram:/path (or unixgram:@abstract), in any
/// combination. Each client has a session: a socket of its own to the target, which ends after
/// --idle-timeout (default: 30s). seqpacket:/path and vsock-seqpacket:CID:PORT keep messages apart, too, and
/// have connections. vsock:CID:PORT is a stream (vsock::PORT listens for every CID); it is joined with any
/// stream by copying. docs/datagrams.md says more.
///
/// If the name in TARGET does not resolve, the relay starts, resets its clients and asks again until the
/// name resolves. The relay refuses a TARGET that is the relay itself, also if a name resolves to it
/// later.
///
/// Logging never blocks traffic. If a reader stalls or a disk is full, up to 16384 lines wait; further
/// lines are dropped and counted, and a warning reports the number. When the relay ends, it waits for the
/// access log as long as the drain timeout lasts, but at least one second, and one second for standard
/// error.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::RELAY))]
pub(crate) struct RelayArgs {
    /// The address to accept connections on.
    pub(crate) listen: SocketName,

    /// The address to connect each client to.
    pub(crate) target: SocketName,

    /// The engine that moves the bytes: auto, copy (read and write), pipe (splice(2)), aio (Linux AIO, for
    /// comparison), uring (io_uring(7)), or BPF programs in the kernel: sockmap (redirect) or segment
    /// (translate TCP segments).
    ///
    /// auto starts with copy and uses pipe for bulk. If it can load the BPF program, it tries segment for
    /// a connection that has moved 64 KiB or lives for 50 ms. An engine that is asked for by name is used,
    /// or the relay refuses to start. copy, pipe, aio and uring move every byte from the first on; pipe
    /// copies bytes while it cannot get a pipe. sockmap and segment take over from copy: sockmap leaves
    /// the first 20 ms, bulk and slow receivers to copy, segment all bytes before its change-over. The
    /// access log names sockmap or segment only if the engine moved bytes, and says how many were copied.
    ///
    /// uring needs Linux 5.19 and is fastest from 6.10 on. The relay refuses it where io_uring is
    /// forbidden (kernel.io_uring_disabled, or the seccomp filter of a container). auto never uses uring.
    ///
    /// sockmap and segment join TCP with TCP and need CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. auto never
    /// uses sockmap, which is for small messages: bulk may cause one retransmission when it starts. If
    /// segment is asked for by name and cannot take a connection, that is copied if the network or a peer is
    /// in the way (routes, segment sizes), and reset with a warning if this host is: its packet filters or
    /// the relay's own sockets. If LISTEN and TARGET have no address family in common, the relay refuses to
    /// start. 'spliced doctor' shows which engines work on
    /// this host.
    #[arg(long, default_value_t, value_name = "ENGINE")]
    pub(crate) engine: EngineChoice,

    /// Let segment bypass the packet filters of this host (nftables, iptables, BPF programs of its control
    /// group), whatever their rules say.
    ///
    /// By default a connection is spliced only if the filters accept its segments and do nothing else with
    /// them, such as logging, marking or limiting. If new rules may stop a spliced connection, it goes back
    /// to its sockets and is copied. Anonymous counters do not count spliced segments.
    #[arg(long)]
    pub(crate) bypass_firewall: bool,

    /// Translate new connections from their SYN on, so that they cost no socket. Every client that this cannot be done
    /// for begins with sockets, as without this option.
    ///
    /// It needs what segment needs, a target on another host, and packet filters that accept new connections of
    /// every client. The target sees source ports that the kernel gives to nobody else (the larger part of what
    /// net.ipv4.ip_local_port_range leaves over). The log says what stands in the way.
    #[arg(long)]
    pub(crate) from_syn: bool,

    /// Time to connect to the target, for all its addresses together [default: 5s].
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) connect_timeout: Option<Duration>,

    /// Reset a connection, or end a session of datagrams, after this time without traffic (500ms, 5m, 1h 30m)
    /// [default: never; of datagrams: 30s].
    ///
    /// Nobody is told of the end of a session. The next datagram of its client opens another one, so the target sees
    /// another port.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) idle_timeout: Option<Duration>,

    /// Once one side has ended its stream, reset the connection after this time without traffic from the
    /// other side [default: never].
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) half_close_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) datagrams: DatagramArgs,

    #[command(flatten)]
    pub(crate) access_log: AccessLogArgs,

    #[command(flatten)]
    pub(crate) life: LifeArgs,

    #[command(flatten)]
    pub(crate) control: ControlArgs,
}

/// Run the listeners, routes and backends of a configuration.
///
/// Each listener accepts connections, reads as much of the first bytes as its routes need, picks a server
/// and joins the two connections. docs/configuration.md describes the file. A file with mistakes is refused
/// with all of them, as by 'spliced check'.
///
/// SIGHUP or 'spliced reload' reads the file again. Open connections go on; a file with a mistake changes
/// nothing.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::RUN))]
pub(crate) struct RunArgs {
    /// The configuration, in TOML.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,

    #[command(flatten)]
    pub(crate) control: ControlArgs,
}

/// Have the process that runs a configuration read it again.
///
/// Prints why if nothing has changed. Without options, it reloads the only process with a configuration that this user
/// may ask, and refuses to choose among several.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ASK))]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
}

/// Show connections, servers and counts of running processes.
///
/// Without options, it shows all processes that this user may ask: its own, and as root those of every user.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ASK))]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,

    /// Print JSON: a list of processes, each with socket, process, connections, listeners and backends, as
    /// docs/control.md describes them.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Accept connections on LISTEN and echo every byte: each connection is spliced to itself.
///
/// Addresses are those of 'spliced relay'. The bytes that a client has sent
/// and not yet read are bounded. The echo ends its stream after it has sent the client's last byte.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ECHO))]
pub(crate) struct EchoArgs {
    /// The address to accept connections on.
    pub(crate) listen: Address,

    /// The engine that moves the bytes: auto, copy (read and write), pipe (splice(2)), aio (one io_submit(2)
    /// reads and writes), uring (io_uring(7)), or sockmap (a BPF program redirects the bytes). An engine
    /// that needs two sockets is refused.
    #[arg(long, default_value_t, value_name = "ENGINE")]
    pub(crate) engine: EngineChoice,

    /// Poll the network device for up to 10 ms before sleeping: SO_BUSY_POLL on every connection, and the
    /// same for the event loops (from Linux 6.9 on). It needs a device with NAPI; loopback has none.
    #[arg(long)]
    pub(crate) busy_poll: bool,

    /// Reset a connection after this time without traffic (500ms, 5m, 1h 30m) [default: never].
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) idle_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) access_log: AccessLogArgs,

    #[command(flatten)]
    pub(crate) life: LifeArgs,

    #[command(flatten)]
    pub(crate) control: ControlArgs,
}

/// Limits and times that the relay and the echo have in common.
#[derive(Args, Debug)]
pub(crate) struct LifeArgs {
    /// Number of threads, each with its own event loop and listening socket [default: one per CPU].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// TCP keep-alive of both sockets: the time without a segment until a peer is asked for a sign of life,
    /// the time between two probes, and their number (30s, or 30s,10s,3), or off. What is left out is the
    /// system's [default: the system's times].
    ///
    /// Times are whole seconds up to 32767s, probes 1 to 127. It does not apply to UNIX sockets.
    #[arg(long, value_name = "IDLE[,INTERVAL[,PROBES]]|off", value_parser = keepalive)]
    pub(crate) keepalive: Option<KeepAlive>,

    /// Time that bytes sent to a peer may stay unacknowledged before TCP gives its connection up
    /// (TCP_USER_TIMEOUT), in milliseconds or more; 0s is as long as the system retransmits [default: 0s].
    ///
    /// It does not apply to UNIX sockets.
    #[arg(long, value_name = "TIME", value_parser = user_timeout)]
    pub(crate) user_timeout: Option<UserTimeout>,

    /// Maximum number of open connections; further clients wait in the listener's backlog
    /// [default: no limit].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: Option<u32>,

    /// Time for connections to end after SIGTERM or SIGINT. The relay resets those that are left and exits
    /// with status 3.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) drain_timeout: Duration,

    #[command(flatten)]
    pub(crate) file_access: FileAccess,
}

impl LifeArgs {
    pub(crate) fn peer_timeouts(&self) -> PeerTimeouts {
        let default = PeerTimeouts::default();
        PeerTimeouts {
            keepalive: self.keepalive.unwrap_or(default.keepalive),
            user_timeout: self.user_timeout.unwrap_or(default.user_timeout),
        }
    }
}
