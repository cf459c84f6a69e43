//! How far a reader has come.

use std::fmt;

/// What a reader makes of the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// They are the beginning of a message of this protocol; more has to come.
    More,
    /// They are no message of this protocol, whatever follows.
    Other,
    /// They are a message of this protocol that breaks its rules, or is too long.
    Broken(Fault),
    /// The message is complete.
    Complete(T),
}

impl<T> Progress<T> {
    /// Applies `change` to a complete message.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Progress<U> {
        match self {
            Self::More => Progress::More,
            Self::Other => Progress::Other,
            Self::Broken(fault) => Progress::Broken(fault),
            Self::Complete(message) => Progress::Complete(change(message)),
        }
    }
}

/// Why a message cannot be used: part of a sentence, such as "the TLS hello has two server names".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault(pub &'static str);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
