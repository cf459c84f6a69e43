//! What a bypass does, as its tables say.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;

use splice_base::error::Result;
use splice_bpf::types::{BypassEnd, BypassPair, bypass_state};
use splice_sockmap::Pins;

use super::pair::why_unfit;
use super::reason::{Obstacle, Reason};
use super::tables::{PINNED, Tables, end_address, peer_address, unread};

/// A bypass and its connections.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The process that owns it.
    pub owner: u32,
    /// Whether that lives.
    pub is_alive: bool,
    /// Connections that were not seen, since there was no room.
    pub missed: u64,
    /// Ends that have the same sequence numbers as others.
    pub conflicts: u64,
    /// Longer messages go over TCP.
    pub bulk_bytes: u32,
    /// Sockets in the map.
    pub members: usize,
    /// What connections that have ended have sent.
    pub ended: Sum,
    /// Connections between covered sockets, and ends whose peer was not seen.
    pub connections: Vec<Connection>,
}

/// Messages of several ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sum {
    /// All, whichever way they went.
    pub messages: u64,
    /// Those that were handed over.
    pub redirected_messages: u64,
    /// Their bytes.
    pub redirected_bytes: u64,
}

/// One connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Connection {
    /// The end that has connected.
    pub client: Option<End>,
    /// The end that has accepted.
    pub server: Option<End>,
    /// What is done with its messages.
    pub state: State,
    /// Why, if they go over TCP.
    pub reason: Option<Reason>,
    /// With [`Reason::Filter`]: which filter, where, and what it would do.
    pub filter: Option<String>,
}

/// What is done with the messages of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Only one end is a covered socket.
    Alone,
    /// They go over TCP.
    Tcp,
    /// They are redirected.
    Redirected,
    /// It leaves when everything that was redirected is read.
    Leaving,
}

/// One end of a connection, and what it has sent.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct End {
    /// Its own address.
    pub local: SocketAddr,
    /// What it takes for its peer's.
    pub remote: SocketAddr,
    /// The number of its control group's directory (its inode), once it was asked for.
    pub group: Option<u64>,
    /// The user of its socket, once it was asked for.
    pub user: Option<u32>,
    /// The process that has read from it last.
    pub process: Option<u32>,
    /// Messages since it was seen, whichever way they went.
    pub messages: u64,
    /// Those of them that were handed over.
    pub redirected_messages: u64,
    /// Their bytes.
    pub redirected_bytes: u64,
    /// Messages that a member has sent over TCP.
    pub passed_messages: u64,
    /// Their bytes.
    pub passed_bytes: u64,
    /// Of these, since too much was unread.
    pub full_messages: u64,
    /// Why its last message went over TCP, if it did, although the connection is redirected.
    pub obstacle: Option<Obstacle>,
    /// Handed over and not read.
    pub unread_bytes: u64,
    /// All that it has read, whichever way it came.
    pub received_bytes: u64,
}

impl Status {
    /// What all connections have sent, those that have ended and those that are there.
    pub fn sum(&self) -> Sum {
        let ends = (self.connections.iter()).flat_map(|of| [of.client, of.server]);
        ends.flatten().fold(self.ended, |sum, end| Sum {
            messages: sum.messages + end.messages,
            redirected_messages: sum.redirected_messages + end.redirected_messages,
            redirected_bytes: sum.redirected_bytes + end.redirected_bytes,
        })
    }
}

impl State {
    /// One word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Tcp => "tcp",
            Self::Redirected => "redirected",
            Self::Leaving => "leaving",
        }
    }
}

/// Reads what is pinned in a directory; `None` if nothing is.
///
/// # Errors
/// Without the rights.
pub fn status(directory: &Path) -> Result<Option<Status>> {
    let pins = Pins::at(directory, PINNED);
    if !pins.are_whole() {
        return Ok(None);
    }
    Tables::open(&pins).map(|tables| Some(of(&tables)))
}

pub(super) fn of(tables: &Tables) -> Status {
    let settings = tables.settings();
    let keys = tables.keys();
    Status {
        owner: settings.owner.load(Ordering::Relaxed),
        is_alive: tables.is_alive(),
        missed: settings.missed.load(Ordering::Relaxed),
        conflicts: settings.conflicts.load(Ordering::Relaxed),
        bulk_bytes: settings.bulk_bytes.load(Ordering::Relaxed),
        members: tables.members().len(),
        ended: Sum {
            messages: settings.ended_sends.load(Ordering::Relaxed),
            redirected_messages: settings.ended_redirected_messages.load(Ordering::Relaxed),
            redirected_bytes: settings.ended_redirected_bytes.load(Ordering::Relaxed),
        },
        connections: keys
            .into_iter()
            .filter_map(|key| {
                let mut connection = connection(&tables.pair(key)?);
                if connection.reason == Some(Reason::Filter) {
                    connection.filter = tables.explanation(key);
                }
                Some(connection)
            })
            .collect(),
    }
}

fn connection(pair: &BypassPair) -> Connection {
    let unread = unread(pair);
    let end = |role: usize| {
        let seen = pair.present & 1 << role != 0;
        seen.then(|| end(&pair.ends[role], unread[role]))
    };
    let state = match pair.state {
        _ if pair.present != 3 => State::Alone,
        bypass_state::ACTIVE => State::Redirected,
        bypass_state::UNFIT | bypass_state::LEAVING => State::Leaving,
        _ => State::Tcp,
    };
    let reason = match pair.state {
        bypass_state::UNFIT => Some(why_unfit(pair)),
        _ => Reason::of(pair.reason),
    };
    Connection {
        client: end(0),
        server: end(1),
        state,
        reason: reason.or_else(|| (state == State::Tcp).then_some(Reason::Young)),
        filter: None,
    }
}

fn end(of: &BypassEnd, unread_bytes: u64) -> End {
    End {
        local: end_address(of),
        remote: peer_address(of),
        group: (of.group != 0).then_some(of.group),
        user: (of.group != 0).then_some(of.user),
        process: (of.process != 0).then_some(of.process),
        messages: of.sends,
        redirected_messages: of.redirected_messages,
        redirected_bytes: of.redirected_bytes,
        passed_messages: of.passed_messages,
        passed_bytes: of.passed_bytes,
        full_messages: of.full_messages,
        obstacle: Obstacle::of(of.obstacle),
        unread_bytes,
        received_bytes: of.received_bytes,
    }
}
