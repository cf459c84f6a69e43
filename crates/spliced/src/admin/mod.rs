//! The control socket: how commands such as `spliced status`, and others such as curl, reach a process.
//!
//! It is JSON over HTTP/1.1 on a UNIX socket. A path is one entry of the table in [`routes`]; docs/control.md describes
//! what each one answers. The socket lies in a directory that only its owner may write to ([`run_directory`]). Since
//! somebody may have opened its file, the process also looks at who asks ([`peer`]).

mod answers;
mod client;
mod clients;
mod control_socket;
mod directories;
mod facts;
mod found;
mod line;
mod name;
mod peer;
mod place;
mod refusal;
mod reserve;
mod routes;
mod run_directory;
mod server;
mod single;
mod socket;
mod taken;

use anyhow::Result;
use serde_json::Value;
use tokio::sync::oneshot;

pub(crate) use self::client::{Answer, Failure, ask};
pub(crate) use self::control_socket::ControlSocket;
pub(crate) use self::facts::{Facts, inode};
pub(crate) use self::found::all as found;
pub(crate) use self::refusal::NoListener;
pub(crate) use self::routes::{RELOAD_WITHIN, path_of_server, path_of_sessions};
pub(crate) use self::single::Single;
pub(crate) use self::socket::{AdminSocket, warn_unreachable};
use crate::backend::Order;
use crate::cli::Level;
use crate::sessions::About;

/// What a client asks of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Listeners and backends. What is known of the process comes with the answer.
    Status,
    Listeners,
    Backends,
    Sessions(About),
    /// About a server of a backend.
    Order(Order),
    /// A listener of this name takes no new clients.
    Drain(String),
    /// It takes clients again.
    Undrain(String),
    /// What is logged, from now on this.
    Log(Option<Level>),
    Reload,
}

impl Request {
    /// Whether the answer waits for the main thread, which a reload may keep busy with names.
    pub(crate) fn needs_main_thread(&self) -> bool {
        match self {
            Self::Backends | Self::Order(_) | Self::Log(_) => false,
            Self::Status
            | Self::Listeners
            | Self::Sessions(_)
            | Self::Drain(_)
            | Self::Undrain(_)
            | Self::Reload => true,
        }
    }
}

/// A request, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) request: Request,
    /// Who asks, in words.
    pub(crate) by: String,
    pub(crate) answer: oneshot::Sender<Result<Value>>,
}
