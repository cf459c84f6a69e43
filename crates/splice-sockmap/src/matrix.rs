//! The redirects of SOCKMAP between every two kinds of sockets, tried on this kernel.
//!
//! Each cell of a table is a trial with sockets of its own, and each table has one set of maps: a message is sent, and looked for at the place where the
//! redirect should have brought it, and at the place where it would be without. The programs answer the kernel
//! what its helpers answer, so a cell shows how the kernel fails.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use splice_base::error::{ErrorKind, Result};

use crate::look::look_until;
use crate::member::Pair;
use crate::{Failure, Link, MapType, Redirect, Redirections, SocketKind};

/// How long a message may take. On loopback it takes microseconds, and the kernel's worker must get a CPU.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to look for a message that the kernel says it has dropped.
const LOOK_FOR_LOST: Duration = Duration::from_millis(20);

/// How many links a table makes, each in a place of its own.
const CELLS: u32 = 36;

/// When a datagram is taken for lost. Also over loopback some get lost on a busy machine (seen on 6.18).
const SEND_AGAIN: Duration = Duration::from_millis(250);

/// How soon to look again.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// What is sent. Each trial has sockets of its own, so it needs no number.
const MESSAGE: &[u8] = b"a message of the matrix, to be found";

/// What a trial has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// The message arrived where the redirect sends it, whole and once.
    Yes,
    /// It did not; how it fails.
    No(Failure),
    /// The kernel did not take one of the sockets, or the trial failed in a way that is none of [`Failure`].
    Refused(String),
    /// This host cannot make such sockets.
    Untried(String),
}

/// One redirect with one type of map.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// The redirect.
    pub redirect: Redirect,
    /// The type of the maps.
    pub map_type: MapType,
    /// A row for each kind of source, with a cell for each kind of target, in the order of [`SocketKind::ALL`].
    pub rows: [[Cell; 6]; 6],
}

impl Table {
    /// The cell of a pair of kinds.
    pub fn cell(&self, source: SocketKind, target: SocketKind) -> &Cell {
        let index = |kind| {
            SocketKind::ALL
                .iter()
                .position(|one| *one == kind)
                // `ALL` has every kind.
                .unwrap_or_default()
        };
        &self.rows[index(source)][index(target)]
    }
}

impl Cell {
    /// What [`Redirect::supports`] makes one expect.
    pub fn expected(redirect: Redirect, source: SocketKind, target: SocketKind) -> Self {
        match redirect.supports(source, target) {
            Ok(()) => Self::Yes,
            Err(failure) => Self::No(failure),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("the message arrives"),
            Self::No(failure) => failure.fmt(f),
            Self::Refused(why) | Self::Untried(why) => f.write_str(why),
        }
    }
}

/// Tries every cell of the tables of these redirects with these types of maps, six kinds each way. All of them take some
/// seconds.
///
/// # Errors
/// [`ErrorKind::BpfRefused`] without the rights to use maps of sockets; it names them.
pub fn matrix(redirects: &[Redirect], map_types: &[MapType]) -> Result<Vec<Table>> {
    let untried = kinds_that_cannot_be_made();
    let mut tables = Vec::new();
    for &redirect in redirects {
        for &map_type in map_types {
            tables.push(Table {
                redirect,
                map_type,
                rows: rows(redirect, map_type, &untried)?,
            });
        }
    }
    Ok(tables)
}

type Untried = BTreeMap<&'static str, String>;

/// By their names, with the reason.
fn kinds_that_cannot_be_made() -> Untried {
    let kinds = SocketKind::ALL.into_iter();
    kinds
        .filter_map(|kind| Some((kind.name(), Pair::of(kind).err()?)))
        .collect()
}

fn rows(redirect: Redirect, map_type: MapType, untried: &Untried) -> Result<[[Cell; 6]; 6]> {
    // To load programs takes longer than all trials.
    let redirections = Redirections::raw(redirect, map_type, CELLS)?;
    let mut rows = [const { [const { Cell::Yes }; 6] }; 6];
    for (row, source) in rows.iter_mut().zip(SocketKind::ALL) {
        for (cell, target) in row.iter_mut().zip(SocketKind::ALL) {
            let missing = untried
                .get(source.name())
                .or_else(|| untried.get(target.name()));
            *cell = match missing {
                Some(why) => Cell::Untried(why.clone()),
                None => try_cell(&redirections, source, target)?,
            };
        }
    }
    Ok(rows)
}

