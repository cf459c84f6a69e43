//! Why something is not to be had for a pair.

use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind};
use splice_base::shortage::is_shortage;

/// Why something is not to be had: it cannot be, or something is short for the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Failure {
    pub(in super::super) why: String,
    errno: Option<Errno>,
}

impl Failure {
    /// Whether it may be had a moment later.
    pub(in super::super) fn is_short(&self) -> bool {
        self.errno.is_some_and(is_shortage)
    }

    /// Adds what the user can do about it.
    pub(in super::super) fn with_remedy(self, remedy: &str) -> Self {
        Self {
            why: format!("{}; {remedy}", self.why),
            ..self
        }
    }

    /// The error of who needs it.
    pub(super) fn into_error(self) -> Error {
        let error = Error::new(ErrorKind::BpfRefused, self.why);
        match self.errno {
            Some(errno) => error.with_source(errno),
            None => error,
        }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            why: error.to_string(),
            errno: error.errno(),
        }
    }
}
