//! How long a test waits for what has to happen, and for what must not.

use std::time::Duration;

pub(crate) use netlab::{PATIENCE, until};

/// For this long nothing has to happen before it is taken that nothing will. A busy machine that
/// needs longer makes a test see less, never fail.
pub(crate) const QUIET: Duration = Duration::from_millis(100);
