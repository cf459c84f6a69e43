//! The command line of `spliced sessions`, `spliced kill` and `spliced top`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::control_args::WhichArgs;
use crate::sections::{self, as_help};
use crate::session_filter::SessionFilter;

/// Show the live sessions of running processes: who is connected with whom, by which engine, and how much passes.
///
/// Without options, it shows those of all processes that this user may ask: its own, and as root those of every user.
///
/// A session is a client's connection, from accept to its end. Bytes and the time since the last one are read where the
/// engine counts them, in the kernel, too. Each process is asked twice, half a second apart, for the rates. Nothing that
/// is shown wakes up or delays a session. docs/sessions.md has every column and field.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ASK))]
pub(crate) struct SessionsArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// What comes first [default: age].
    #[arg(long, value_enum, value_name = "BY")]
    pub(crate) sort: Option<SessionOrder>,
    /// Show only sessions whose field has this value. The fields are listener, client, server_name, backend, server,
    /// target, phase and engine. An address without its port stands for all ports. May be given several times; then all
    /// have to apply.
    #[arg(long, value_name = "FIELD=VALUE", value_parser = SessionFilter::parse)]
    pub(crate) filter: Vec<SessionFilter>,
    /// Print JSON: sessions, each with all its fields, and the process that has it.
    #[arg(long)]
    pub(crate) json: bool,
}

/// End a session, or all that a filter takes: client and server get a reset.
///
/// Without options, it ends the session with this id of the only process that has one, of those that this user may ask,
/// or the sessions that all filters take. If several processes have such sessions, it refuses to choose; with --config,
/// it ends those of all processes that run this file. After 'spliced drain', '--filter server=ADDRESS' ends what a server
/// still has.
///
/// Nobody is told of the end of a session of datagrams: the next one of its client opens another session.
///
/// The access log then has the outcome "ended by an operator". The command does not wait until the sessions have ended.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ASK))]
pub(crate) struct KillArgs {
    /// The session's id, as 'spliced sessions' and the logs have it.
    #[arg(required_unless_present = "filter", conflicts_with = "filter")]
    pub(crate) id: Option<u64>,
    /// End the sessions whose field has this value, as with 'spliced sessions'. May be given several times; then all have
    /// to apply.
    #[arg(long, value_name = "FIELD=VALUE", value_parser = SessionFilter::parse)]
    pub(crate) filter: Vec<SessionFilter>,
    #[command(flatten)]
    pub(crate) which: WhichArgs,
}

/// How long `spliced top` may wait between two questions, in seconds.
const DELAYS_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// Watch live sessions, servers and engines, on the whole terminal.
///
/// Three pages, by the keys 1, 2 and 3: the sessions with their rates; the servers of backends with their states and why;
/// how many sessions each engine has and why no faster one has them. Keys are those of htop: arrows, F3 searches, F4
/// filters, F6 sorts, F9 ends the session under the cursor after a question, F1 shows all keys, F10 or q ends. On the page
/// of servers, d drains, u undrains and w weighs the one under the cursor after a question. The cursor follows its session,
/// whatever the order.
///
/// Without options, it asks all processes that this user may ask: its own, and as root those of every user. Processes that
/// start and end meanwhile come and go. One that does not answer is named and delays nobody. docs/top.md says more.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::TOP))]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Seconds between two questions, from 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", value_parser = delay, default_value = "1")]
    pub(crate) delay: Duration,
    /// What comes first of the sessions.
    #[arg(long, value_enum, value_name = "BY", default_value = "rate")]
    pub(crate) sort: SessionOrder,
    /// Show only sessions whose field has this value, as with 'spliced sessions'. It may be given several times; then all
    /// have to apply.
    #[arg(long, value_name = "FIELD=VALUE", value_parser = SessionFilter::parse)]
    pub(crate) filter: Vec<SessionFilter>,
}

fn delay(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds| DELAYS_SECONDS.contains(seconds));
    let seconds = seconds.ok_or("it is not a number of seconds from 0.1 to 3600, such as 2")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SessionOrder {
    /// The highest rate.
    Rate,
    /// The most bytes.
    Bytes,
    /// The oldest session.
    Age,
    /// The longest time without a byte.
    Idle,
    /// The first name of a listener.
    Listener,
    /// The first address of a client.
    Client,
    /// The first address of a target.
    Target,
    /// The first name of an engine.
    Engine,
}
