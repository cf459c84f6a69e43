//! What a handle stands for: today two sockets, or one, whose bytes flow on their own.

mod handle;
mod meter;
pub(crate) mod pair;
mod status;

pub use self::handle::Handle;
pub(crate) use self::status::Status;
