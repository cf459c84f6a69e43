//! Which engine moves a pair's bytes, and when: the only place below the API that knows all engines.

mod promotion;
mod registry;

pub(crate) use self::promotion::plan;
