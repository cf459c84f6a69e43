//! What every layer of the library `splice` stands on: errors, addresses, socket options, capabilities.
//! No event loop, and no BPF.
//!
//! It is a part of `splice` and no library for others: it changes with every version.

pub mod address;
pub mod error;
pub mod obstacle;
pub mod socket_option;

pub use error::{Error, ErrorKind, Result};
