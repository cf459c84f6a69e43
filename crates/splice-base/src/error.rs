//! The error type of the library.

use std::borrow::Cow;
use std::{fmt, io};

use rustix::io::Errno;

/// What kind of error it is, for a program that reacts to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address cannot be parsed.
    InvalidAddress,
    /// An option has a value that the kernel does not have.
    InvalidOption,
    /// The file descriptor is not a connected stream socket of a supported kind.
    UnsupportedSocket,
    /// The engine does not exist, or it was chosen by name and cannot take this pair.
    EngineRefused,
    /// The kernel refuses the BPF side of an engine: the process lacks a capability, or the kernel
    /// lacks BPF or a function.
    BpfRefused,
    /// The event loop has ended and accepts no more pairs.
    LoopEnded,
    /// A system call failed; see [`Error::os_error`].
    System,
}

/// An error: what failed, where, and, if there is one, the operating system's reason.
///
/// [`fmt::Display`] prints the whole chain as one sentence.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    /// The subject, which [`fmt::Display`] puts first.
    subject: Option<Cow<'static, str>>,
    context: Cow<'static, str>,
    source: Option<io::Error>,
    /// What the kernel's verifier or libbpf logged last.
    log: Option<Box<str>>,
    remedy: Option<Cow<'static, str>>,
}

/// The library's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Constructors for the crates of this workspace. Hidden, since a program only reads errors.
#[doc(hidden)]
impl Error {
    /// An error that no system call has caused.
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

    /// An error of a system call.
    pub fn system(context: impl Into<Cow<'static, str>>, source: impl Into<io::Error>) -> Self {
        Self::new(ErrorKind::System, context).with_source(source)
    }

    /// Sets the subject, which comes first: "engine uring cannot be used", for example.
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

    /// Adds what the verifier or libbpf logged. [`fmt::Display`] puts it into parentheses.
    #[must_use]
    pub fn with_log(mut self, log: impl Into<Box<str>>) -> Self {
        self.log = Some(log.into());
        self
    }

    /// Adds the remedy: what the user can do about it.
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

    /// What failed, without the operating system's reason.
    pub fn context(&self) -> &str {
        &self.context
    }

    /// The reason: the sentence without the subject and the remedy.
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

    /// The operating system's reason, if a system call has failed.
    pub fn os_error(&self) -> Option<&io::Error> {
        self.source.as_ref()
    }

    /// What the user can do about it, if that is known. [`fmt::Display`] ends with it.
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
    /// What is behind [`os_error`](Error::os_error), which the sentence has already: whoever prints a chain of errors would
    /// say it twice.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref()?.source()
    }
}

/// Adds to an operating system's error what the program was doing.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_a_system_call_is_its_context() {
        let error = Error::new(ErrorKind::LoopEnded, "the event loop has ended");
        assert_eq!(error.to_string(), "the event loop has ended");
        assert_eq!(error.reason(), error.to_string());
        assert!(error.os_error().is_none() && error.errno().is_none());
    }

    #[test]
    fn subject_context_cause_log_and_remedy_come_in_this_order() {
        let error = Error::new(ErrorKind::BpfRefused, "the BPF object cannot be loaded")
            .with_remedy("run it as root")
            .with_log("R1 invalid")
            .with_source(Errno::PERM)
            .about("engine segment cannot be used");
        let reason =
            "the BPF object cannot be loaded: Operation not permitted (os error 1) (R1 invalid)";
        assert_eq!(error.reason(), reason);
        assert_eq!(
            error.to_string(),
            format!("engine segment cannot be used: {reason}; run it as root")
        );
        assert_eq!(error.kind(), ErrorKind::BpfRefused);
        assert_eq!(error.errno(), Some(Errno::PERM));
        assert_eq!(error.log(), Some("R1 invalid"));
        assert_eq!(error.remedy(), Some("run it as root"));
    }

    #[test]
    fn every_part_but_the_context_can_be_missing() {
        let error = || Error::new(ErrorKind::EngineRefused, "a reason");
        let about = error().about("a subject");
        assert_eq!(about.to_string(), "a subject: a reason");
        assert_eq!(error().with_log("a log").to_string(), "a reason (a log)");
        assert_eq!(
            error().with_remedy("try it").to_string(),
            "a reason; try it"
        );
    }

    #[test]
    fn the_cause_of_a_system_error_is_said_once() {
        let failed: std::result::Result<(), Errno> = Err(Errno::MFILE);
        let error = failed.context("cannot create a socket").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert_eq!(error.errno(), Some(Errno::MFILE));
        let cause = error.os_error().expect("a cause");
        assert_eq!(
            error.to_string(),
            format!("cannot create a socket: {cause}")
        );
        assert!(std::error::Error::source(&error).is_none());
    }
}