/// One cell, with sockets of its own.
pub(crate) fn try_cell(
    redirections: &Redirections,
    source_kind: SocketKind,
    target_kind: SocketKind,
) -> Result<Cell> {
    // One after the other: a pair that cannot be made may cost all of its patience.
    let pairs = Pair::of(source_kind).and_then(|source| Ok((source, Pair::of(target_kind)?)));
    let (source, target) = match pairs {
        Ok(pairs) => pairs,
        Err(why) => return Ok(Cell::Untried(why)),
    };
    let linked = redirections.link_any(
        (source.member.as_fd(), source_kind),
        (target.member.as_fd(), target_kind),
    );
    let link = match linked {
        Ok(link) => link,
        Err(error) if error.kind() == ErrorKind::BpfRefused => return Err(error),
        Err(error) => return Ok(Cell::Refused(error.to_string())),
    };
    let is_lossy = [source_kind, target_kind].contains(&SocketKind::Udp);
    let redirect = redirections.plan().redirect;
    let cell = seen(redirect, is_lossy, &link, &source, &target);
    // The kernel removes closed sockets from the maps by itself; the maps go with their table.
    drop((source, target));
    link.forget();
    Ok(cell)
}

/// Sends a message, and looks where it comes out.
fn seen(redirect: Redirect, is_lossy: bool, link: &Link, source: &Pair, target: &Pair) -> Cell {
    let (sender, usual) = if redirect.is_of_sent() {
        (&source.member, &source.peer)
    } else {
        (&source.peer, &source.member)
    };
    let wanted = if redirect.is_to_local() {
        &target.member
    } else {
        &target.peer
    };
    match send(sender, MESSAGE, SendFlags::NOSIGNAL) {
        Ok(_) => {}
        Err(Errno::ACCESS) => return Cell::No(Failure::SendRefused),
        Err(errno) => return Cell::Refused(format!("send(2) fails: {errno}")),
    }
    let begun = Instant::now();
    let (mut lost_at, mut again_at) = (None, begun + SEND_AGAIN);
    let found = look_until(begun + PATIENCE, LOOK_AGAIN, || {
        let now = Instant::now();
        if is_lossy && now >= again_at {
            // It fails as the first one, or not.
            let _ = send(sender, MESSAGE, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            again_at = now + SEND_AGAIN;
        }
        if has(wanted) {
            return Some(Cell::Yes);
        }
        if has(usual) {
            return Some(Cell::No(Failure::NeverRuns));
        }
        if link.counters().passed_messages > 0 {
            // The program has answered SK_DROP. The kernel obeys before it does anything else.
            let until = *lost_at.get_or_insert_with(|| Instant::now() + LOOK_FOR_LOST);
            if now >= until {
                return Some(Cell::No(Failure::Lost));
            }
        }
        None
    });
    found.unwrap_or_else(|| {
        Cell::Refused("the message did not arrive in time, neither here nor there".into())
    })
}

/// Whether the message has come, and is whole. A stream may have it several times.
fn has(socket: impl AsFd) -> bool {
    let mut bytes = [0; 32 * MESSAGE.len()];
    match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((_, 0)) | Err(_) => false,
        Ok((_, length)) => bytes[..length]
            .chunks(MESSAGE.len())
            .all(|one| one == MESSAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own test has the same tables (tools/testing/selftests/bpf/prog_tests/sockmap_redir.c).
    #[test]
    fn this_kernel_does_what_the_tables_say() -> Result<()> {
        if !netlab::available(netlab::Need::Root) {
            return Ok(());
        }
        let tables = matrix(&Redirect::ALL, &MapType::ALL)?;
        assert_eq!(tables.len(), 8);
        let mut tried = 0;
        for table in &tables {
            for source in SocketKind::ALL {
                for target in SocketKind::ALL {
                    let (redirect, of) = (table.redirect, table.map_type.name());
                    match table.cell(source, target) {
                        Cell::Untried(why) => println!("{source} to {target}: {why}"),
                        cell => {
                            let expected = Cell::expected(redirect, source, target);
                            assert_eq!(*cell, expected, "{redirect}, {of}: {source} to {target}");
                            tried += 1;
                        }
                    }
                }
            }
        }
        assert!(
            tried >= 8 * 16,
            "all but VSOCK can be made everywhere: {tried}"
        );
        Ok(())
    }
}
