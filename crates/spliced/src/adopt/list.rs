//! The sockets of a process: which of them can be adopted, why not, and which look like the two sides of one relayed
//! connection.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::{SocketAddrAny, getpeername, getsockname, sockopt};
use serde::Serialize;
use splice_base::socket_option::{self, Progress};
use splice_sockmap::SocketKind;

use super::owner::{Owner, all_places, processes};
use super::side::Side;
use crate::adopt_args::AdoptArgs;
use crate::refusal::WrongUsage;

/// How often the sockets are compared: a relay under load is seldom idle.
const LOOKS: usize = 20;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Debug, Serialize)]
struct List {
    pid: u32,
    name: String,
    sockets: Vec<Socket>,
    /// The descriptors of each pair.
    pairs: Vec<[u32; 2]>,
}

#[derive(Debug, Serialize)]
struct Socket {
    fd: u32,
    kind: &'static str,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    is_accepted: bool,
    /// What has arrived and the process has not read.
    unread_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// Why it cannot be adopted.
    refused: Option<String>,
}

/// Lists the sockets of the process that `args` name.
///
/// # Errors
/// If it cannot be looked at.
pub(super) fn print(args: &AdoptArgs) -> Result<()> {
    let [pid] = args.pid[..] else {
        return Err(WrongUsage::new(
            "without --fd the sockets of one process are listed: give --pid once; see 'spliced adopt --help'".into(),
        )
        .into());
    };
    let list = List::of(Owner(pid)).map_err(|error| WrongUsage::new(format!("{error:#}")))?;
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&list)?),
        false => list.table(),
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // If the reader has gone away, nobody misses the rest.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot print the list"),
    }
}

impl List {
    fn of(owner: Owner) -> Result<Self> {
        if !std::fs::exists(owner.path("")).unwrap_or(false) {
            bail!("there is no process {}", owner.0);
        }
        let name = owner.name();
        let found = owner.sockets().with_context(|| {
            format!("cannot look at {name}; run spliced as the same user, or with CAP_SYS_PTRACE")
        })?;
        let unfit = owner.refuse_unfit().err().map(|error| format!("{error:#}"));
        if let (true, Some(why)) = (found.is_empty(), &unfit) {
            bail!("{why}");
        }
        let places = all_places(&processes()?)?;
        let mut ports = BTreeSet::new();
        let mut sockets = Vec::new();
        let mut sides = BTreeMap::new();
        for (fd, inode) in found {
            let refused = match (&unfit, Side::of_fit(owner, fd)) {
                (Some(why), _) => Some(why.clone()),
                (None, Err(error)) => Some(format!("{error:#}")),
                (None, Ok(side)) => {
                    let places = places.get(&inode).map(Vec::as_slice).unwrap_or_default();
                    let refused = owner.refuse_shared(fd, places).err();
                    if refused.is_none() {
                        sides.insert(fd, side);
                    }
                    refused.map(|error| format!("{error:#}"))
                }
            };
            let socket = splice_sockmap::of_process(owner.0, fd).ok();
            if let Some(socket) = &socket
                && sockopt::socket_acceptconn(socket) == Ok(true)
                && let Some(local) = internet(getsockname(socket).ok())
            {
                ports.insert(local.port());
            }
            sockets.push(Socket::of(fd, socket.as_ref(), refused));
        }
        for socket in &mut sockets {
            let local = socket.local.filter(|_| socket.peer.is_some());
            socket.is_accepted = local.is_some_and(|local| ports.contains(&local.port()));
        }
        let is_accepted = |fd: u32| {
            let socket = sockets.iter().find(|socket| socket.fd == fd);
            socket.is_some_and(|socket| socket.is_accepted)
        };
        let mut pairs = pairs(&sides);
        for pair in &mut pairs {
            pair.sort_by_key(|fd| (!is_accepted(*fd), *fd));
        }
        // A relay connects for each connection that it accepts, and not to itself.
        pairs.retain(|[first, second]| {
            !is_accepted(*second) && !sides[first].is_peer_of(&sides[second])
        });
        Ok(Self {
            pid: owner.0,
            name: owner.command(),
            sockets,
            pairs,
        })
    }

