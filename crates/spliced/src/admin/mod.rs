//! The control socket: how commands such as `spliced status`, and others such as curl, reach a process.
//!
//! It is JSON over HTTP/1.1 on a UNIX socket. A path is one entry of the table in [`routes`]; docs/control.md describes
//! what each one answers. The socket lies in a directory that only its owner may write to ([`run_directory`]). Since
//! somebody may have opened its file, the process also looks at who asks ([`peer`]).

mod answers;
mod candidates;
mod client;
mod clients;
mod control_socket;
mod directories;
mod facts;
mod found;
mod given;
mod group;
#[cfg(test)]
mod hostile;
mod line;
mod metrics_socket;
mod name;
mod path;
mod peer;
mod place;
mod refusal;
mod request;
mod reserve;
mod routes;
mod run_directory;
mod scraper;
mod scraping;
mod server;
mod socket;
mod taken;

use anyhow::Result;
use serde_json::Value;
use tokio::sync::oneshot;

pub(crate) use self::client::{Answer, Failure, ask};
pub(crate) use self::control_socket::ControlSocket;
pub(crate) use self::facts::{Facts, inode};
pub(crate) use self::found::all as found;
pub(crate) use self::group::check as check_groups;
pub(crate) use self::path::{path_of_server, path_of_sessions};
pub(crate) use self::refusal::{Ending, NoListener};
pub(crate) use self::request::Request;
pub(crate) use self::routes::RELOAD_WITHIN;
pub(crate) use self::socket::{AdminSocket, warn_unreachable};

/// A request, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) request: Request,
    /// Who asks, in words.
    pub(crate) by: String,
    pub(crate) answer: oneshot::Sender<Result<Value>>,
}
