//! How long a test waits for a condition.

pub(crate) use netlab::{PATIENCE, until, until_at_rest, until_found};
