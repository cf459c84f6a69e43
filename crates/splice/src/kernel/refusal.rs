//! Why an engine leaves a pair to user space.

use std::borrow::Cow;

/// Why an engine does not take a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) cause: Cause,
    /// The reason, in words.
    pub(crate) why: Cow<'static, str>,
}

/// What is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The state that the pair is in: a stream has ended, for one.
    State,
    /// What the network does, or a peer: routes, devices, sizes of segments, what they carry.
    Network,
    /// The relay's own sockets, and what is asked of them.
    Sockets,
    /// What this host does with packets: its packet filters, and BPF programs of others.
    Filters,
    /// The engine itself: its program cannot be attached, or its table is full.
    Engine,
}

impl Cause {
    /// Whether a pair ends of it for which the engine was asked for by name. Neither the network nor a peer can end one so.
    pub(crate) fn ends_by_name(self) -> bool {
        match self {
            Self::State | Self::Network => false,
            Self::Sockets | Self::Filters | Self::Engine => true,
        }
    }

    /// A refusal with this cause.
    pub(crate) fn because(self, why: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal {
            cause: self,
            why: why.into(),
        }
    }
}
