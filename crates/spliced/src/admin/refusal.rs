//! Why a request on the control socket gets no answer.

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
