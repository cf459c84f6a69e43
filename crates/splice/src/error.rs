//! The one error type of the library.

use std::borrow::Cow;
use std::fmt;
use std::io;

/// What kind of thing went wrong, for a program that wants to react to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An address that cannot be understood.
    InvalidAddress,
    /// A file descriptor that is not a connected stream socket of a supported kind.
    UnsupportedSocket,
    /// An engine that does not exist, or that cannot take this pair and was asked for by name.
    EngineRefused,
    /// The kernel side of an engine cannot be loaded or used here: a missing privilege, a kernel
    /// without BPF, or one that lacks a function.
    BpfRefused,
    /// An event loop that has ended, so that it takes no more pairs.
    LoopEnded,
    /// A system call that failed for a reason of its own; see [`Error::os_error`].
    System,
}

/// An error: what failed, where, and, where one exists, the operating system's reason.
///
/// [`fmt::Display`] prints the whole chain as one sentence.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: Cow<'static, str>,
    source: Option<io::Error>,
}

/// The library's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            context: context.into(),
            source: None,
        }
    }

    pub(crate) fn system(
        context: impl Into<Cow<'static, str>>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self {
            kind: ErrorKind::System,
            context: context.into(),
            source: Some(source.into()),
        }
    }

    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operating system's reason, when a system call was the cause.
    pub fn os_error(&self) -> Option<&io::Error> {
        self.source.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Adds what was being done to an operating system's error.
pub(crate) trait Context<T> {
    fn context(self, what: impl Into<Cow<'static, str>>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Into<Cow<'static, str>>) -> Result<T> {
        self.map_err(|error| Error::system(what, error))
    }
}
