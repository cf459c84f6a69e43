//! A snapshot of all packet filters of one network namespace.

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::io::Errno;
use splice_base::shortage::{Shortage, is_shortage};

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
    shortage: Shortage,
    /// A shortage has kept the rules of nftables from being read, which may have changed.
    is_due: bool,
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

/// Why the packet filters cannot be read.
#[derive(Clone, Debug)]
pub struct ReadError {
    why: String,
    errno: Option<Errno>,
    /// It is a shortage, which has lasted for so short a time that what was read before still counts.
    is_borne: bool,
}

impl ReadError {
    /// Whether to go on with what was read before, and to read again soon: something is short for the moment.
    pub fn is_borne(&self) -> bool {
        self.is_borne
    }

    /// The error number of the system call that has failed, if one has.
    pub fn errno(&self) -> Option<Errno> {
        self.errno
    }

    fn is_short(&self) -> bool {
        self.errno.is_some_and(is_shortage)
    }

    fn of_rules(error: &io::Error) -> Self {
        let needs = match error.kind() {
            io::ErrorKind::PermissionDenied => "; this needs CAP_NET_ADMIN",
            _ => "",
        };
        Self {
            why: format!("cannot read the rules of nftables: {error}{needs}"),
            errno: Errno::from_io_error(error),
            is_borne: false,
        }
    }

    fn of_tables(error: &legacy::Error) -> Self {
        Self {
            why: error.to_string(),
            errno: error.errno(),
            is_borne: false,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for ReadError {}

impl From<DumpError> for ReadError {
    fn from(error: DumpError) -> Self {
        Self::of_rules(&match error {
            DumpError::Changed => io::Error::other("they change faster than they can be read"),
            DumpError::System(error) => error,
            DumpError::Answer(errno) => errno.into(),
        })
    }
}

impl Reader {
    /// A reader for this thread's network namespace. Only root can open the lists of iptables-legacy's
    /// tables, so this opens them; reading them later needs no privilege, and no descriptor.
    ///
    /// # Errors
    /// If no netlink socket can be created, or something is short for the moment.
    pub fn new() -> Result<Self, ReadError> {
        let rules = Socket::new().map_err(|error| ReadError::of_rules(&error))?;
        let mut shortage = Shortage::default();
        let names = Names::open();
        Ok(Self {
            rules,
            names: or_why(names, &mut shortage)?,
            shortage,
            is_due: false,
        })
    }

    /// Reads all filters. Call it in the network namespace in which the reader was created.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, or if the rules change faster than they can be read.
    pub fn read(&mut self) -> Result<Filters, ReadError> {
        let read = self.try_read();
        self.bear(read)
    }

    fn try_read(&mut self) -> Result<Filters, ReadError> {
        Ok(Filters {
            nft: nft::read(&mut self.rules)?,
            legacy: self.legacy()?,
        })
    }

    /// The tables, or why they cannot be read for long.
    fn legacy(&mut self) -> Result<Result<Vec<Table>, String>, ReadError> {
        match &mut self.names {
            Ok(names) => or_why(names.tables(), &mut self.shortage),
            Err(why) => Ok(Err(why.clone())),
        }
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
        let is_due = mem::take(&mut self.is_due) || changed;
        let read = self.try_read_again(filters, is_due);
        let read = self.bear(read);
        self.is_due = is_due && read.as_ref().is_err_and(ReadError::is_borne);
        read
    }

    fn try_read_again(
        &mut self,
        filters: &Filters,
        is_due: bool,
    ) -> Result<Option<Filters>, ReadError> {
        let is_old = is_due && nft::generation(&mut self.rules)? != filters.nft.generation;
        let legacy = self.legacy()?;
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

    /// Says of a shortage whether it has lasted for too long.
    fn bear<T>(&mut self, read: Result<T, ReadError>) -> Result<T, ReadError> {
        match read {
            Err(error) if error.is_short() => Err(ReadError {
                is_borne: self.shortage.bears(Instant::now()),
                ..error
            }),
            read => {
                self.shortage.end();
                read
            }
        }
    }
}

/// What was read of iptables-legacy, or why it cannot be: the kernel's hooks show whether that matters. A shortage is no such
/// reason at first.
fn or_why<T>(
    read: Result<T, legacy::Error>,
    shortage: &mut Shortage,
) -> Result<Result<T, String>, ReadError> {
    match read {
        Err(error) if error.errno().is_some_and(is_shortage) && shortage.bears(Instant::now()) => {
            Err(ReadError::of_tables(&error))
        }
        read => Ok(read.map_err(|error| error.to_string())),
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
    use std::os::fd::OwnedFd;

    use netlink_packet_core::{NLMSG_ERROR, NetlinkBuffer};
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

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

    /// A reader on a kernel that answers as it is told.
    fn reader() -> (Reader, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (ours, kernel) = pair.expect("a pair");
        let reader = Reader {
            rules: Socket::of(ours),
            names: Err("not of interest".into()),
            shortage: Shortage::default(),
            is_due: false,
        };
        (reader, kernel)
    }

    /// The answer to the request of this number.
    fn answer(kernel: &OwnedFd, number: u32, errno: Errno) {
        let mut message = vec![0; 16];
        let payload = (-errno.raw_os_error()).to_ne_bytes();
        {
            let mut header = NetlinkBuffer::new(&mut message);
            header.set_length((16 + payload.len()) as u32);
            header.set_message_type(NLMSG_ERROR);
            header.set_sequence_number(number);
        }
        message.extend(payload);
        send(kernel, &message, SendFlags::empty()).expect("sent");
    }

    /// A change that was told of before counts once something is no longer short.
    #[test]
    fn rules_that_a_shortage_keeps_from_being_read_are_due() {
        let (mut reader, kernel) = reader();
        let filters = Filters {
            nft: nft::Ruleset::default(),
            legacy: Err("not of interest".into()),
        };
        answer(&kernel, 1, Errno::NOBUFS);
        let short = reader.read_again(&filters, true);
        assert!(short.is_err_and(|error| error.is_borne()));
        answer(&kernel, 2, Errno::PERM);
        let forbidden = reader.read_again(&filters, false);
        assert!(forbidden.is_err_and(|error| !error.is_borne()));
        // Nobody asks the kernel, which does not answer.
        assert!(matches!(reader.read_again(&filters, false), Ok(None)));
    }
}
