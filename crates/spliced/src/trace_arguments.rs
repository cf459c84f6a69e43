//! The arguments of `spliced trace`.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "the comments are the program's help, where [::1] is an address"
)]

use std::str::FromStr;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use splice::EngineName;
use splice::trace::{ConnectionFilter, Means};

use crate::control_args::WhichArgs;
use crate::sections::{self, as_help};
use crate::session_filter::SessionFilter;

/// Show the way of one message through the functions of the kernel.
///
/// On its own, spliced makes connections on loopback, relays one message of 1000 bytes with each engine that works
/// here, and prints which functions of the socket layer each task called, when, for how long, and what they returned.
/// With --session, --listener or --filter it does so for a live session of 'spliced relay' or 'spliced run', and with
/// --connection for a connection of others: it waits for the next message. It changes nothing there and reads no
/// payload.
///
/// Times are microseconds after the first send. They include what the tracing itself takes: compare the
/// shapes of two trees, not their times with those of an untraced run.
#[derive(Args, Debug)]
#[command(
    after_long_help = as_help(sections::TRACE),
    group = ArgGroup::new("live").multiple(true).args(["connection", "session", "listener", "filter", "config", "control"])
)]
pub(crate) struct TraceArgs {
    /// The ways to trace, separated by commas [default: each that works here].
    #[arg(
        long,
        value_enum,
        value_name = "ENGINE",
        value_delimiter = ',',
        conflicts_with = "live"
    )]
    pub(crate) engine: Vec<Way>,

    /// Have the client, the relay and the server each in a network namespace of its own, and print Markdown: a table of what
    /// the ways come to, and the tree of each. Needs CAP_SYS_ADMIN, and ip(8).
    #[arg(long, conflicts_with = "live")]
    pub(crate) demo: bool,

    /// Trace a connection of others: the address of one end, or of both with - between (10.0.0.1:80, [::1]:80,
    /// :80, 10.0.0.1:80-10.0.0.2:5000), or the cookie of a socket (cookie:4711, cookie:0x1267). Up to 8 times: a relay has
    /// two connections.
    #[arg(long, value_name = "FILTER",
          conflicts_with_all = ["session", "listener", "filter", "config", "control"])]
    pub(crate) connection: Vec<Named>,

    /// Trace both connections of the session with this id, as 'spliced sessions' and the logs have it.
    #[arg(long, value_name = "ID", conflicts_with_all = ["listener", "filter"])]
    pub(crate) session: Option<u64>,

    /// Trace the session of this listener that was the last to move bytes: the same as --filter listener=NAME.
    #[arg(long, value_name = "NAME")]
    pub(crate) listener: Option<String>,

    /// Trace the session that was the last to move bytes of those whose field has this value, as with
    /// 'spliced sessions'. May be given several times; then all have to apply.
    #[arg(long, value_name = "FIELD=VALUE", value_parser = SessionFilter::parse)]
    pub(crate) filter: Vec<SessionFilter>,

    #[command(flatten)]
    pub(crate) which: WhichArgs,

    /// How many messages to trace, one after the other, each with a tree of its own [default: 1].
    #[arg(long, value_name = "N", requires = "live", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) messages: Option<u16>,

    /// How long to wait for each message [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = wait, requires = "live")]
    pub(crate) wait: Option<Duration>,

    /// Have the trace of a live connection look wherever that of a trial does. Everything on the host is slower meanwhile.
    #[arg(long, requires = "live")]
    pub(crate) full: bool,

    /// How long to attach programs; functions or tracepoints that have none then are named, and missing in the trees
    /// [default: 5s].
    #[arg(long, value_name = "TIME", value_parser = wait)]
    pub(crate) attach_within: Option<Duration>,

    /// How to observe the kernel: programs at the entries and exits of its functions, or at its tracepoints,
    /// where they read the stack of functions [default: functions for a trial or
    /// with --full, or stacks where the kernel forbids that; stacks otherwise].
    #[arg(long, value_enum, value_name = "MEANS")]
    pub(crate) means: Option<MeansChoice>,

    /// Print JSON: kernel; means; traces, each with engine (null for a connection of others), message, error, summary,
    /// lost and contexts. A context has task, thread, process, interrupted and calls; docs/trace.md has the fields of a
    /// call.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A connection as somebody names it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    Ends(ConnectionFilter),
    Cookie(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeansChoice {
    Functions,
    Stacks,
}

impl TraceArgs {
    /// Whether a session of a relay is asked for, or only its process.
    pub(crate) fn asks_for_session(&self) -> bool {
        self.session.is_some()
            || self.listener.is_some()
            || !self.filter.is_empty()
            || self.which.config.is_some()
            || self.which.control.is_some()
    }
}

impl Named {
    /// # Errors
    /// If no socket has the cookie.
    pub(crate) fn filter(&self) -> splice::Result<ConnectionFilter> {
        match self {
            Self::Ends(filter) => Ok(*filter),
            Self::Cookie(cookie) => ConnectionFilter::of_cookie(*cookie),
        }
    }
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(cookie) = text.strip_prefix("cookie:") else {
            let filter = text.parse::<ConnectionFilter>();
            return filter.map(Self::Ends).map_err(|error| error.to_string());
        };
        let number = match cookie.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => cookie.parse(),
        };
        number.map(Self::Cookie).map_err(|_| {
            format!("{cookie:?} is no cookie of a socket; write cookie:4711, or cookie:0x1267 as 'ss -e' shows it behind sk:")
        })
    }
}

impl MeansChoice {
    pub(crate) fn means(self) -> Means {
        match self {
            Self::Functions => Means::Functions,
            Self::Stacks => Means::Stacks,
        }
    }
}

/// Longer than anybody looks at a terminal for.
const WAIT_MOST: Duration = Duration::from_secs(24 * 3600);

fn wait(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|_| {
        "it is not a time; write a number and its unit, such as 500ms, 30s or 5m".to_owned()
    })?;
    match time {
        Duration::ZERO => Err("it must be longer than zero".into()),
        time if time > WAIT_MOST => Err("it is longer than a day".into()),
        time => Ok(time),
    }
}

/// A way from one socket to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// Without a relay, for comparison.
    Direct,
    /// A BPF program at the sender, SOCKMAP's "send to local": without TCP.
    SendToLocal,
    /// As 'spliced bypass' has it: from socket to socket, without TCP, and without a relay.
    Bypass,
    Copy,
    Pipe,
    Aio,
    Uring,
    Sockmap,
    Segment,
}

impl Way {
    pub(crate) const ALL: [Self; 9] = [
        Self::Direct,
        Self::SendToLocal,
        Self::Bypass,
        Self::Copy,
        Self::Pipe,
        Self::Aio,
        Self::Uring,
        Self::Sockmap,
        Self::Segment,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match (self, self.engine()) {
            (_, Some(engine)) => engine.as_str(),
            (Self::SendToLocal, _) => "send-to-local",
            (Self::Bypass, _) => "bypass",
            _ => "direct",
        }
    }

    /// The engine of the relay, if there is a relay.
    pub(crate) fn engine(self) -> Option<EngineName> {
        Some(match self {
            Self::Direct | Self::SendToLocal | Self::Bypass => return None,
            Self::Copy => EngineName::Copy,
            Self::Pipe => EngineName::Pipe,
            Self::Aio => EngineName::Aio,
            Self::Uring => EngineName::Uring,
            Self::Sockmap => EngineName::Sockmap,
            Self::Segment => EngineName::Segment,
        })
    }
}
