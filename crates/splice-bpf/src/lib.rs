//! The kernel side of the library `splice`: BPF programs, their maps, and how they are attached. No
//! other crate names libbpf.
//!
//! An engine [`load()`]s an object of [`objects`], sets the sizes of its maps, and takes the [`Map`]s
//! and [`Program`]s that it needs. Each of them owns a descriptor, so the object itself can be
//! dropped.
//!
//! This crate is a part of `splice` and not a library of its own: its API changes with every
//! version.

mod attach;
mod attached;
mod claim;
pub mod clock;
mod direction_entry;
mod grace_period;
mod lease;
mod libbpf;
mod load;
mod map;
mod namespace;
pub mod objects;
mod pin;
mod plain;
mod program;
mod segment_side;
pub mod sequence;
mod shared_memory;
mod socket_map;
#[cfg(test)]
mod stack;
pub mod statistics;
pub mod tracing;
#[allow(
    missing_docs,
    reason = "the fields are described with the structures in bpf/*.h"
)]
pub mod types;
#[cfg(test)]
mod verified;

#[cfg(feature = "test")]
pub use attach::detach_link;
pub use attach::{AttachMode, DeviceLink, Traffic, is_own_filter};
pub use attached::{
    Beside, Claimed, ForeignPrograms, open_control_group, packet_filter_of, program_on_device,
    programs_beside, programs_on_map,
};
pub use grace_period::{wait_for_programs, wait_for_softirqs};
#[cfg(feature = "test")]
pub use load::FORCE_FENCES;
pub use load::{Link, Object, Opened, load};
pub use map::Map;
pub use namespace::namespace;
pub use pin::is_bpf_file_system;
pub use plain::Plain;
pub use program::Program;
pub use shared_memory::{RingBuffer, SharedArray};
pub use socket_map::{SocketMap, SocketMapType};
