//! An order about a server, as its process gets it.

/// An order about a server of a backend, both by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) backend: String,
    pub(crate) server: String,
    pub(crate) act: Act,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing but to say what it is.
    Tell,
    /// No new clients.
    Drain,
    Undrain,
    Weigh(u32),
    /// Until the next reload, with this weight.
    Add(u16),
    /// Until the next reload.
    Remove,
}

impl Act {
    /// Whether it changes which servers there are.
    pub(super) fn is_of_membership(self) -> bool {
        matches!(self, Self::Add(_) | Self::Remove)
    }
}
