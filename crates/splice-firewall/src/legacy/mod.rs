//! iptables-legacy: reads its tables by getsockopt(2).

mod parse;
mod socket;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::rule::Table;
use crate::segment::Family;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

/// The lists of tables of a network namespace. Only root can open them; reading them afterwards needs no
/// privilege.
#[derive(Debug)]
pub(crate) struct Names {
    v4: Option<File>,
    v6: Option<File>,
}

/// Why the tables cannot be read.
#[derive(Debug)]
pub(crate) enum Error {
    /// The list of tables: its path, and why.
    List(&'static str, io::Error),
    /// A table that is listed.
    Table(&'static str, String, io::Error),
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
            v4: open(IPV4_NAMES)?,
            v6: open(IPV6_NAMES)?,
        })
    }

    /// Reads all tables, `nat` without its rules. Call it in the network namespace in which the lists were
    /// opened. It needs `CAP_NET_ADMIN` there, unless there are no tables.
    ///
    /// It requests listed tables only, because a request would create a table that does not exist.
    pub(crate) fn tables(&self) -> Result<Vec<Table>, Error> {
        let mut tables = Vec::new();
        for (family, path, file) in [
            (Family::Ipv4, IPV4_NAMES, &self.v4),
            (Family::Ipv6, IPV6_NAMES, &self.v6),
        ] {
            let names = match file {
                Some(file) => list(file),
                // The module may have been loaded since.
                None => open(path)?.as_ref().map_or(Ok(String::new()), list),
            }
            .map_err(|error| Error::List(path, error))?;
            for name in names.lines() {
                tables.push(match name {
                    NAT => without_rules(family, name),
                    name => table(family, name)?,
                });
            }
        }
        Ok(tables)
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

fn table(family: Family, name: &str) -> Result<Table, Error> {
    let program = program(family);
    let blob =
        socket::read(family, name).map_err(|error| Error::Table(program, name.into(), error))?;
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
            Self::Malformed(program, table, what) => {
                write!(f, "cannot understand the {program} table {table}: {what}")
            }
        }
    }
}

impl std::error::Error for Error {}
