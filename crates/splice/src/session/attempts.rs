//! What has come of the attempts to give a pair to an engine in the kernel: the pair's loop writes, anyone reads.

use std::sync::atomic::{AtomicU16, Ordering};

use crate::kernel::Cause;

/// What has come of an attempt to give a pair to an engine in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Attempt {
    /// The engine has taken the pair.
    Taken,
    /// It had taken the pair, and has given it back to user space: the network or a peer got in the way.
    GivenBackByNetwork,
    /// It has given the pair back, since packet filters or BPF programs of others got in the way.
    GivenBackByFilters,
    /// It has given the pair back for another reason.
    GivenBack,
    /// The engine could not take the pair in the state that it was in: a stream had ended, for one.
    Declined,
    /// The network or a peer is in the way: routes, devices, sizes of segments, what they carry.
    Network,
    /// The relay's own sockets are in the way, or what is asked of them.
    Sockets,
    /// What this host does with packets is in the way: its packet filters, and BPF programs of others.
    Filters,
    /// The engine cannot be used, by this process or for the moment.
    Unavailable,
}

/// Which of these have happened to a pair, once or more often.
#[derive(Debug, Default)]
pub(crate) struct Attempts(AtomicU16);

impl Attempt {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Taken,
        Self::GivenBackByNetwork,
        Self::GivenBackByFilters,
        Self::GivenBack,
        Self::Declined,
        Self::Network,
        Self::Sockets,
        Self::Filters,
        Self::Unavailable,
    ];

    /// An engine that had a pair has given it back, with this cause.
    pub(crate) fn given_back(cause: Cause) -> Self {
        match cause {
            Cause::Network => Self::GivenBackByNetwork,
            Cause::Filters => Self::GivenBackByFilters,
            Cause::State | Cause::Sockets | Cause::Engine => Self::GivenBack,
        }
    }

    fn bit(self) -> u16 {
        1 << self as u8
    }
}

impl From<Cause> for Attempt {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::State => Self::Declined,
            Cause::Network => Self::Network,
            Cause::Sockets => Self::Sockets,
            Cause::Filters => Self::Filters,
            Cause::Engine => Self::Unavailable,
        }
    }
}

impl Attempts {
    pub(crate) fn note(&self, attempt: Attempt) {
        self.0.fetch_or(attempt.bit(), Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> impl Iterator<Item = Attempt> + use<> {
        let noted = self.0.load(Ordering::Relaxed);
        let was_noted = move |attempt: &Attempt| noted & attempt.bit() != 0;
        Attempt::ALL.into_iter().filter(was_noted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_noted_once_and_stays() {
        let attempts = Attempts::default();
        assert_eq!(attempts.read().count(), 0);
        let noted = [Attempt::Sockets, Attempt::Taken, Attempt::Sockets];
        noted.into_iter().for_each(|attempt| attempts.note(attempt));
        let read: Vec<_> = attempts.read().collect();
        assert_eq!(read, [Attempt::Taken, Attempt::Sockets]);
    }
}
