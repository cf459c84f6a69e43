//! The packet filters of the relay's host apply to connections that `segment` splices.

mod accepted;
mod changed;
mod churn;
pub(crate) mod host;
mod logged;
mod rights;
mod side_effects;
