//! What a handle stands for: today a pair, of two sockets or of one that is spliced to itself.

mod handle;
mod meter;
pub(crate) mod pair;
mod status;

pub use self::handle::Handle;
pub(crate) use self::status::Status;
