//! What a handle stands for: a pair, of two sockets or of one that is spliced to itself, or a
//! one-way splice between sockets that stay the caller's.

mod attempts;
mod handle;
mod meter;
mod observer;
pub(crate) mod one_way;
pub(crate) mod pair;
mod status;

pub use self::attempts::Attempt;
pub use self::handle::Handle;
pub use self::meter::Stream;
pub use self::observer::Observer;
pub(crate) use self::status::Status;
