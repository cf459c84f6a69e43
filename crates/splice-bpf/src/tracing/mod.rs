//! What the kernel does for the connections that are watched: programs at the entries and exits of its
//! functions, or, where those are not allowed, at its tracepoints.

mod functions;
mod recording;
mod signature;
mod stacks;

#[cfg(test)]
pub(crate) use self::functions::kernel_types;
pub use self::functions::{Functions, Target, Traced};
pub use self::recording::WATCHED_MOST;
pub use self::signature::Returned;
#[cfg(test)]
pub(crate) use self::stacks::leave_out_missing;
pub use self::stacks::{Stacks, Watch};
