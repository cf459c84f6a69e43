//! The command line of `spliced backends`, `drain`, `undrain` and `weigh`.

use std::time::Duration;

use clap::Args;

use crate::control_args::WhichArgs;
use crate::sections::{self, as_help};
use crate::time_text::time;
use crate::weight::weight;

/// Show the servers of running processes: state, why and since when, weight, sessions and last error.
///
/// Without options, it shows those of all processes that this user may ask: its own, and as root those of every user.
/// docs/control.md has every state and field.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ASK))]
pub(crate) struct BackendsArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,

    /// Print JSON: backends, each with its servers, all their fields, and the process that has them.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A server of running processes.
#[derive(Args, Debug)]
pub(crate) struct ServerArgs {
    /// The server, as 'spliced backends' shows it.
    pub(crate) server: String,

    /// The backend of the server, if several have one with this address.
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,

    #[command(flatten)]
    pub(crate) which: WhichArgs,
}

/// Give a server no new clients; those that it has go on.
///
/// Its checks go on, too, and clients that wait for it get another server. If no other one is left, clients are reset, and datagrams dropped.
/// The log says when its last connection has ended. It stays drained, also after a reload, until 'spliced undrain' or
/// until a reload changes what the configuration says of it (disabled), or removes it when it has no connections.
///
/// Without options, it drains the server of the only process that has it, of those that this user may ask. If several
/// have it, it refuses to choose; with --config, it drains it in all processes that run this file.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ASK))]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Return when its last connection has ended.
    #[arg(long)]
    pub(crate) wait: bool,

    /// Fail if that takes longer (30s, 1h 30m); the server stays drained [default: no limit].
    #[arg(long, value_name = "TIME", value_parser = time, requires = "wait")]
    pub(crate) timeout: Option<Duration>,
}

/// Give a drained or disabled server clients again.
///
/// It begins with less than its share, if its backend has slow_start. The process is chosen as by 'spliced drain'.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ASK))]
pub(crate) struct UndrainArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Change the weight of a server: its share of new clients.
///
/// With 0 it gets no new clients. The weight stands, also after a reload, until a reload changes the weight in the
/// configuration. The process is chosen as by 'spliced drain'.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ASK))]
pub(crate) struct WeighArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// The weight, from 0 to 256, relative to those of the other servers.
    #[arg(value_parser = weight)]
    pub(crate) weight: u16,
}
