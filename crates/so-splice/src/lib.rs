//! `SO_SPLICE` as FreeBSD and OpenBSD have it, on the one-way splices of the library `splice`.
//!
//! ```text
//! setsockopt ──▶ request ──▶ rules: may it?  ──▶ table ──▶ OneWay (crate splice)
//!                                                  │            │ ends
//! SO_ERROR, poll, close ◀── what the splice left ◀─┴── personality: who gets which error
//! ```
//!
//! Sockets are told apart by their cookie (`SO_COOKIE`), so every descriptor of a socket names the
//! same splice. The facts about the two systems are from their sources: FreeBSD
//! `sys/kern/uipc_socket.c` (15), OpenBSD `sys/kern/uipc_socket.c` (1.385).
//!
//! This crate is a part of the C interface and not a library of its own: its API changes with every
//! version.

mod splicing;

mod asked;
mod merger;
mod process;
mod rules;

mod table;

mod personality;
mod ring;

mod duplicate;
mod request;
mod socket;

pub use personality::Personality;
pub use process::splicer;
pub use request::Request;
pub use socket::cookie;
pub use splice::Error;
pub use splicing::{
    closed, errno_of, error_of_last, event_of_error, moved_bytes, pending_error, shut_drain,
    shut_source, splice, take_error, unsplice, unsplice_all, watch_end,
};
pub use table::{Splice, is_empty, last_of};
