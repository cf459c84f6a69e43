//! A direction's handle on the ring of its loop.

/// A direction's lane on the ring of its loop.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(super) index: usize,
    pub(super) held: usize,
    /// The destination has no room: epoll must watch its socket for that.
    pub(crate) is_blocked: bool,
}

impl Lane {
    /// How many bytes are in flight.
    pub(crate) fn held(&self) -> usize {
        self.held
    }
}

/// What a direction says about its next read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadHint {
    /// The exact limit of the read, or `None`.
    pub(crate) limit_bytes: Option<u64>,
    /// The most that the direction may have in flight, in bytes.
    pub(crate) carrier_bytes: usize,
    /// The last read brought bulk.
    pub(crate) bulk: bool,
    /// The source has reported EOF or an error that was not received yet.
    pub(crate) needs_further_read: bool,
    /// The source may have an urgent mark.
    pub(crate) may_be_urgent: bool,
    /// The largest datagram that the destination may be sent, in bytes.
    pub(crate) largest_datagram: usize,
}

impl ReadHint {
    /// The most that one read may take, in bytes.
    pub(crate) fn at_most(self) -> usize {
        let limit = self.limit_bytes.unwrap_or(u64::MAX);
        usize::try_from(limit)
            .unwrap_or(usize::MAX)
            .min(self.carrier_bytes)
    }
}
