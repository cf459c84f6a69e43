//! How long a test waits for what has to happen.

pub(crate) use netlab::{PATIENCE, until, until_at_rest, until_found};
