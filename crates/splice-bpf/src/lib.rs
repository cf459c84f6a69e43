//! The kernel side of the library `splice`: BPF programs, their maps, and where they are attached.
//! The only crate that names libbpf.
//!
//! An engine [`load`]s an object of [`objects`], sizes its maps, and takes the [`Map`]s and
//! [`Program`]s that it needs; each owns a descriptor of its own, so the object itself is dropped
//! after that.
//!
//! It is a part of `splice` and no library for others: it changes with every version.

mod attach;
pub mod clock;
mod direction_entry;
mod libbpf;
mod load;
mod map;
mod namespace;
pub mod objects;
mod plain;
mod program;
mod segment_side;
pub mod sequence;
mod shared_memory;
pub mod statistics;
#[allow(
    missing_docs,
    reason = "the fields are described with the structures in bpf/*.h"
)]
pub mod types;
#[cfg(test)]
mod verified;

pub use attach::{AttachMode, DeviceLink, Traffic};
#[cfg(feature = "test")]
pub use load::FORCE_FENCES;
pub use load::{Object, Opened, load};
pub use map::Map;
pub use namespace::namespace;
pub use plain::Plain;
pub use program::Program;
pub use shared_memory::{RingBuffer, SharedArray};
