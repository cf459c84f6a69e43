//! A snapshot of all packet filters of one network namespace.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::hooks::{HookPlace, Registry, UnknownHook, classify};
use crate::legacy::{self, Names};
use crate::netlink::{DumpError, Socket};
use crate::nft;
use crate::rule::Table;
use crate::segment::{Connection, Device, Direction, Family, Forwarded, Hook, Segment};
use crate::verdict::{Reason, Verdict};
use crate::walk;

/// Reads the packet filters of one network namespace, any number of times.
#[derive(Debug)]
pub struct Reader {
    rules: Socket,
    /// The lists of tables, or why they cannot be read.
    names: Result<Names, String>,
}

/// A snapshot of the packet filters of one network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filters {
    nft: nft::Ruleset,
    /// The tables of iptables-legacy, or why they are not known; the kernel's hooks show if there are any.
    legacy: Result<Vec<Table>, String>,
}

/// Is notified when the rules of nftables change. iptables-legacy has no notifications.
#[derive(Debug)]
pub struct Changes(Socket);

/// Why the rules of nftables cannot be read.
#[derive(Debug)]
pub struct ReadError(io::Error);

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read the rules of nftables: {}", self.0)?;
        match self.0.kind() {
            io::ErrorKind::PermissionDenied => f.write_str("; this needs CAP_NET_ADMIN"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<DumpError> for ReadError {
    fn from(error: DumpError) -> Self {
        Self(match error {
            DumpError::Changed => io::Error::other("they change faster than they can be read"),
            DumpError::System(error) => error,
            DumpError::Answer(errno) => errno.into(),
        })
    }
}

impl Reader {
    /// A reader for this thread's network namespace. Only root can open the lists of iptables-legacy's
    /// tables, so this opens them; reading them later needs no privilege.
    ///
    /// # Errors
    /// If no netlink socket can be created.
    pub fn new() -> Result<Self, ReadError> {
        Ok(Self {
            rules: Socket::new().map_err(ReadError)?,
            names: Names::open().map_err(|error| error.to_string()),
        })
    }

    /// Reads all filters. Call it in the network namespace in which the reader was created.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, or if the rules change faster than they can be read.
    pub fn read(&mut self) -> Result<Filters, ReadError> {
        Ok(Filters {
            nft: nft::read(&mut self.rules)?,
            legacy: self.legacy(),
        })
    }

    fn legacy(&self) -> Result<Vec<Table>, String> {
        let names = self.names.as_ref().map_err(String::clone)?;
        names.tables().map_err(|error| error.to_string())
    }

    /// Reads the filters again; `None` if nothing has changed. `changed` says whether [`Changes`] reported a
    /// change; otherwise this reads iptables-legacy only, which is cheap without tables.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_again(
        &mut self,
        filters: &Filters,
        changed: bool,
    ) -> Result<Option<Filters>, ReadError> {
        let is_old = changed && nft::generation(&mut self.rules)? != filters.nft.generation;
        let legacy = self.legacy();
        if !is_old && legacy == filters.legacy {
            return Ok(None);
        }
        Ok(Some(Filters {
            nft: if is_old {
                nft::read(&mut self.rules)?
            } else {
                filters.nft.clone()
            },
            legacy,
        }))
    }
}

impl Changes {
    /// Notifications for this thread's network namespace, from now on.
    ///
    /// # Errors
    /// If no netlink socket can be created.
    pub fn new() -> io::Result<Self> {
        Socket::listening().map(Self)
    }

    /// Reads all pending notifications. Returns whether anything may have changed.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn any(&mut self) -> io::Result<bool> {
        self.0.drain()
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Filters {
    /// Reads the filters of this thread's network namespace.
    ///
    /// # Errors
    /// As [`Reader::new`] and [`Reader::read`].
    pub fn read() -> Result<Self, ReadError> {
        Reader::new()?.read()
    }

    fn tables(&self) -> impl Iterator<Item = &Table> {
        self.nft.tables.iter().chain(self.legacy.iter().flatten())
    }

    /// Whether some rules may translate the addresses of new connections.
    pub fn translates(&self) -> bool {
        self.nft.translates
            || self
                .legacy
                .iter()
                .flatten()
                .any(|table| table.name == legacy::NAT)
    }

    /// What the filters would do with the segments of a connection, in both directions.
    pub fn judge(&self, connection: &Connection) -> Verdict {
        let mut verdict = self.unless_new(connection.tracked);
        let marks_are_set = self.nft.may_mark(connection);
        for table in self.tables().filter(|table| table.has(connection.family)) {
            for hook in Hook::OWN {
                verdict = verdict.worse(walk::judge(table, hook, |priority| {
                    Segment::at(connection, hook, priority, marks_are_set)
                }));
            }
        }
        verdict
    }

    /// What the filters would do with the segments of a connection that is forwarded, in both directions.
    pub fn judge_forwarded(&self, connection: &Forwarded) -> Verdict {
        let verdict = self.unless_new(connection.tracked);
        let is_met = |table: &&Table| table.has(connection.family);
        self.worst_of(is_met, connection, &Hook::FORWARDED, verdict)
    }

    /// What the filters would do with the frames of a connection that pass bridges here, in both directions.
    pub fn judge_bridged(&self, connection: &Forwarded) -> Verdict {
        let connection = Forwarded {
            // Connection tracking on bridges has entries of its own.
            tracked: false,
            // The rules see ports.
            devices: [None, None],
            ..connection.clone()
        };
        let hooks = [
            Hook::Prerouting,
            Hook::Input,
            Hook::Forward,
            Hook::Output,
            Hook::Postrouting,
        ];
        let is_met = |table: &&Table| table.is_of_bridges();
        self.worst_of(is_met, &connection, &hooks, Verdict::Accepts)
    }

    /// What the filters at `ingress` and `egress` of a device would do with a connection's segments, in both
    /// directions.
    pub fn judge_on_device(&self, connection: &Forwarded, device: &Device) -> Verdict {
        let connection = Forwarded {
            devices: [Some(device.clone()), Some(device.clone())],
            ..connection.clone()
        };
        let is_met = |table: &&Table| table.has(connection.family);
        let hooks = [Hook::Ingress, Hook::Egress];
        self.worst_of(is_met, &connection, &hooks, Verdict::Accepts)
    }

    /// Whether packets of an established connection would get other addresses if they counted as new.
    fn unless_new(&self, is_tracked: bool) -> Verdict {
        if self.translates() && !is_tracked {
            return Verdict::Unknown(Reason {
                place: None,
                why: "address translation would take it for a new connection, since connection \
                      tracking does not know it"
                    .into(),
            });
        }
        Verdict::Accepts
    }

    fn worst_of(
        &self,
        is_met: impl Fn(&&Table) -> bool,
        connection: &Forwarded,
        hooks: &[Hook],
        mut verdict: Verdict,
    ) -> Verdict {
        let marks_are_set = !self.nft.marks_elsewhere.is_empty();
        for table in self.tables().filter(is_met) {
            for hook in hooks {
                for direction in [Direction::ToServer, Direction::ToClient] {
                    verdict = verdict.worse(walk::judge(table, *hook, |priority| {
                        Segment::forwarded(connection, direction, *hook, priority, marks_are_set)
                    }));
                }
            }
        }
        verdict
    }

    /// Checks that every hook of `passed` which the kernel calls for connections of a family, on the device of
    /// `registry`, belongs to a known filter or is harmless.
    ///
    /// # Errors
    /// The first hook that does not, as a sentence.
    pub fn account_for(
        &self,
        registry: &Registry,
        family: Family,
        passed: &[Hook],
        device: &str,
    ) -> Result<(), String> {
        let chains_at = |place: HookPlace| {
            let tables = self.nft.tables.iter();
            let bases = tables
                .filter(|table| table.has(family))
                .flat_map(|table| &table.chains)
                .filter_map(|chain| chain.base.as_ref());
            bases
                .filter(|base| HookPlace::of(family, base.hook) == place)
                .filter(|base| base.is_on(device))
                .count()
        };
        let has_table = |name: &str| {
            let program = match family {
                Family::Ipv4 => "iptables",
                Family::Ipv6 => "ip6tables",
            };
            let mut tables = self.legacy.iter().flatten();
            tables.any(|table| table.family == program && table.name == name)
        };
        classify(registry, family, passed, chains_at, has_table).map_err(|unknown| {
            match (&unknown, &self.legacy) {
                (UnknownHook::Table { .. }, Err(why)) => format!("{unknown}; {why}"),
                _ => unknown.to_string(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn an_error_names_the_capability_only_if_it_is_missing() {
        let said = |error| ReadError::from(error).to_string();
        let forbidden = DumpError::Answer(Errno::PERM);
        assert!(said(forbidden).ends_with("this needs CAP_NET_ADMIN"));
        assert_eq!(
            said(DumpError::Changed),
            "cannot read the rules of nftables: they change faster than they can be read"
        );
    }
}
