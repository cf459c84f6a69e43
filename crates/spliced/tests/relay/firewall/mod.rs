//! The packet filters of the relay's host hold for connections that `segment` moves past them.

mod accepted;
mod changed;
mod churn;
mod host;
mod kept_back;
mod rights;
mod told;
