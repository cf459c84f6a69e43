//! What a handle stands for: a pair, of two sockets or of one that is spliced to itself, or a
//! one-way splice between sockets that stay the caller's.

mod handle;
mod meter;
pub(crate) mod one_way;
pub(crate) mod pair;
mod status;

pub use self::handle::Handle;
pub(crate) use self::status::Status;
