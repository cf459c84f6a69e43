//! The one error type of the library.

use std::borrow::Cow;
use std::{fmt, io};

use rustix::io::Errno;

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
    /// What the sentence is about, said before all else.
    subject: Option<Cow<'static, str>>,
    context: Cow<'static, str>,
    source: Option<io::Error>,
    /// The last words of the kernel's verifier, or of the library that asked it.
    log: Option<Box<str>>,
    remedy: Option<Cow<'static, str>>,
}

/// The library's result.
pub type Result<T> = std::result::Result<T, Error>;

/// How the library makes errors. Hidden, since a program only reads them.
#[doc(hidden)]
impl Error {
    /// An error without a system call behind it.
    pub fn new(kind: ErrorKind, context: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            subject: None,
            context: context.into(),
            source: None,
            log: None,
            remedy: None,
        }
    }

    /// A system call failed.
    pub fn system(context: impl Into<Cow<'static, str>>, source: impl Into<io::Error>) -> Self {
        Self::new(ErrorKind::System, context).with_source(source)
    }

    /// Says first what the error is about: "engine uring cannot be used", for one.
    #[must_use]
    pub fn about(mut self, subject: impl Into<Cow<'static, str>>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Adds the operating system's reason.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<io::Error>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds what the verifier or libbpf logged, which [`fmt::Display`] puts into parentheses.
    #[must_use]
    pub fn with_log(mut self, log: impl Into<Box<str>>) -> Self {
        self.log = Some(log.into());
        self
    }

    /// Adds what a person can do about it.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The operating system's error number.
    pub fn errno(&self) -> Option<Errno> {
        self.source.as_ref().and_then(Errno::from_io_error)
    }

    /// What the verifier or libbpf logged.
    pub fn log(&self) -> Option<&str> {
        self.log.as_deref()
    }

    /// The sentence without its subject and the remedy.
    pub fn reason(&self) -> String {
        let mut reason = self.context.clone().into_owned();
        if let Some(source) = &self.source {
            reason.push_str(&format!(": {source}"));
        }
        if let Some(log) = &self.log {
            reason.push_str(&format!(" ({log})"));
        }
        reason
    }
}

impl Error {
    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operating system's reason, when a system call was the cause.
    pub fn os_error(&self) -> Option<&io::Error> {
        self.source.as_ref()
    }

    /// What a person can do about it, where that is known. [`fmt::Display`] ends with it.
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(subject) = &self.subject {
            write!(f, "{subject}: ")?;
        }
        f.write_str(&self.reason())?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
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
pub trait ResultExt<T> {
    /// `what` could not be done; the operating system says why.
    ///
    /// # Errors
    /// As the result that it is called on.
    fn context(self, what: impl Into<Cow<'static, str>>) -> Result<T>;
}

impl<T, E: Into<io::Error>> ResultExt<T> for std::result::Result<T, E> {
    /// `what` could not be done; the operating system says why.
    ///
    /// # Errors
    /// As the result that it is called on.
    fn context(self, what: impl Into<Cow<'static, str>>) -> Result<T> {
        self.map_err(|error| Error::system(what, error))
    }
}
