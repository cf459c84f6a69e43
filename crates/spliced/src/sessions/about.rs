//! What sessions are asked for.

use crate::session_filter::SessionFilter;

/// What somebody wants to know, or to have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// The sessions that all of these take.
    All(Vec<SessionFilter>),
    /// The session with this id.
    One(u64),
    /// The end of the session with this id.
    Kill(u64),
    /// The end of those that all of these take, of which there is one at least.
    KillAll(Vec<SessionFilter>),
}
