//! iptables-legacy: reads its tables by getsockopt(2).

mod parse;
mod socket;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use crate::rule::Table;
use crate::segment::Family;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

/// The lists of tables of a network namespace. Only root can open them; reading them afterwards needs no
/// privilege, and no descriptor.
#[derive(Debug)]
pub(crate) struct Names {
    v4: List,
    v6: List,
}

/// The list of one family.
#[derive(Debug)]
struct List {
    family: Family,
    path: &'static str,
    /// `None` as long as the module is not loaded.
    file: Option<File>,
    /// What its tables are asked for by; `None` on a host without the family.
    socket: Option<OwnedFd>,
}

/// Why the tables cannot be read.
#[derive(Debug)]
pub(crate) enum Error {
    /// The list of tables: its path, and why.
    List(&'static str, io::Error),
    /// A table that is listed.
    Table(&'static str, String, io::Error),
    /// There is no socket to ask by.
    Socket(io::Error),
    /// A table that is malformed: what is wrong with it.
    Malformed(&'static str, String, &'static str),
}

/// The lists of this thread's network namespace, which may differ from that of the process.
const NETWORK: &str = "/proc/thread-self/net";
const IPV4_NAMES: &str = "/proc/thread-self/net/ip_tables_names";
const IPV6_NAMES: &str = "/proc/thread-self/net/ip6_tables_names";

/// The table of address translation, which sees only the first packet of a connection.
pub(crate) const NAT: &str = "nat";

impl Names {
    /// Opens the lists of this thread's network namespace. A family whose module is not loaded has none.
    pub(crate) fn open() -> Result<Self, Error> {
        Ok(Self {
            v4: List::open(Family::Ipv4, IPV4_NAMES)?,
            v6: List::open(Family::Ipv6, IPV6_NAMES)?,
        })
    }

    /// Reads all tables, `nat` without its rules. Call it in the network namespace in which the lists were
    /// opened. It needs `CAP_NET_ADMIN` there, unless there are no tables.
    ///
    /// It requests listed tables only, because a request would create a table that does not exist.
    pub(crate) fn tables(&mut self) -> Result<Vec<Table>, Error> {
        let mut tables = self.v4.tables()?;
        tables.extend(self.v6.tables()?);
        Ok(tables)
    }
}

impl List {
    fn open(family: Family, path: &'static str) -> Result<Self, Error> {
        let socket = match socket::for_tables(family) {
            Ok(socket) => Some(socket),
            Err(Errno::AFNOSUPPORT) => None,
            Err(errno) => return Err(Error::Socket(errno.into())),
        };
        Ok(Self {
            family,
            path,
            file: open(path)?,
            socket,
        })
    }

    fn tables(&mut self) -> Result<Vec<Table>, Error> {
        // The module may have been loaded since. Opening a file takes a descriptor even if there is no such file
        // (`do_sys_openat2`).
        if self.file.is_none() && Path::new(self.path).exists() {
            self.file = open(self.path)?;
        }
        let (Some(file), Some(socket)) = (&self.file, &self.socket) else {
            return Ok(Vec::new());
        };
        let names = list(file).map_err(|error| Error::List(self.path, error))?;
        let tables = names.lines().map(|name| match name {
            NAT => Ok(without_rules(self.family, name)),
            name => table(socket, self.family, name),
        });
        tables.collect()
    }
}

fn program(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    }
}

fn without_rules(family: Family, name: &str) -> Table {
    Table {
        family: program(family),
        name: name.into(),
        chains: Vec::new(),
    }
}

fn table(socket: impl AsFd, family: Family, name: &str) -> Result<Table, Error> {
    let program = program(family);
    let blob = socket::read(socket, family, name)
        .map_err(|error| Error::Table(program, name.into(), error))?;
    parse::table(family, name, &blob).map_err(|what| Error::Malformed(program, name.into(), what))
}

fn open(path: &'static str) -> Result<Option<File>, Error> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        // If /proc is mounted, the module is not loaded.
        Err(error) if error.kind() == io::ErrorKind::NotFound && Path::new(NETWORK).is_dir() => {
            Ok(None)
        }
        Err(error) => Err(Error::List(path, error)),
    }
}

/// Reads a file of `/proc` from its start, whatever has been read before.
fn list(file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        match file.read_at(&mut part, bytes.len() as u64) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Error {
    /// Of the system call that has failed.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Self::List(_, error) | Self::Table(_, _, error) | Self::Socket(error) => {
                Errno::from_io_error(error)
            }
            Self::Malformed(..) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(path, error) => write!(
                f,
                "cannot read {path}: {error}; this needs root or CAP_DAC_READ_SEARCH"
            ),
            Self::Table(program, table, error) => write!(
                f,
                "cannot read the {program} table {table}: {error}; this needs CAP_NET_ADMIN"
            ),
            Self::Socket(error) => {
                write!(f, "cannot ask for the tables of iptables-legacy: {error}")
            }
            Self::Malformed(program, table, what) => {
                write!(f, "cannot understand the {program} table {table}: {what}")
            }
        }
    }
}

impl std::error::Error for Error {}
