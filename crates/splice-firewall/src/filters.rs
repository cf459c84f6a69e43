//! All packet filters of one network namespace, as they were at one moment.

use std::fmt;
use std::io;

use crate::netlink::{DumpError, Socket};
use crate::nft;
use crate::rule::Table;
use crate::segment::{Connection, Hook};
use crate::verdict::Verdict;
use crate::walk;

/// The packet filters of one network namespace at one moment.
#[derive(Debug)]
pub struct Filters {
    tables: Vec<Table>,
}

/// Why the filters cannot be read.
#[derive(Debug)]
pub struct ReadError {
    what: &'static str,
    source: io::Error,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be read: {}", self.what, self.source)
    }
}

impl std::error::Error for ReadError {}

impl Filters {
    /// Reads the filters of this thread's network namespace.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, or when the rules change faster than they can be read.
    pub fn read() -> Result<Self, ReadError> {
        let failed = |source| ReadError {
            what: "the rules of nftables",
            source,
        };
        let mut socket = Socket::new().map_err(failed)?;
        let (tables, _) = nft::read(&mut socket).map_err(|error| match error {
            DumpError::Changed => failed(io::Error::other("they change all the time")),
            DumpError::System(error) => failed(error),
        })?;
        Ok(Self { tables })
    }

    /// What they would do with the segments of a connection, in both directions.
    pub fn judge(&self, connection: &Connection) -> Verdict {
        let mut verdict = Verdict::Accepts;
        for table in &self.tables {
            for hook in Hook::ALL {
                verdict = verdict.worse(walk::judge(table, connection, hook));
            }
        }
        verdict
    }
}
