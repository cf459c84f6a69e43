//! Where a process has its control socket, who may ask there, and which processes a command asks.

use std::path::PathBuf;

use clap::Args;
use splice::Address;

use crate::file_access::group;

/// What is `None` is as `[process]` of the configuration says, or as it is built in.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlArgs {
    /// Path of the control socket, which commands such as 'spliced status' ask [default: PID.sock in
    /// $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/spliced, /run/user/UID/spliced, /run/spliced or /tmp/spliced-UID, the
    /// first that this user may write to; root begins with /run/spliced].
    ///
    /// Root and the user of the process may ask. Others may not write to the directory.
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,

    /// Group whose members may ask, too, a name or a number [default: none].
    #[arg(long, value_name = "GROUP", value_parser = group)]
    pub(crate) control_group: Option<u32>,

    /// Path of another socket that answers what only reads, and refuses what changes something [default: none].
    #[arg(long, value_name = "PATH")]
    pub(crate) control_read: Option<PathBuf>,

    /// Group whose members may read there, a name or a number [default: none].
    #[arg(long, value_name = "GROUP", value_parser = group)]
    pub(crate) control_read_group: Option<u32>,

    /// TCP address on which Prometheus reads what is counted, such as 127.0.0.1:9500. It answers GET /metrics and
    /// nothing else [default: none].
    #[arg(long, value_name = "ADDRESS", value_parser = metrics)]
    pub(crate) metrics: Option<Address>,
}

/// The processes to ask.
#[derive(Args, Debug)]
pub(crate) struct WhichArgs {
    /// Ask those that run this configuration, under this name or another one.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Ask the one with this control socket.
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub(crate) control: Option<PathBuf>,
}

impl ControlArgs {
    /// These, and what they leave open as in `others`.
    pub(crate) fn over(&self, others: Self) -> Self {
        Self {
            control: self.control.clone().or(others.control),
            control_group: self.control_group.or(others.control_group),
            control_read: self.control_read.clone().or(others.control_read),
            control_read_group: self.control_read_group.or(others.control_read_group),
            metrics: self.metrics.clone().or(others.metrics),
        }
    }
}

/// The address for metrics.
///
/// # Errors
/// If it is none of TCP.
pub(crate) fn metrics(text: &str) -> Result<Address, String> {
    Address::of_tcp(text).map_err(|error| match text.starts_with("unix:") {
        true => format!("{error}; the control socket has the metrics, too"),
        false => error.to_string(),
    })
}
