//! How long a test waits for what must happen, and for what must not.

use std::time::Duration;

pub(crate) use netlab::{PATIENCE, until};

/// How long nothing must happen until a test concludes that nothing will. On a busy machine a test
/// then sees less, but never fails.
pub(crate) const QUIET: Duration = Duration::from_millis(100);