    fn table(&self) -> String {
        let Self { pid, pairs, .. } = self;
        let address = |address: Option<SocketAddr>| {
            address.map_or_else(|| "-".into(), |address| address.to_string())
        };
        let mut rows =
            vec![["FD", "KIND", "LOCAL", "PEER", "UNREAD", "CAN BE ADOPTED"].map(String::from)];
        for socket in &self.sockets {
            rows.push([
                socket.fd.to_string(),
                socket.kind.into(),
                address(socket.local),
                address(socket.peer),
                socket.unread_bytes.to_string(),
                match &socket.refused {
                    None => "yes".into(),
                    Some(why) => format!("no: {why}"),
                },
            ]);
        }
        let widths: [usize; 6] =
            std::array::from_fn(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0));
        let mut text = String::new();
        for row in &rows {
            let cells = row.iter().zip(widths);
            let line: Vec<_> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", line.join("  ").trim_end());
        }
        match &pairs[..] {
            [] => {
                let _ = writeln!(
                    text,
                    "\nNo two of them have moved the same bytes at a moment when they were idle."
                );
            }
            pairs => {
                let _ = writeln!(text, "\nThese have moved the same bytes:");
                for [first, second] in pairs {
                    let _ = writeln!(
                        text,
                        "  spliced adopt --pid {pid} --fd {first} --fd {second}"
                    );
                }
            }
        }
        text
    }
}

impl Socket {
    fn of(fd: u32, socket: Option<&OwnedFd>, refused: Option<String>) -> Self {
        let kind = socket.and_then(|socket| SocketKind::of(socket).ok());
        let is_tcp = kind == Some(SocketKind::Tcp);
        let progress = socket.filter(|_| is_tcp);
        let progress = progress.and_then(|socket| socket_option::progress(socket).ok());
        Self {
            fd,
            kind: kind.map_or("other", SocketKind::name),
            local: internet(socket.and_then(|socket| getsockname(socket).ok())),
            peer: internet(socket.and_then(|socket| getpeername(socket).ok()).flatten()),
            is_accepted: false,
            unread_bytes: progress.map_or(0, |progress| progress.unread_bytes),
            read_bytes: progress.map_or(0, |progress| progress.read_bytes),
            written_bytes: progress.map_or(0, |progress| progress.written_bytes),
            refused,
        }
    }
}

fn internet(address: Option<SocketAddrAny>) -> Option<SocketAddr> {
    SocketAddr::try_from(address?).ok()
}

/// Two sockets each of which the process has written to what it has read from the other one, at each moment when both were
/// idle, and nobody else comes into question.
fn pairs(sides: &BTreeMap<u32, Side>) -> Vec<[u32; 2]> {
    let mut matched: BTreeMap<[u32; 2], bool> = BTreeMap::new();
    let mut before: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for _ in 0..LOOKS {
        let mut moved = BTreeMap::new();
        for (fd, side) in sides {
            if let Ok(Progress {
                read_bytes,
                written_bytes,
                ..
            }) = side.progress()
            {
                moved.insert(*fd, (read_bytes, written_bytes));
            }
        }
        let mut by_bytes: BTreeMap<(u64, u64), Vec<u32>> = BTreeMap::new();
        for (fd, bytes) in &moved {
            by_bytes.entry(*bytes).or_default().push(*fd);
        }
        let is_idle = |fd: &u32| before.get(fd) == moved.get(fd);
        for (pair, holds) in &mut matched {
            let [first, second] = pair.map(|fd| moved.get(&fd).copied());
            let agrees = first == second.map(|(read, written)| (written, read));
            *holds &= agrees || !pair.iter().all(is_idle);
        }
        for (fd, (read, written)) in &moved {
            let others = by_bytes.get(&(*written, *read)).map(Vec::as_slice);
            let rivals = by_bytes.get(&(*read, *written)).map_or(0, Vec::len);
            let is_own_reverse = read == written;
            if read + written == 0 {
                continue;
            }
            match others {
                Some([other]) if rivals == 1 && other > fd => {
                    matched.entry([*fd, *other]).or_insert(true);
                }
                // Both are in the same class.
                Some([one, other]) if is_own_reverse && one == fd => {
                    matched.entry([*one, *other]).or_insert(true);
                }
                _ => {}
            }
        }
        before = moved;
        thread::sleep(LOOK_EVERY);
    }
    let holding: Vec<_> = matched
        .into_iter()
        .filter_map(|(pair, holds)| holds.then_some(pair))
        .collect();
    let partners = |fd: u32| holding.iter().filter(|pair| pair.contains(&fd)).count();
    let is_only = |pair: &&[u32; 2]| pair.iter().all(|fd| partners(*fd) == 1);
    holding.iter().filter(is_only).copied().collect()
}
