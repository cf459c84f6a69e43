//! Why a request on the control socket gets no answer.

use std::fmt;

use hyper::StatusCode;

#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) sentence: String,
    /// The methods that the path takes.
    pub(super) allow: Option<String>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, sentence: impl Into<String>) -> Self {
        Self {
            status,
            sentence: sentence.into(),
            allow: None,
        }
    }

    pub(super) fn allowing(mut self, methods: String) -> Self {
        self.allow = Some(methods);
        self
    }
}

/// The process is ending, and does not do what was asked for.
#[derive(Debug)]
pub(crate) struct Ending;

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the process is ending")
    }
}

impl std::error::Error for Ending {}

/// Which listener is asked for that is not there.
#[derive(Debug)]
pub(crate) struct NoListener(pub(crate) String);

impl fmt::Display for NoListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoListener {}
