//! What a direction has of the ring of its loop.

/// A direction's place on the ring of its loop.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(super) index: usize,
    pub(super) held: usize,
    /// The destination has no room: its socket has to be watched for that.
    pub(crate) is_blocked: bool,
}

impl Lane {
    /// What it has taken and not given.
    pub(crate) fn held(&self) -> usize {
        self.held
    }
}

/// How a direction wants to receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadHint {
    /// Not one byte more, or `None`.
    pub(crate) exactly_bytes: Option<u64>,
    /// The most that the direction may have in hand, in bytes.
    pub(crate) carrier_bytes: usize,
    /// The last read brought bulk.
    pub(crate) bulk: bool,
    /// The source has told of an end of stream or an error that was not received yet.
    pub(crate) outlasts: bool,
}

impl ReadHint {
    /// What one read may take, in bytes.
    pub(crate) fn at_most(self) -> usize {
        let exactly = self.exactly_bytes.unwrap_or(u64::MAX);
        usize::try_from(exactly)
            .unwrap_or(usize::MAX)
            .min(self.carrier_bytes)
    }
}
