//! The base of the library `splice`: errors, addresses, socket options, capabilities, shortages. No event
//! loop, and no BPF.
//!
//! This crate is a part of `splice` and not a library of its own: its API changes with every
//! version.

pub mod address;
pub mod descriptors;
pub mod error;
pub mod keep_alive;
pub mod loopback;
pub mod obstacle;
pub mod release;
pub mod repair;
pub mod reserve;
pub mod shortage;
pub mod socket_name;
pub mod socket_option;
pub mod user_timeout;

pub use error::{Error, ErrorKind, Result};
