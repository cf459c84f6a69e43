//! Why something is not to be had for a pair.

use splice_base::error::Error;
use splice_base::shortage::is_shortage;

/// Why something is not to be had: it cannot be, or something is short for the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Failure {
    pub(in super::super) why: String,
    /// It may be had a moment later.
    pub(in super::super) is_short: bool,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            why: error.to_string(),
            is_short: error.errno().is_some_and(is_shortage),
        }
    }
}
